//! Making batches: what is to be done next, and doing it.
//!
//! One lock guards a small state; all work is done outside it. Somebody *pulls* the next item from the dataset's
//! cursor, one at a time and in order; it gets a number and, when there is one, a free slot; its rows are cut into
//! chunks, which any maker writes; whoever writes the last chunk of a batch finishes it. The consumer takes batches by
//! number, so neither how many makers there are nor which of them is faster can be seen. A consumer without threads is
//! a maker itself.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use plimsoll_tensor::{Error, Piece, Result, Shape};

use super::allowance::Slot;
use super::stop;
use crate::example::ExampleMut;
use crate::node::{Cursor, Item, NodeRef, Session, Work, lock, open};
use crate::spec::Shapes;

/// A chunk is not worth handing to another thread if it is shorter than this.
const LEAST_CHUNK_BYTES: usize = 4096;

/// What all makers of an iteration share and never change.
pub(crate) struct Maker {
    pub node: NodeRef,
    pub session: Arc<Session>,
    pub epoch: u64,
    pub n_workers: usize,
}

/// A batch that is made.
pub(crate) struct Made {
    pub slot: Slot,
    pub shapes: Vec<Shape>,
}

/// What a maker can do.
pub(crate) enum Task {
    /// Ask the cursor for the next item; the first time, there is none yet, and items are to be skipped.
    Pull {
        cursor: Option<Box<dyn Cursor>>,
        number: u64,
    },
    Write(Chunk),
}

/// Some rows of a batch.
pub(crate) struct Chunk {
    number: u64,
    /// Which of the batch's chunks this is.
    k: usize,
    item: Arc<Item>,
    rows: Range<usize>,
    pieces: Vec<Piece>,
}

/// A chunk that was written.
struct Written {
    pieces: Vec<Piece>,
    lengths: Vec<usize>,
    /// The shapes, of use if the chunk is the whole.
    shapes: Result<Shapes>,
}

/// A batch that is being written.
struct Job {
    item: Arc<Item>,
    chunks: Vec<Option<Written>>,
    n_left: usize,
    /// Room for rows that this batch does not have.
    tails: Vec<Piece>,
    is_extra: bool,
}

/// Where items come from.
enum Source {
    Unopened,
    Open(Box<dyn Cursor>),
    /// Somebody is pulling.
    Busy,
    Ended,
}

struct State {
    source: Source,
    first: u64,
    /// The number of the next item to be pulled, and of the next batch to be consumed.
    next: u64,
    wanted: u64,
    /// An item that waits for a slot.
    pending: Option<(u64, Item)>,
    free: Vec<Slot>,
    n_slots: usize,
    n_lent: usize,
    chunks: VecDeque<Chunk>,
    /// Batches being written, or (without a value) being finished.
    jobs: BTreeMap<u64, Option<Job>>,
    ready: BTreeMap<u64, Result<Made>>,
    /// How many batches are made ahead, at present and at most.
    ahead: usize,
    most_ahead: usize,
    is_closed: bool,
}

/// What consumer and makers share.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Something happened that somebody may wait for.
    changed: Condvar,
}

/// What the consumer does next.
pub(crate) enum Turn {
    /// Take the batch of that number.
    Made(u64, Result<Made>),
    /// Stop: there are no more.
    Over,
    /// Bring another slot, because it holds all there are.
    NeedsSlot,
    /// Work.
    Task(Task),
    /// Stop: somebody wants the program to, and the batch is not there.
    Interrupted,
}

impl Shared {
    pub fn new(slots: Vec<Slot>, first: u64, most_ahead: usize, is_tuned: bool) -> Shared {
        let state = State {
            source: Source::Unopened,
            first,
            next: first,
            wanted: first,
            pending: None,
            n_slots: slots.len(),
            free: slots,
            n_lent: 0,
            chunks: VecDeque::new(),
            jobs: BTreeMap::new(),
            ready: BTreeMap::new(),
            ahead: if is_tuned { 1 } else { most_ahead },
            most_ahead,
            is_closed: false,
        };
        Shared { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Makes batches until the iteration is closed.
    pub fn work(&self, maker: &Maker, scratch: &mut [u8]) {
        let mut state = lock(&self.state);
        while !state.is_closed {
            match state.next_task(maker) {
                Some(task) => {
                    drop(state);
                    self.perform(task, maker, scratch);
                    state = lock(&self.state);
                }
                None => state = self.wait(state),
            }
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// What the consumer, who wants a batch, does next. If others make them, it waits for one.
    pub fn turn(&self, makes: bool, maker: &Maker) -> Turn {
        let mut state = lock(&self.state);
        let mut has_asked = false;
        loop {
            let wanted = state.wanted;
            if let Some(made) = state.ready.remove(&wanted) {
                state.wanted += 1;
                state.n_lent += usize::from(made.is_ok());
                self.changed.notify_all();
                return Turn::Made(wanted, made);
            }
            if state.is_over() {
                return Turn::Over;
            }
            if state.pending.is_some() && state.n_lent == state.n_slots {
                return Turn::NeedsSlot;
            }
            match makes {
                true => match state.next_task(maker) {
                    Some(task) => return Turn::Task(task),
                    None => unreachable!("a maker that is alone always finds something to do"),
                },
                false => {
                    // It has to wait: more of them ahead would have helped.
                    let more = (2 * state.ahead).min(state.most_ahead);
                    if more > state.ahead && !state.jobs.is_empty() {
                        state.ahead = more;
                        self.changed.notify_all();
                    }
                    has_asked = !has_asked;
                    if !has_asked {
                        state = stop::wait(&self.changed, state);
                        continue;
                    }
                    // Whoever is asked may wait for somebody who drops a batch. Then it is looked again before waiting.
                    drop(state);
                    if stop::is_asked_to_stop() {
                        return Turn::Interrupted;
                    }
                    state = lock(&self.state);
                }
            }
        }
    }

    /// Does a task.
    pub fn perform(&self, task: Task, maker: &Maker, scratch: &mut [u8]) {
        match task {
            Task::Pull { cursor, number } => self.pull(cursor, number, maker, scratch),
            Task::Write(chunk) => self.write(chunk, maker, scratch),
        }
        self.changed.notify_all();
    }

    fn pull(&self, cursor: Option<Box<dyn Cursor>>, number: u64, maker: &Maker, scratch: &mut [u8]) {
        let pulled = guarded(|| {
            let mut cursor = match cursor {
                Some(cursor) => cursor,
                None => {
                    let mut cursor = open(&maker.node, maker.epoch, &maker.session);
                    cursor.skip(number, scratch)?;
                    cursor
                }
            };
            Ok((cursor.next(scratch)?, cursor))
        });
        let mut state = lock(&self.state);
        match pulled {
            Ok((Some(item), cursor)) => {
                state.source = Source::Open(cursor);
                state.pending = Some((number, item));
            }
            Ok((None, cursor)) => {
                state.source = Source::Ended;
                drop(state);
                drop(cursor);
            }
            Err(error) => {
                state.source = Source::Ended;
                state.ready.insert(number, Err(maker.at_batch(number, error)));
            }
        }
    }

    fn write(&self, chunk: Chunk, maker: &Maker, scratch: &mut [u8]) {
        let Chunk { number, k, item, rows, mut pieces } = chunk;
        let mut lengths = Vec::new();
        let outline = maker.node.outline(&item);
        let shapes = match maker.session.is_ghost {
            true => Ok(outline),
            false => guarded(|| {
                let parts = pieces.iter_mut().map(Piece::bytes_mut).zip(outline);
                let mut to = ExampleMut::new(maker.node.spec(), parts);
                let mut work = Work { scratch, lengths: &mut lengths };
                maker.node.write(&item, rows, &mut to, &mut work)?;
                Ok(to.shapes())
            }),
        };
        // An item may hold a cell that the next pull counts on.
        drop(item);
        let mut state = lock(&self.state);
        let Some(Some(job)) = state.jobs.get_mut(&number) else {
            unreachable!("a job lasts until it is whole")
        };
        job.chunks[k] = Some(Written { pieces, lengths, shapes });
        job.n_left -= 1;
        if job.n_left > 0 {
            return;
        }
        let Some(job) = state.jobs.get_mut(&number).and_then(Option::take) else {
            unreachable!("it was there")
        };
        drop(state);
        self.finish(number, job, maker);
    }

    /// Puts the chunks of a batch together.
    fn finish(&self, number: u64, job: Job, maker: &Maker) {
        let Job { item, chunks, tails, is_extra, .. } = job;
        let is_whole = chunks.len() == 1;
        let mut lengths = Vec::new();
        let mut shapes = Ok(Shapes::new());
        let mut joined: Vec<Option<Piece>> = tails.iter().map(|_| None).collect();
        for Written { pieces, lengths: more, shapes: of_chunk } in chunks.into_iter().flatten() {
            lengths.extend(more);
            // The first error by row is the one to report, however the rows were cut.
            if shapes.is_ok() {
                shapes = of_chunk;
            }
            for (joined, piece) in joined.iter_mut().zip(pieces) {
                *joined = Some(join(joined.take(), piece));
            }
        }
        let mut pieces: Vec<Piece> =
            joined.into_iter().zip(tails).map(|(joined, tail)| join(joined, tail)).collect();
        let finished = shapes.and_then(|shapes| {
            let shapes = if is_whole { shapes } else { maker.node.outline(&item) };
            if maker.session.is_ghost {
                return Ok(shapes);
            }
            guarded(|| {
                let parts = pieces.iter_mut().map(Piece::bytes_mut).zip(shapes);
                let mut to = ExampleMut::new(maker.node.spec(), parts);
                maker.node.finish(&item, &mut to, &lengths)?;
                Ok(to.shapes())
            })
        });
        drop(item);
        let slot = Slot { pieces, is_extra };
        let mut state = lock(&self.state);
        state.jobs.remove(&number);
        match finished {
            Ok(shapes) => {
                state.ready.insert(number, Ok(Made { slot, shapes: shapes.into_vec() }));
            }
            Err(error) => {
                state.free.push(slot);
                state.ready.insert(number, Err(maker.at_batch(number, error)));
                // Nothing after this one is wanted any more.
                state.source = Source::Ended;
                let pending = state.pending.take();
                drop(state);
                drop(pending);
            }
        }
    }

    /// A slot comes back from the consumer.
    pub fn take_back(&self, slot: Slot) {
        let mut state = lock(&self.state);
        state.n_lent -= 1;
        if state.is_closed || slot.is_extra {
            state.n_slots -= 1;
            drop(state);
            drop(slot);
        } else {
            state.free.push(slot);
        }
        self.changed.notify_all();
    }

    /// The consumer brings a slot.
    pub fn add_slot(&self, slot: Slot) {
        let mut state = lock(&self.state);
        state.n_slots += 1;
        state.free.push(slot);
        self.changed.notify_all();
    }

    /// Lets the makers stop.
    pub fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_all();
    }

    /// Drops everything that is still there; the makers have stopped.
    pub fn clear(&self) {
        let mut state = lock(&self.state);
        state.source = Source::Ended;
        let source =
            (state.pending.take(), std::mem::take(&mut state.chunks), std::mem::take(&mut state.jobs));
        let slots = (std::mem::take(&mut state.free), std::mem::take(&mut state.ready));
        drop(state);
        // Outside the lock, because what users gave may do anything when it is dropped.
        drop((source, slots));
    }
}

impl State {
    fn is_over(&self) -> bool {
        matches!(self.source, Source::Ended)
            && self.pending.is_none()
            && self.jobs.is_empty()
            && self.ready.is_empty()
    }

    /// The next thing that somebody can do.
    fn next_task(&mut self, maker: &Maker) -> Option<Task> {
        if self.chunks.is_empty()
            && let Some(slot) = self.free.pop_if(|_| self.pending.is_some())
            && let Some((number, item)) = self.pending.take()
        {
            self.cut(number, item, slot, maker);
        }
        if let Some(chunk) = self.chunks.pop_front() {
            return Some(Task::Write(chunk));
        }
        let may_pull = self.pending.is_none() && self.jobs.len() + self.ready.len() < self.ahead;
        if !may_pull || matches!(self.source, Source::Busy | Source::Ended) {
            return None;
        }
        let cursor = match std::mem::replace(&mut self.source, Source::Busy) {
            Source::Open(cursor) => Some(cursor),
            _ => {
                debug_assert_eq!(self.next, self.first);
                None
            }
        };
        self.next += 1;
        Some(Task::Pull { cursor, number: self.next - 1 })
    }

    /// Cuts a batch into chunks of rows, one for each worker if they are worth it.
    fn cut(&mut self, number: u64, item: Item, slot: Slot, maker: &Maker) {
        let node = &maker.node;
        let n_fields = slot.pieces.len();
        let row_bytes = |field| node.row_bytes(&item, field);
        let n_rows = node.n_rows(&item);
        let n_chunks = match n_rows {
            Some(n_rows) => {
                let n_bytes = n_rows * (0..n_fields).map(row_bytes).sum::<usize>();
                maker.n_workers.min(n_rows).min(n_bytes / LEAST_CHUNK_BYTES).max(1)
            }
            None => 1,
        };
        let mut rests = slot.pieces;
        let mut cuts = Vec::new();
        for k in 0..n_chunks {
            let rows = n_rows.map_or(0..1, |n| k * n / n_chunks..(k + 1) * n / n_chunks);
            let mut pieces = Vec::with_capacity(n_fields);
            for (field, rest) in rests.iter_mut().enumerate() {
                let n_bytes = n_rows.map_or(rest.n_bytes(), |_| rows.len() * row_bytes(field));
                pieces.push(rest.take_front(n_bytes));
            }
            cuts.push((rows, pieces));
        }
        let item = Arc::new(item);
        for (k, (rows, pieces)) in cuts.into_iter().enumerate() {
            self.chunks.push_back(Chunk { number, k, item: item.clone(), rows, pieces });
        }
        let chunks = (0..n_chunks).map(|_| None).collect();
        let job = Job { item, chunks, n_left: n_chunks, tails: rests, is_extra: slot.is_extra };
        self.jobs.insert(number, Some(job));
    }
}

impl Maker {
    fn at_batch(&self, number: u64, error: Error) -> Error {
        Error::within(format!("batch {number} of epoch {}", self.epoch), error)
    }
}

/// Two neighbours as one, or the second alone.
fn join(first: Option<Piece>, second: Piece) -> Piece {
    match first {
        Some(first) => first.join(second),
        None => second,
    }
}

/// Runs code that may call the user's: a panic becomes an error.
fn guarded<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic_text(&*panic);
        Err(Error::within("a function given to the dataset panicked", text))
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a word".to_owned())
}
