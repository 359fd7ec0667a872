//! The public handle: pools, blocks and the scopes that watch them.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::limit::Limit;
use crate::map::Refusal;
use crate::state::{BlockId, Grant, State};
use crate::sync::{Arc, Mutex, MutexGuard, current_thread, lock};
use crate::{
    BlockInfo, Bytes, GhostPages, Label, LongList, Name, OUT_OF_MEMORY, OffsetPlan, OutOfMemory, Owner,
    Region, Site, Snapshot, Source, Stats, TraceEvent, TraceSink, Work, rounded_size,
};

/// How often in a row the reclaim hook may say that trying again makes sense without having released a block.
const N_FRUITLESS: u32 = 16;

/// A pool of memory over one source of pages. Clones are handles to the same pool.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    source: Box<dyn Source>,
    /// The first address of each region; null for ghosts.
    bases: [Base; 3],
    state: Mutex<State>,
    reclaim: Mutex<Option<StdArc<dyn Reclaim>>>,
    /// Whether somebody is told of events. Nothing hangs on the order in which it is seen.
    has_sink: AtomicBool,
    /// Whether each block lies between fences, away from the regions.
    #[cfg(feature = "testing")]
    is_fenced: bool,
}

/// The first address of a region.
#[derive(Clone, Copy)]
struct Base(*mut u8);

// SAFETY: an address; what may be done with it is up to the blocks, each of which covers bytes of its own.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

/// Releases memory when an acquisition would fail: the guard's way into the pool.
pub trait Reclaim: Send + Sync {
    /// Drops blocks worth at least `need` bytes if it can; returns whether trying again makes sense.
    ///
    /// Called with the pool's lock released, on the thread whose acquisition failed. The acquisition is tried
    /// again after every `true`, for as long as blocks are released; where what was released lies in pieces, each call asks
    /// for twice as much as the one before. It may drop blocks of the pool and read its counters;
    /// it should not acquire from the same pool, because that could lead back here.
    fn reclaim(&self, need: Bytes) -> bool;
}

impl Pool {
    /// A pool over a source of pages, with no limit and nothing committed.
    pub fn new(source: impl Source + 'static) -> Self {
        let state = State::new(&source);
        Self::with_state(Box::new(source), state)
    }

    fn with_state(source: Box<dyn Source>, state: State) -> Self {
        let bases = Region::ALL.map(|region| Base(source.base(region)));
        let (state, reclaim) = (Mutex::new(state), Mutex::new(None));
        Self {
            shared: Arc::new(Shared {
                source,
                bases,
                state,
                reclaim,
                has_sink: AtomicBool::new(false),
                #[cfg(feature = "testing")]
                is_fenced: false,
            }),
        }
    }

    /// This pool, of which nobody else has a handle yet, with a fence at the end of every block.
    #[cfg(feature = "testing")]
    pub(crate) fn with_fences(mut self) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.is_fenced = true;
        }
        self
    }

    /// A pool over ghost pages that begins as a copy of this one: map, live blocks, counters and limit.
    ///
    /// The copied blocks stay where they are and are never released; what a step would do here can be asked
    /// there, and is answered with the same offsets and numbers. Blocks that wait for the end of this thread's open
    /// step are released in the copy, which has no step open, no trace running and no reclaim hook; what steps of
    /// other threads hold or have set aside stays held.
    pub fn ghost(&self) -> Pool {
        self.ghost_over(GhostPages::like(self.source()))
    }

    /// A ghost as from [`ghost`](Pool::ghost) whose regions have more addresses than any device, so that it also answers
    /// what a step far beyond this pool's memory would need. Blocks go to the same offsets, and a limit refuses the same.
    pub fn unbounded_ghost(&self) -> Pool {
        self.ghost_over(GhostPages::unbounded_like(self.source()))
    }

    fn ghost_over(&self, pages: GhostPages) -> Pool {
        let state = self.lock().ghost(&pages, current_thread());
        Self::with_state(Box::new(pages), state)
    }

    /// On a ghost, frees the copy of a block of the pool that the ghost was made from, as if it had been dropped before. A
    /// block that the ghost has no copy of is left alone.
    pub fn release_copy_of(&self, block: &Block) {
        let serial = block.serial();
        let mut state = self.lock();
        if self.is_ghost() && !Arc::ptr_eq(&self.shared, &block.shared) {
            state.release_copy(self.source(), block.id, serial);
        }
    }

    /// Whether there is no memory behind the pool's numbers.
    pub fn is_ghost(&self) -> bool {
        self.shared.source.is_ghost()
    }

    /// A block of `bytes`, aligned to 512, in the region of the label's owner. Its contents are undefined.
    ///
    /// A block of zero bytes is a block like any other that takes no memory.
    ///
    /// # Errors
    ///
    /// When the block cannot be had; the report says why and who holds the memory. The pool's blocks are then
    /// as before.
    pub fn acquire(&self, bytes: usize, label: Label) -> Result<Block, OutOfMemory> {
        self.acquire_in(label.owner.region(), bytes, label)
    }

    /// A block as from [`acquire`](Pool::acquire), in a region of the caller's choice.
    ///
    /// # Errors
    ///
    /// As for `acquire`.
    pub fn acquire_in(&self, region: Region, bytes: usize, label: Label) -> Result<Block, OutOfMemory> {
        let thread = current_thread();
        let (mut n_fruitless, mut n_released, mut last_need, mut factor) = (0, None, u64::MAX, 1u64);
        loop {
            let refusal = match self.lock().acquire(self.source(), region, bytes as u64, label, thread) {
                Ok(Grant { id, serial, rounded, region, offset }) => {
                    return Ok(Block {
                        shared: self.shared.clone(),
                        id,
                        serial,
                        region,
                        bytes,
                        rounded,
                        offset,
                        #[cfg(feature = "testing")]
                        fenced: self.fence(bytes, label),
                    });
                }
                Err(refusal) => refusal,
            };
            let need = match refusal {
                Refusal::Limit { short } => short,
                Refusal::Addresses | Refusal::Source(_) => rounded_size(bytes as u64),
            };
            let before = n_released.replace(self.stats().n_released);
            n_fruitless = if before == n_released { n_fruitless + 1 } else { 0 };
            // What was released and is still short lies in pieces.
            factor = if need < last_need { 1 } else { factor.saturating_mul(2) };
            last_need = need;
            if n_fruitless == N_FRUITLESS || !self.reclaim(Bytes::new(need.saturating_mul(factor))) {
                let mut state = self.lock();
                state.tell(TraceEvent::Mark { name: OUT_OF_MEMORY, number: bytes as u64 });
                let shortage = state.shortage(refusal, region, bytes as u64, label);
                drop(state);
                return Err(OutOfMemory::new(shortage));
            }
        }
    }

    /// The place of a block of a fenced pool.
    #[cfg(feature = "testing")]
    fn fence(&self, bytes: usize, label: Label) -> Option<crate::fence::Fenced> {
        self.shared
            .is_fenced
            .then(|| crate::fence::Fenced::new(bytes, label).expect("a test's machine has addresses"))
    }

    fn reclaim(&self, need: Bytes) -> bool {
        let hook = lock(&self.shared.reclaim).clone();
        hook.is_some_and(|hook| hook.reclaim(need))
    }

    /// Installs or removes the hook that releases memory when an acquisition would fail.
    ///
    /// A hook that owns blocks or handles of this pool keeps it alive until the hook is removed.
    pub fn set_reclaim(&self, hook: Option<StdArc<dyn Reclaim>>) {
        let old = std::mem::replace(&mut *lock(&self.shared.reclaim), hook);
        // Dropped with no lock held: the old hook may hold blocks.
        drop(old);
    }

    /// What committed bytes are a multiple of.
    pub fn granule(&self) -> u64 {
        self.source().granule()
    }

    /// The limit on committed bytes.
    pub fn limit(&self) -> Option<Bytes> {
        self.lock().map.limit.bytes.map(Bytes::new)
    }

    /// The most bytes that it may commit: the limit without what is set aside.
    pub fn capacity(&self) -> Option<Bytes> {
        self.lock().map.limit.capacity().map(Bytes::new)
    }

    /// The least limit that leaves so much capacity, with what is set aside now.
    pub fn limit_for(&self, capacity: u64) -> u64 {
        self.lock().map.limit.for_capacity(capacity)
    }

    /// Sets or lifts the limit on committed bytes. Lowering it gives free granules back at once.
    ///
    /// # Errors
    ///
    /// When what is in use does not fit: the report lists the holders, and the old limit stays.
    pub fn set_limit(&self, limit: Option<Bytes>) -> Result<(), OutOfMemory> {
        let mut state = self.lock();
        let limit = Limit { bytes: limit.map(Bytes::get), ..state.map.limit };
        state.set_limit(self.source(), limit)
    }

    /// Sets a part of the limit aside for memory that others take of the same device: at most so many bytes, and at most a
    /// 64th of the limit, but no less than what they have taken.
    ///
    /// # Errors
    ///
    /// When what is in use does not fit beside it; then what was set aside before stays so.
    pub fn set_aside(&self, taken: u64, most: u64) -> Result<(), OutOfMemory> {
        let mut state = self.lock();
        let limit = Limit { least_aside: taken, most_aside: most.max(taken), ..state.map.limit };
        state.set_limit(self.source(), limit)
    }

    /// The bytes that are set aside.
    pub fn aside(&self) -> u64 {
        self.lock().map.limit.aside()
    }

    /// The counters at this moment.
    pub fn stats(&self) -> Stats {
        self.lock().stats()
    }

    /// The bytes that no other step can have at this moment: those in use, and those that open steps have set aside for
    /// their plans.
    pub fn held(&self) -> u64 {
        self.lock().held()
    }

    /// Every live block at this moment.
    pub fn snapshot(&self) -> Snapshot {
        self.lock().snapshot()
    }

    /// Shows every live block at this moment, in no order, without making a list of them. The pool is locked meanwhile.
    pub fn each_block(&self, see: impl FnMut(&BlockInfo)) {
        self.lock().each_block(see);
    }

    /// Watches the most that is in use from now on until the scope is dropped. Scopes nest and overlap.
    pub fn peak_scope(&self) -> PeakScope {
        let number = self.lock().ledger.open_scope();
        PeakScope { pool: self.clone(), number }
    }

    /// Forgets the peaks so far: they begin again at what is in use and committed now.
    pub fn reset_peaks(&self) {
        self.lock().reset_peaks();
    }

    /// Gives every free granule back to the source and returns how many bytes that was. What an open step has
    /// set aside for its plan is not free.
    pub fn trim(&self) -> u64 {
        self.lock().map.release_free(self.source())
    }

    /// Keeps the pages of a pool that becomes empty, until the scope is dropped: for a pool that is filled and emptied
    /// again and again, and whose pages are dear. Disposing of a model, a limit and `trim` give them back all the same.
    pub fn keep_pages(&self) -> KeptPages {
        self.lock().keep_pages();
        KeptPages { pool: self.clone() }
    }

    /// Begins a step issued by this thread. Until the scope is dropped, blocks that this thread acquired and others drop
    /// wait: they join the free list, in the order of their acquisition, when the step ends.
    ///
    /// A step begun inside another one is part of it. Other threads may have steps open at the same time; each ends on its
    /// own.
    pub fn begin_step(&self) -> StepScope {
        self.lock().begin_step(current_thread());
        StepScope { pool: self.clone(), on_its_thread: PhantomData }
    }

    /// Begins a step whose k-th acquisition in the step region goes where the plan says.
    ///
    /// The plan's range is taken here, at the place where a block of its size would go. What has no pages there is
    /// committed at once, in exchange for free pages elsewhere in the region. A block whose place is still held by another goes elsewhere, by best fit.
    /// From the first acquisition that has another size on, or when memory runs short, the rest of the step is
    /// placed by best fit, with what is free in the range. Where there is no room for the range, and where a
    /// step is open already, the plan is not followed at all; [`StepScope::on_plan`] says so.
    pub fn begin_planned_step(&self, plan: &OffsetPlan) -> StepScope {
        self.lock().begin_planned_step(self.source(), plan, current_thread());
        StepScope { pool: self.clone(), on_its_thread: PhantomData }
    }

    /// Begins to record what the pool is asked for; a trace that is running is thrown away.
    pub fn start_trace(&self) {
        self.lock().tracing().start();
    }

    /// Whether a sink is there. It costs nothing to ask.
    #[inline]
    pub fn has_sink(&self) -> bool {
        self.shared.has_sink.load(Ordering::Relaxed)
    }

    /// Whether anybody wants to be told of [work](Pool::mark_work): a sink, or on a ghost a trace.
    #[inline]
    pub fn wants_work(&self) -> bool {
        self.has_sink() || self.is_ghost() && self.lock().tracing().is_on()
    }

    /// Ends the trace and returns it; empty if none was running.
    pub fn take_trace(&self) -> LongList<TraceEvent> {
        self.lock().tracing().take()
    }

    /// Tells `sink` of every event from now on, whether or not a trace is running: for whoever would have to keep the
    /// trace of a long run otherwise. It is called with the pool locked, so it must not call the pool.
    pub fn set_trace_sink(&self, sink: Option<TraceSink>) {
        let mut state = self.lock();
        self.shared.has_sink.store(sink.is_some(), Ordering::Relaxed);
        state.tracing().set_sink(sink);
    }

    /// Like [`Pool::set_trace_sink`], with a sink that is made for the blocks and figures of the very moment from which on it
    /// is told of events.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn set_trace_sink_from<E>(
        &self,
        make: impl FnOnce(&Snapshot, &Stats) -> Result<TraceSink, E>,
    ) -> Result<(), E> {
        let mut state = self.lock();
        let sink = make(&state.snapshot(), &state.stats())?;
        self.shared.has_sink.store(true, Ordering::Relaxed);
        state.tracing().set_sink(Some(sink));
        Ok(())
    }

    /// Notes in the trace that something begins here, such as a pass backward; without one it does nothing. A name that is
    /// not a constant is made by [`Name::intern`].
    pub fn mark(&self, name: impl Into<Name>, number: u64) {
        self.lock().mark(name.into(), number);
    }

    /// Tells the sink, and notes in the trace of a ghost, that an op runs here; without them it does nothing.
    pub fn mark_work(&self, work: &Work<'_>) {
        self.lock().mark_work(work, self.is_ghost());
    }

    /// Tells the sink, if there is one, who keeps blocks alive: the number of each, who, and what goes with them.
    pub fn tell_held(&self, held: impl IntoIterator<Item = (u64, Name, u64)>) {
        let mut state = self.lock();
        for (serial, by, frees) in held {
            state.tell(TraceEvent::Held { serial, by, frees });
        }
        state.tell(TraceEvent::Flush);
    }

    /// Tells the sink, if there is one, that memory for so many bytes could not be had: for whoever refuses work before the
    /// pool is asked for a block of it.
    pub fn mark_shortage(&self, bytes: u64) {
        self.lock().tell(TraceEvent::Mark { name: OUT_OF_MEMORY, number: bytes });
    }

    /// A number that stands for everything on which the pool's answers depend: the map, the live blocks with their owners,
    /// the limit. Two pools, or one at two moments, with the same number answer the same requests alike, place by
    /// place, whatever happened before. It means nothing outside this process.
    pub fn fingerprint(&self) -> u64 {
        self.lock().fingerprint()
    }

    pub(crate) fn source(&self) -> &dyn Source {
        &*self.shared.source
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.shared.state)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.stats();
        f.debug_struct("Pool")
            .field("is_ghost", &self.is_ghost())
            .field("in_use", &stats.in_use)
            .field("committed", &stats.committed)
            .field("limit", &stats.limit)
            .finish()
    }
}

/// A piece of a pool's memory, released when dropped, from any thread.
///
/// A block is the only handle to its bytes, but hands out a raw pointer: who may read and write them is up to
/// its owner.
pub struct Block {
    shared: Arc<Shared>,
    id: BlockId,
    serial: u64,
    region: Region,
    bytes: usize,
    rounded: u64,
    offset: u64,
    /// Where the block lies if its pool has fences.
    #[cfg(feature = "testing")]
    fenced: Option<crate::fence::Fenced>,
}

impl Block {
    /// The address of the first byte, a multiple of 512; null on ghosts. Valid for [`rounded`](Block::rounded)
    /// bytes for as long as the block lives.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        #[cfg(feature = "testing")]
        if let Some(fenced) = &self.fenced {
            return fenced.as_ptr();
        }
        // Ghosts keep their null; addresses stay inside the region that the source reserved.
        let base = self.shared.bases[self.region as usize].0;
        if base.is_null() { base } else { base.wrapping_add(self.offset as usize) }
    }

    /// The bytes asked for.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes taken: the next multiple of 512, and nothing for zero bytes.
    #[inline]
    pub fn rounded(&self) -> usize {
        self.rounded as usize
    }

    /// The region the block lies in.
    pub fn region(&self) -> Region {
        self.region
    }

    /// The offset of the first byte in its region.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The number of its acquisition, by which traces and snapshots name the block.
    #[inline]
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// What the block is for and which line asked for it.
    pub fn label(&self) -> Label {
        let state = lock(&self.shared.state);
        let info = state.info(self.id);
        Label::new(info.owner, info.site)
    }

    /// Gives the block to another owner: the rows move by exactly its bytes, its place stays.
    pub fn relabel(&self, owner: Owner) {
        lock(&self.shared.state).relabel(self.id, |label| label.owner = owner);
    }

    /// Says that another line is to be named as the block's maker.
    pub fn set_site(&self, site: Site) {
        lock(&self.shared.state).relabel(self.id, |label| label.site = site);
    }

    /// The pool that the block came from.
    pub fn pool(&self) -> Pool {
        Pool { shared: self.shared.clone() }
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        #[cfg(feature = "testing")]
        if let Some(fenced) = self.fenced.take() {
            fenced.quarantine();
        }
        lock(&self.shared.state).drop_block(&*self.shared.source, self.id, current_thread);
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("bytes", &self.bytes)
            .field("region", &self.region)
            .field("offset", &self.offset)
            .field("label", &self.label())
            .finish()
    }
}

/// An open step; dropping it ends the step. It stays on the thread that opened it.
#[derive(Debug)]
#[must_use = "the step ends when this is dropped"]
pub struct StepScope {
    pool: Pool,
    on_its_thread: PhantomData<*const ()>,
}

impl StepScope {
    /// Whether this is a planned step and has not left its plan.
    pub fn on_plan(&self) -> bool {
        self.pool.lock().on_plan(current_thread())
    }
}

impl Drop for StepScope {
    fn drop(&mut self) {
        self.pool.lock().end_step(self.pool.source(), current_thread());
    }
}

/// Keeps the pages of an empty pool; dropping it gives them back.
#[derive(Debug)]
#[must_use = "the pages are kept until this is dropped"]
pub struct KeptPages {
    pool: Pool,
}

impl Drop for KeptPages {
    fn drop(&mut self) {
        self.pool.lock().stop_keeping(self.pool.source());
    }
}

/// Watches the most that is in use since it was opened.
#[derive(Debug)]
#[must_use = "the peak is watched until this is dropped"]
pub struct PeakScope {
    pool: Pool,
    number: usize,
}

impl PeakScope {
    /// The most bytes in use at any moment since the scope was opened.
    pub fn peak(&self) -> u64 {
        self.pool.lock().ledger.scope_peak(self.number)
    }
}

impl Drop for PeakScope {
    fn drop(&mut self) {
        self.pool.lock().ledger.close_scope(self.number);
    }
}
