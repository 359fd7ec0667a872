//! Ranks inside one process, a thread each: for several devices of one machine, for a run of one rank, and for tests, with faults that
//! are injected and ranks that are slow in simulated time.
//!
//! Bytes of the host are copied when they are sent. Bytes of a GPU are lent until the other rank has started to copy them, on the
//! GPU where both are on one; the work of a GPU is done in the order in which it was started, whichever thread started it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use plimsoll_cpu::threads;
use plimsoll_tensor::{Device, Error, Result};

use crate::agreements::Agreements;
use crate::bytes::{DeviceBytes, DeviceBytesMut, LentBytes};
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
    body: Body,
    sent_at: u64,
}

/// What is in a message.
#[derive(Debug)]
enum Body {
    /// A copy.
    Host(Vec<u8>),
    /// Bytes of a GPU, for which the sender waits.
    Device(LentBytes),
}

impl Body {
    fn bytes(&self) -> DeviceBytes<'_> {
        match self {
            Body::Host(bytes) => bytes[..].into(),
            Body::Device(lent) => lent.read(),
        }
    }
}

impl State {
    /// Nobody takes these messages any more: whoever has lent what is in them gets it back.
    fn give_back(&mut self, is_over: impl Fn(usize, usize) -> bool) {
        for ((from, to), waiting) in &mut self.mail {
            if is_over(*from, *to) {
                waiting.retain(|message| matches!(message.body, Body::Host(_)));
            }
        }
    }
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

/// The GPUs of this machine.
pub fn gpus() -> Vec<Device> {
    (0..).map_while(|number| Device::cuda(number).ok()).collect()
}

/// Makes `f` a rank on each of these devices, with a thread of its own, whose current device that is; returns what each gives, in their
/// order. Several of them may have pools of one GPU.
///
/// ```
/// use plimsoll_dist::{Strategy, local};
/// use plimsoll_tensor::Device;
///
/// let devices = [Device::separate_cpu(), Device::separate_cpu()];
/// let leaves = local::mirrored(&devices, |communicator| {
///     let strategy = Strategy::data_parallel(communicator.clone()).leaves(4);
///     Ok(strategy.share_out(1)?.of_rank(communicator.rank()))
/// })?;
/// assert_eq!(leaves, [0..2, 2..4]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// That of the first rank that has failed; a system that starts no more threads.
#[doc(alias = "MirroredStrategy")]
pub fn mirrored<R: Send + 'static>(
    devices: &[Device],
    f: impl Fn(Arc<dyn Communicator>) -> Result<R> + Send + Sync + 'static,
) -> Result<Vec<R>> {
    let f = Arc::new(f);
    let mut threads = Vec::new();
    for (rank, device) in world(devices.len()).into_iter().zip(devices) {
        let (f, device, name) = (f.clone(), device.clone(), format!("rank {}", rank.rank));
        let run = move || {
            let _on = device.enter();
            let communicator: Arc<dyn Communicator> = Arc::new(rank);
            f(communicator.clone()).inspect_err(|error| communicator.report_failure(&error.to_string()))
        };
        // Ranks whose threads are not started leave, so that the others end.
        let started = threads::spawn(name, run);
        threads.push(started.map_err(|error| Error::argument("mirrored", error.to_string()))?);
    }
    let joined = threads.into_iter().map(|thread| match thread.join() {
        Ok(outcome) => outcome,
        Err(panic) => std::panic::resume_unwind(panic),
    });
    let outcomes: Vec<Result<R>> = joined.collect();
    outcomes.into_iter().collect()
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

    /// Puts a message where the other rank takes it.
    fn post(&self, to: usize, body: impl FnOnce() -> Body) -> Result<()> {
        let mut message = Some(Message { body: body(), sent_at: self.ticks() });
        self.wait(to, |state| {
            let is_over = state.ended.is_some() || state.left.contains(&to);
            let waiting = state.mail.entry((self.rank, to)).or_default();
            if is_over || waiting.len() >= MOST_WAITING {
                return None;
            }
            waiting.extend(message.take());
            Some(())
        })
    }

    /// The run of all ranks is over, because of one of them.
    fn end(&self, rank: usize, cause: &str) {
        let mut state = self.lock();
        state.ended.get_or_insert((rank, cause.to_owned()));
        state.give_back(|_, _| true);
        drop(state);
        self.world.changed.notify_all();
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
        self.post(to, || Body::Host(bytes.to_vec()))
    }

    fn recv(&self, from: usize, bytes: &mut [u8]) -> Result<()> {
        self.recv_device(from, bytes.into())
    }

    fn send_device(&self, to: usize, bytes: DeviceBytes<'_>) -> Result<()> {
        let lend = |lent: LentBytes| {
            self.check(to)?;
            self.begin("send")?;
            self.post(to, || Body::Device(lent))
        };
        match bytes.lend(lend) {
            None => bytes.with_host(|bytes| self.send(to, bytes)),
            Some(Ok(true)) => Ok(()),
            // It came back unread: the run is over, or the other rank has left.
            Some(Ok(false)) => self.wait(to, |_| None),
            Some(Err(error)) => Err(error),
        }
    }

    fn recv_device(&self, from: usize, mut bytes: DeviceBytesMut<'_>) -> Result<()> {
        self.check(from)?;
        self.begin("receive")?;
        let message = self.wait(from, |state| state.mail.get_mut(&(from, self.rank))?.pop_front())?;
        let waited = message.sent_at.saturating_sub(self.ticks());
        if self.world.faults.most_wait.is_some_and(|most| waited > most) {
            let cause = format!("it was {waited} ticks late, more than rank {} waits", self.rank);
            self.end(from, &cause);
            return Err(failed(from, &cause));
        }
        self.now.fetch_max(message.sent_at, Ordering::Relaxed);
        let (n_sent, n_taken) = (message.body.bytes().len(), bytes.len());
        if n_sent != n_taken {
            let cause = format!("it sent {n_sent} bytes where rank {} takes {n_taken}", self.rank);
            self.report_failure(&format!("it takes {n_taken} bytes where rank {from} sent {n_sent}"));
            return Err(failed(from, &cause));
        }
        bytes.copy_from(message.body.bytes())
    }

    fn report_failure(&self, cause: &str) {
        self.end(self.rank, cause);
    }

    fn abort(&self, status: i32) {
        self.report_failure(&format!("it ended the run with status {status}"));
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let mut state = self.lock();
        state.left.push(self.rank);
        state.give_back(|_, to| to == self.rank);
        drop(state);
        self.world.changed.notify_all();
    }
}

/// The error of a rank that cannot go on.
fn failed(rank: usize, cause: &str) -> Error {
    Error::device("distributed", format!("rank {rank} failed: {cause}"))
}
