//! Running a dataset: the allowance, the threads that fill it, and the batches that are lent out of it.
//!
//! When iteration begins, the thread that asked for it takes one block of the pool, counted as data: room for `depth +
//! 1` batches, for elements that wait on their way, and for the workers' scratch. From then on nobody but the
//! consumer's thread touches the pool, and only if it must (see below), so the timing of workers cannot be seen there.
//!
//! Batches are tensors over parts of that block. When the last holder of a batch drops it, its part is filled anew. A
//! consumer that holds on to so many batches that no part is left gets the next one in a block of its own, which goes
//! back to the pool when dropped: waiting would never end, refusing would make `collect` fail, and whether it
//! happens depends on the consumer's program alone. Its bytes are counted like all others.
//!
//! A GPU's batches are made in memory of its host, which is where the block is taken, and copied over when the loop takes
//! them: such a batch is a block of the GPU's pool, counted as data, and its part of the host's block is filled anew at
//! once. The copy goes through the driver's own staging memory, so nobody waits for the GPU.
//!
//! Without prefetching and with one worker there are no threads: the consumer makes the batch that it asks for.

mod allowance;
mod batch;
mod crew;
mod makers;
mod stop;

use std::sync::Arc;

use plimsoll_tensor::{Bytes, Device, Error, Piece, Result, Site, at_line};

pub use self::batch::Batch;
pub(crate) use self::crew::Held;
pub use self::crew::Threads;
pub use self::stop::{is_asked_to_stop, stop_waiting_when};

use self::allowance::Allowance;
use self::crew::{Crew, Worker};
use self::makers::{Maker, Shared, Turn};
use crate::limits;
use crate::node::NodeRef;

/// How many batches are made ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// So many.
    Depth(usize),
    /// As many as help: one at first, and twice as many each time that the loop has to wait. The memory for the most
    /// that there can be is taken at once: what the allowance has room for, or four batches ahead.
    Auto,
}

/// Lets the pipeline choose how many batches it makes ahead.
pub const AUTOTUNE: Prefetch = Prefetch::Auto;

impl From<usize> for Prefetch {
    fn from(depth: usize) -> Prefetch {
        Prefetch::Depth(depth)
    }
}

/// How a dataset is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub prefetch: Prefetch,
    pub n_workers: usize,
    pub allowance: Option<Bytes>,
    /// The line that made batches of the elements.
    pub batched_at: Option<Site>,
}

impl Default for Options {
    fn default() -> Options {
        Options { prefetch: Prefetch::Depth(0), n_workers: 1, allowance: None, batched_at: None }
    }
}

impl Options {
    /// The number of threads that make batches; none if the consumer does.
    pub fn n_threads(&self) -> usize {
        if self.prefetch == Prefetch::Depth(0) && self.n_workers == 1 { 0 } else { self.n_workers }
    }

    /// Refuses more batches ahead, or more threads, than there may be.
    pub fn check(&self) -> Result<()> {
        limits::check("workers", "threads that make batches", self.n_workers, limits::WORKERS)?;
        match self.prefetch {
            Prefetch::Depth(depth) => limits::check("prefetch", "batches ahead", depth, limits::AHEAD),
            Prefetch::Auto => Ok(()),
        }
    }
}

/// The batches of one epoch, in order. Dropping it ends the threads that make them, unless the dataset's are held.
pub struct Batches(State);

enum State {
    Running(Running),
    /// The iteration could not begin; this is why.
    Refused(Error),
    Over,
}

struct Running {
    shared: Arc<Shared>,
    maker: Arc<Maker>,
    /// Where batches are made.
    device: Device,
    /// Where the loop wants them.
    wanted_on: Device,
    /// A batch that could not be delivered there, for want of memory.
    waiting: Option<Batch>,
    /// Who began the iteration.
    caller: Site,
    /// Who makes the batches, if the consumer does not, and where they come from.
    workers: Vec<Worker>,
    crew: Arc<Crew>,
    /// The scratch of a consumer that makes its batches itself.
    scratch: Option<Piece>,
    /// Whether threads were left at their work, which then own what they work with.
    is_left: bool,
}

impl Batches {
    /// Begins an epoch at a batch: takes the allowance, labelled with the caller's line, and starts the threads.
    pub(crate) fn begin(
        node: &NodeRef,
        (options, held): (&Options, &Held),
        (epoch, first): (u64, u64),
        caller: Site,
    ) -> Batches {
        Batches(match Running::begin(node, (options, held), (epoch, first), caller) {
            Ok(running) => State::Running(running),
            Err(error) => State::Refused(error),
        })
    }
}

impl Running {
    fn begin(
        node: &NodeRef,
        (options, held): (&Options, &Held),
        (epoch, first): (u64, u64),
        caller: Site,
    ) -> Result<Running> {
        options.check()?;
        let number = usize::try_from(first).unwrap_or(usize::MAX);
        limits::check("dataset", "is the number of a batch", number, limits::BATCHES)?;
        let wanted_on = Device::current();
        let device = wanted_on.host();
        let taken = at_line(caller.file(), caller.line(), || Allowance::take(node, options, &device));
        let Allowance { slots, mut scratch, session, most_ahead } = taken?;
        let is_tuned = options.prefetch == Prefetch::Auto;
        let shared = Arc::new(Shared::new(slots, first, most_ahead, is_tuned));
        let maker = Arc::new(Maker { node: node.clone(), session, epoch, n_workers: options.n_workers });
        let mut running = Running {
            shared,
            maker,
            device,
            wanted_on,
            waiting: None,
            caller,
            workers: Vec::new(),
            crew: held.crew(),
            scratch: None,
            is_left: false,
        };
        let n_threads = if running.device.is_ghost() { 0 } else { options.n_threads() };
        for number in 0..n_threads {
            let (shared, maker) = (running.shared.clone(), running.maker.clone());
            let Some(mut scratch) = scratch.pop() else { unreachable!("every worker has its scratch") };
            let mut worker = running.crew.hire(number)?;
            worker.begin(move || shared.work(&maker, scratch.bytes_mut()));
            running.workers.push(worker);
        }
        if running.workers.is_empty() {
            running.scratch = scratch.pop();
        }
        Ok(running)
    }

    fn next(&mut self) -> Option<Result<Batch>> {
        let batch = match self.waiting.take() {
            Some(batch) => Ok(batch),
            None => self.made()?,
        };
        Some(batch.and_then(|batch| self.deliver(batch)))
    }

    /// Leaves `n` batches out; nothing if there are not so many.
    fn skip(&mut self, n: usize) -> Option<Result<()>> {
        for _ in 0..n {
            if self.waiting.take().is_none()
                && let Err(error) = self.made()?
            {
                return Some(Err(error));
            }
        }
        Some(Ok(()))
    }

    /// The next batch, where it was made.
    fn made(&mut self) -> Option<Result<Batch>> {
        loop {
            match self.shared.turn(self.workers.is_empty(), &self.maker) {
                Turn::Made(number, made) => {
                    let made = made.and_then(|made| {
                        Batch::lend(&self.shared, made, self.maker.node.spec(), self.maker.epoch, number)
                    });
                    return Some(made);
                }
                Turn::Over => return None,
                Turn::Interrupted => {
                    // Whoever does not answer now may never do so, and dropping this would wait for it.
                    self.shared.close();
                    self.workers.clear();
                    self.is_left = true;
                    return Some(Err(Error::interrupted("a batch")));
                }
                Turn::NeedsSlot => {
                    let take = || allowance::extra_slot(self.maker.node.spec(), &self.device);
                    match at_line(self.caller.file(), self.caller.line(), take) {
                        Ok(slot) => self.shared.add_slot(slot),
                        // The batch is still to come: it is made as soon as one is dropped.
                        Err(error) => return Some(Err(error)),
                    }
                }
                Turn::Task(task) => {
                    let scratch = self.scratch.as_mut().map_or(&mut [][..], Piece::bytes_mut);
                    self.shared.perform(task, &self.maker, scratch);
                }
            }
        }
    }
}

impl Running {
    /// Delivers a batch to where the loop wants it. If there is no memory for it, it waits for the next attempt.
    fn deliver(&mut self, batch: Batch) -> Result<Batch> {
        let delivered =
            at_line(self.caller.file(), self.caller.line(), || batch.clone().delivered_to(&self.wanted_on));
        if delivered.as_ref().is_err_and(Error::is_out_of_memory) {
            self.waiting = Some(batch);
        }
        delivered
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.close();
        self.workers.drain(..).for_each(|worker| self.crew.dismiss(worker));
        if !self.is_left {
            self.shared.clear();
        }
    }
}

impl Iterator for Batches {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        self.nth(0)
    }

    /// Passes over `n` batches, which are made and delivered nowhere, and gives the next.
    fn nth(&mut self, n: usize) -> Option<Result<Batch>> {
        let next = match &mut self.0 {
            State::Running(running) => running.skip(n).and_then(|passed| match passed {
                Ok(()) => running.next(),
                Err(error) => Some(Err(error)),
            }),
            State::Over => return None,
            State::Refused(_) => match std::mem::replace(&mut self.0, State::Over) {
                State::Refused(error) => return Some(Err(error)),
                _ => unreachable!("it was refused a moment ago"),
            },
        };
        let goes_on = match &next {
            Some(Ok(_)) => true,
            // Memory that is full now need not be so at the next attempt.
            Some(Err(error)) => error.is_out_of_memory(),
            None => false,
        };
        if !goes_on {
            self.0 = State::Over;
        }
        next
    }
}

impl std::fmt::Debug for Batches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            State::Running(running) => write!(f, "Batches(epoch {})", running.maker.epoch),
            State::Refused(error) => write!(f, "Batches(refused: {error})"),
            State::Over => f.write_str("Batches(over)"),
        }
    }
}
