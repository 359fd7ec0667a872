//! Ranks inside one process, a thread each: for tests, with faults that are injected and ranks that are slow in simulated
//! time, and for a run of one rank.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use plimsoll_tensor::{Error, Result};

use crate::agreements::Agreements;
use crate::communicator::Communicator;

/// Messages that wait between two ranks; whoever sends more waits until one is taken.
const MOST_WAITING: usize = 1;

/// A rank of this process. One that is dropped has left: whoever waits for it gets an error.
#[derive(Debug)]
pub struct Local {
    rank: usize,
    world: Arc<World>,
    /// Messages that it has sent or received so far.
    n_messages: AtomicU64,
    /// Its simulated time, in ticks.
    now: AtomicU64,
    agreements: Agreements,
}

/// What goes wrong between ranks.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    fails: Option<(usize, u64)>,
    slow: Option<(usize, u64)>,
    most_wait: Option<u64>,
}

impl Faults {
    /// A rank whose message of that number, sent or received and counted from zero, fails.
    #[must_use]
    pub fn failing(self, rank: usize, message: u64) -> Faults {
        Faults { fails: Some((rank, message)), ..self }
    }

    /// A rank that takes so many ticks of simulated time for a message; all others take one.
    #[must_use]
    pub fn slow(self, rank: usize, ticks: u64) -> Faults {
        Faults { slow: Some((rank, ticks)), ..self }
    }

    /// Ranks that wait for a message at most so many ticks of simulated time.
    #[must_use]
    pub fn most_wait(self, ticks: u64) -> Faults {
        Faults { most_wait: Some(ticks), ..self }
    }
}

/// What the ranks share.
#[derive(Debug)]
struct World {
    size: usize,
    faults: Faults,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Messages by sender and receiver.
    mail: HashMap<(usize, usize), VecDeque<Message>>,
    /// The rank that ended the run, and why.
    ended: Option<(usize, String)>,
    /// The ranks that have left.
    left: Vec<usize>,
}

#[derive(Debug)]
struct Message {
    bytes: Vec<u8>,
    sent_at: u64,
}

/// A run of one rank, which never waits for anybody.
pub fn alone() -> Arc<dyn Communicator> {
    Arc::new(world(1).remove(0))
}

/// So many ranks, to be given a thread each.
pub fn world(size: usize) -> Vec<Local> {
    world_with(size, Faults::default())
}

/// So many ranks, between which something goes wrong.
pub fn world_with(size: usize, faults: Faults) -> Vec<Local> {
    let state = Mutex::new(State::default());
    let world = Arc::new(World { size, faults, state, changed: Condvar::new() });
    let local = |rank| Local {
        rank,
        world: world.clone(),
        n_messages: AtomicU64::new(0),
        now: AtomicU64::new(0),
        agreements: Agreements::default(),
    };
    (0..size).map(local).collect()
}

impl Local {
    /// The messages that this rank has sent and received.
    pub fn n_messages(&self) -> u64 {
        self.n_messages.load(Ordering::Relaxed)
    }

    /// The simulated time of this rank, in ticks.
    pub fn ticks(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Counts a message, and fails if it is to.
    fn begin(&self, what: &str) -> Result<()> {
        let number = self.n_messages.fetch_add(1, Ordering::Relaxed);
        let slow = self.world.faults.slow.filter(|(rank, _)| *rank == self.rank);
        self.now.fetch_add(slow.map_or(1, |(_, ticks)| ticks), Ordering::Relaxed);
        match self.world.faults.fails {
            Some(fails) if fails == (self.rank, number) => {
                let cause = format!("it could not {what} message {number}");
                self.report_failure(&cause);
                Err(failed(self.rank, &cause))
            }
            _ => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.world.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready` gives something, or the other rank cannot come any more.
    fn wait<R>(&self, other: usize, mut ready: impl FnMut(&mut State) -> Option<R>) -> Result<R> {
        let mut state = self.lock();
        loop {
            // What has arrived is received, whatever happened to its sender since.
            if let Some(result) = ready(&mut state) {
                self.world.changed.notify_all();
                return Ok(result);
            }
            if let Some((rank, cause)) = &state.ended {
                return Err(failed(*rank, cause));
            }
            if state.left.contains(&other) {
                return Err(failed(other, "it has left"));
            }
            state = self.world.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Refuses a rank that there is not.
    fn check(&self, other: usize) -> Result<()> {
        match other < self.world.size && other != self.rank {
            true => Ok(()),
            false => Err(Error::argument(
                "rank",
                format!("rank {} of {} has no message with rank {other}", self.rank, self.world.size),
            )),
        }
    }
}

impl Communicator for Local {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.world.size
    }

    fn agreements(&self) -> &Agreements {
        &self.agreements
    }

    fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        self.check(to)?;
        self.begin("send")?;
        let message = Message { bytes: bytes.to_vec(), sent_at: self.ticks() };
        let mut message = Some(message);
        self.wait(to, |state| {
            let is_over = state.ended.is_some();
            let waiting = state.mail.entry((self.rank, to)).or_default();
            if is_over || waiting.len() >= MOST_WAITING {
                return None;
            }
            waiting.extend(message.take());
            Some(())
        })
    }

    fn recv(&self, from: usize, bytes: &mut [u8]) -> Result<()> {
        self.check(from)?;
        self.begin("receive")?;
        let message = self.wait(from, |state| state.mail.get_mut(&(from, self.rank))?.pop_front())?;
        let waited = message.sent_at.saturating_sub(self.ticks());
        if self.world.faults.most_wait.is_some_and(|most| waited > most) {
            let cause = format!("it was {waited} ticks late, more than rank {} waits", self.rank);
            let mut state = self.lock();
            state.ended.get_or_insert((from, cause.clone()));
            self.world.changed.notify_all();
            return Err(failed(from, &cause));
        }
        self.now.fetch_max(message.sent_at, Ordering::Relaxed);
        if message.bytes.len() != bytes.len() {
            let cause = format!(
                "it sent {} bytes where rank {} takes {}",
                message.bytes.len(),
                self.rank,
                bytes.len()
            );
            self.report_failure(&format!(
                "it takes {} bytes where rank {from} sent {}",
                bytes.len(),
                message.bytes.len()
            ));
            return Err(failed(from, &cause));
        }
        bytes.copy_from_slice(&message.bytes);
        Ok(())
    }

    fn report_failure(&self, cause: &str) {
        self.lock().ended.get_or_insert((self.rank, cause.to_owned()));
        self.world.changed.notify_all();
    }

    fn abort(&self, status: i32) {
        self.report_failure(&format!("it ended the run with status {status}"));
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.lock().left.push(self.rank);
        self.world.changed.notify_all();
    }
}

/// The error of a rank that cannot go on.
fn failed(rank: usize, cause: &str) -> Error {
    Error::device("distributed", format!("rank {rank} failed: {cause}"))
}
