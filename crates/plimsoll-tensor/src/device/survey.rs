//! The survey: who keeps which blocks of a device alive at this moment, as a graph.
//!
//! Every part of the framework that keeps memory beyond a call is a [`Keeper`]: it is listed while it lives, weakly, and tells a
//! survey what it holds when somebody asks. Nothing is noted before that, so that nobody who does not ask pays. What a storage's
//! count of handles has beyond what keepers told are tensors of the user's.
//!
//! The graph is not one of dominators: a slot of a tape goes with its tape *or* with the last tensor that leads to it. So an
//! item lives either as long as any of its holders does or as long as all of them do, and what a drop frees is found by letting
//! it happen to the graph.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use plimsoll_memory::Site;

use crate::device::Device;
use crate::device::handle_lines;
use crate::device::holders::Holder;
use crate::device::storage::Storage;

/// Something that keeps memory alive and can say which.
pub(crate) trait Keeper: Send + Sync {
    /// Tells what it holds. The handle that it is called by is one more than others have.
    fn tell(self: Arc<Self>, survey: &mut Survey<'_>);
}

/// All keepers that were listed and may still be there, with the number of the device. A survey of another device leaves them
/// alone: a handle that it took for a moment would keep from being freed what its last holder drops at that moment.
static KEEPERS: Mutex<Vec<(u64, Weak<dyn Keeper>)>> = Mutex::new(Vec::new());
/// When the list is swept next: as soon as it is twice as long as it was after the last time.
static SWEEP_AT: AtomicUsize = AtomicUsize::new(256);

/// Lists a keeper of memory on `device` for as long as it lives; one that has some on several devices is listed for each.
pub(crate) fn list(device: &Device, keeper: Weak<dyn Keeper>) {
    let mut keepers = KEEPERS.lock().unwrap_or_else(PoisonError::into_inner);
    if keepers.len() >= SWEEP_AT.load(Ordering::Relaxed) {
        keepers.retain(|(_, keeper)| keeper.strong_count() > 0);
        let most = 256.max(2 * keepers.len());
        keepers.shrink_to(most);
        SWEEP_AT.store(most, Ordering::Relaxed);
    }
    keepers.push((device.number(), keeper));
}

/// A block: the number of its device, and that of its acquisition there, in one word, because tapes note many of them. They
/// repeat after 2^20 devices and 2^44 acquisitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockKey(NonZeroU64);

impl BlockKey {
    const SERIAL_BITS: u32 = 44;

    #[inline]
    pub fn new(device: &Device, serial: u64) -> BlockKey {
        let serial = serial & ((1 << BlockKey::SERIAL_BITS) - 1);
        // One more, so that there is no zero, and a key that may be missing takes no more room.
        BlockKey(NonZeroU64::MIN.saturating_add(device.number() << BlockKey::SERIAL_BITS | serial))
    }

    /// The number of the acquisition, if the block is one of that device.
    pub fn serial_on(self, device: &Device) -> Option<u64> {
        let key = self.0.get() - 1;
        let first = BlockKey::new(device, 0).0.get() - 1;
        (key >> BlockKey::SERIAL_BITS == first >> BlockKey::SERIAL_BITS)
            .then_some(key & ((1 << BlockKey::SERIAL_BITS) - 1))
    }
}

/// A part of a program that keeps memory alive, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HolderKind {
    /// Tensors in your code.
    Handles,
    /// A variable.
    Variable,
    /// A variable of an optimizer.
    Optimizer,
    /// A gradient tape, by a slot for backward.
    Tape,
    /// A recorded program, by a tensor from outside that it uses.
    Program,
    /// The input pipeline, or whatever else was read of a dataset.
    Pipeline,
    /// An update of a variable that waits for the end of its step.
    Update,
    /// The evictor, which will recompute a value from it.
    Evictor,
    /// An op that runs at this moment, on another thread.
    Kernel,
}

/// The number of an item of a survey.
pub(crate) type Item = usize;

/// When an item goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lives {
    /// With the last of its holders; one that has none is dropped by whoever has it.
    WithAny,
    /// With the first of its holders.
    WithAll,
}

/// What an item is.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A block of the device, by the number of its acquisition.
    Block(u64),
    /// Somebody who can let go, how it is called, and an address by which it is found, if there is one.
    Holder(HolderKind, String, usize),
    /// A link between holders and blocks: a node, a slot, a logged value. What it is for, if that is worth saying.
    Link(Option<HolderKind>, &'static str),
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub what: What,
    pub lives: Lives,
    pub holders: Vec<Item>,
    /// For a link with a count of handles, what that is.
    n_strong: usize,
    n_told: usize,
}

/// How the value of a block was computed.
pub(crate) struct Computation {
    pub op: &'static str,
    pub site: Site,
    /// Whether it may be run again at all.
    pub repeats: bool,
    pub nanoseconds: u64,
    /// The blocks that were read, with how often each had been overwritten; none for one that the op wrote over.
    pub inputs: Vec<Option<(BlockKey, u32)>>,
}

/// A storage that somebody told of.
struct Seen {
    serial: u64,
    is_lent: bool,
    /// What the storage itself counts: all handles, and those of the framework.
    n_strong: usize,
    n_held: [usize; Holder::COUNT],
    n_told: [usize; Holder::COUNT],
}

/// What keepers tell.
pub(crate) struct Survey<'a> {
    device: &'a Device,
    /// Whether it waits for keepers that are locked.
    waits: bool,
    /// How many keepers were not asked, because they were locked.
    pub(super) n_unasked: usize,
    pub(super) entries: Vec<Entry>,
    links: HashMap<(&'static str, u64), Item>,
    blocks: HashMap<u64, Item>,
    storages: HashMap<usize, Seen>,
    /// For blocks that are lent in pieces, how many pieces tensors have.
    n_lent: HashMap<u64, usize>,
    pub(super) computations: HashMap<u64, Computation>,
    /// How often storages of blocks have been overwritten.
    pub(super) n_overwrites: HashMap<u64, u32>,
    /// The tensors in the user's code, where they are counted.
    pub(super) n_handles: HashMap<u64, usize>,
    /// Blocks that tensors of the user's hold.
    handles: HashMap<u64, Item>,
    /// Links that tensors in a block keep, if they have handles of which nobody tells.
    rests: Vec<(BlockKey, Item)>,
}

impl<'a> Survey<'a> {
    /// Asks all keepers of the device. In the middle of an op it must not wait for those that are locked, because it may be
    /// this thread that has locked them; they are left out then.
    pub fn of(device: &'a Device, waits: bool) -> Survey<'a> {
        let mut survey = Survey {
            device,
            waits,
            n_unasked: 0,
            entries: Vec::new(),
            links: HashMap::new(),
            blocks: HashMap::new(),
            storages: HashMap::new(),
            n_lent: HashMap::new(),
            computations: HashMap::new(),
            n_overwrites: HashMap::new(),
            n_handles: HashMap::new(),
            handles: HashMap::new(),
            rests: Vec::new(),
        };
        let keepers: Vec<Arc<dyn Keeper>> = {
            let keepers = KEEPERS.lock().unwrap_or_else(PoisonError::into_inner);
            let here = keepers.iter().filter(|(number, _)| *number == device.number());
            here.filter_map(|(_, keeper)| keeper.upgrade()).collect()
        };
        keepers.into_iter().for_each(|keeper| keeper.tell(&mut survey));
        survey
    }

    /// The device whose blocks are looked at.
    pub fn device(&self) -> &Device {
        self.device
    }

    /// Locks what a keeper tells of; nothing if it is locked already and must not be waited for.
    pub fn lock<'g, T>(&mut self, told_of: &'g Mutex<T>) -> Option<MutexGuard<'g, T>> {
        match told_of.try_lock() {
            Ok(locked) => Some(locked),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if self.waits => {
                Some(told_of.lock().unwrap_or_else(PoisonError::into_inner))
            }
            Err(TryLockError::WouldBlock) => {
                self.n_unasked += 1;
                None
            }
        }
    }

    fn add(&mut self, what: What, lives: Lives) -> Item {
        let entry = Entry { what, lives, holders: Vec::new(), n_strong: 0, n_told: 0 };
        self.entries.push(entry);
        self.entries.len() - 1
    }

    /// Somebody who can let go.
    pub fn holder(&mut self, kind: HolderKind, name: impl Into<String>) -> Item {
        self.add(What::Holder(kind, name.into(), 0), Lives::WithAny)
    }

    /// Somebody who can let go, and can be found by an address.
    pub fn holder_at<T>(&mut self, kind: HolderKind, name: String, keeper: &Arc<T>) -> Item {
        self.add(What::Holder(kind, name, Arc::as_ptr(keeper) as usize), Lives::WithAny)
    }

    /// The link of a kind and number, which may have been told of before.
    pub fn link(&mut self, kind: &'static str, number: u64) -> Item {
        if let Some(&known) = self.links.get(&(kind, number)) {
            return known;
        }
        let link = self.add(What::Link(None, kind), Lives::WithAny);
        self.links.insert((kind, number), link);
        link
    }

    /// A link that lives as long as all of `holders`; `what` says what it is for.
    pub fn link_of_all(&mut self, kind: HolderKind, what: &'static str, holders: [Item; 2]) -> Item {
        let link = self.add(What::Link(Some(kind), what), Lives::WithAll);
        self.entries[link].holders.extend(holders);
        link
    }

    /// What a link holds for a purpose of its own.
    pub fn link_for(&mut self, kind: HolderKind, what: &'static str, holder: Item) -> Item {
        let link = self.add(What::Link(Some(kind), what), Lives::WithAny);
        self.entries[link].holders.push(holder);
        link
    }

    /// A link has so many handles in all: those that nobody tells of are held by somebody unknown.
    pub fn counts(&mut self, link: Item, n_strong: usize) {
        self.entries[link].n_strong = n_strong;
    }

    /// A holder or link keeps another link alive, by so many handles.
    pub fn holds_link(&mut self, holder: Item, link: Item, n_handles: usize) {
        self.entries[link].n_told += n_handles;
        self.entries[link].holders.push(holder);
    }

    /// A holder or link keeps a storage alive.
    pub fn holds(&mut self, holder: Item, storage: &Arc<Storage>, by: Holder) {
        let Some(serial) = storage.key().and_then(|key| key.serial_on(self.device)) else { return };
        let block = self.block(serial);
        self.entries[block].holders.push(holder);
        self.n_overwrites.insert(serial, storage.n_overwrites());
        let seen = self.storages.entry(Arc::as_ptr(storage) as usize).or_insert_with(|| Seen {
            serial,
            is_lent: storage.is_lent(),
            n_strong: Arc::strong_count(storage),
            n_held: storage.n_held(),
            n_told: Default::default(),
        });
        seen.n_told[by as usize] += 1;
    }

    /// A block that is carved and lent: somebody has the rest, if there is any, and tensors have so many pieces.
    pub fn carved(&mut self, key: BlockKey, holder: Option<(HolderKind, &'static str)>, n_lent: usize) {
        let Some(serial) = key.serial_on(self.device) else { return };
        let block = self.block(serial);
        if let Some((kind, name)) = holder {
            let holder = self.holder(kind, name);
            self.entries[block].holders.push(holder);
        }
        self.n_lent.insert(serial, n_lent);
    }

    /// Tensors in a block keep a link alive, by all handles that nobody else tells of.
    pub fn handles_keep_the_rest(&mut self, key: BlockKey, link: Item) {
        self.rests.push((key, link));
    }

    /// Tensors in a block, so many of them, keep a link alive.
    pub fn handles_keep(&mut self, key: BlockKey, link: Item, n_handles: usize) {
        match key.serial_on(self.device) {
            Some(serial) => {
                let handles = self.handles_of(serial);
                self.holds_link(handles, link, n_handles);
            }
            None => {
                let elsewhere = self.holder(HolderKind::Handles, "tensors on another device");
                self.holds_link(elsewhere, link, n_handles);
            }
        }
    }

    /// How the value of a block was computed; what is told last is true.
    pub fn computed(&mut self, key: BlockKey, computation: Computation) {
        if let Some(serial) = key.serial_on(self.device) {
            self.computations.insert(serial, computation);
        }
    }

    pub(super) fn block(&mut self, serial: u64) -> Item {
        if let Some(&known) = self.blocks.get(&serial) {
            return known;
        }
        let block = self.add(What::Block(serial), Lives::WithAny);
        self.blocks.insert(serial, block);
        block
    }

    /// The tensors of the user's in a block.
    pub(super) fn handles_of(&mut self, serial: u64) -> Item {
        if let Some(&known) = self.handles.get(&serial) {
            return known;
        }
        let handles = self.holder(HolderKind::Handles, "your code");
        let block = self.block(serial);
        self.entries[block].holders.push(handles);
        self.handles.insert(serial, handles);
        handles
    }

    /// Everything was told: what counts have beyond it is the user's, or somebody's of whom only the kind is known.
    pub(super) fn complete(&mut self) {
        let mut n_lent = std::mem::take(&mut self.n_lent);
        for seen in std::mem::take(&mut self.storages).into_values() {
            let n_held: usize = seen.n_held.iter().sum();
            let n_handles = seen.n_strong.saturating_sub(n_held);
            match n_lent.get_mut(&seen.serial).filter(|_| seen.is_lent) {
                // Counted as one piece that is lent, whoever holds the tensor over it.
                Some(n_lent) => *n_lent = (*n_lent + n_handles).saturating_sub(1),
                None => *self.n_handles.entry(seen.serial).or_default() += n_handles,
            }
            for (by, (n_held, n_told)) in std::iter::zip(seen.n_held, seen.n_told).enumerate() {
                if n_held > n_told {
                    let (kind, name) = Holder::ALL[by].described();
                    let (holder, block) = (self.holder(kind, name), self.block(seen.serial));
                    self.entries[block].holders.push(holder);
                }
            }
        }
        n_lent.into_iter().for_each(|(serial, n_lent)| *self.n_handles.entry(serial).or_default() += n_lent);
        let counted: Vec<u64> =
            self.n_handles.iter().filter(|(_, n)| **n > 0).map(|(&serial, _)| serial).collect();
        counted.into_iter().for_each(|serial| _ = self.handles_of(serial));
        for (key, link) in std::mem::take(&mut self.rests) {
            let Entry { n_strong, n_told, .. } = self.entries[link];
            if n_strong > n_told {
                self.handles_keep(key, link, n_strong - n_told);
            }
        }
        for link in 0..self.entries.len() {
            if self.entries[link].n_strong > self.entries[link].n_told {
                let elsewhere = self.holder(HolderKind::Handles, "handles that nobody told of");
                self.entries[link].holders.push(elsewhere);
            }
        }
    }

    /// The lines of handles, by block, if they are noted.
    pub(super) fn handle_lines(&self) -> HashMap<u64, Vec<Site>> {
        handle_lines::on(self.device)
    }
}

/// What goes when `dropped` lets go: the items of blocks, and whatever else.
pub(crate) fn drop_from(entries: &[Entry], dropped: impl IntoIterator<Item = Item>) -> HashSet<Item> {
    let mut held: Vec<Vec<Item>> = vec![Vec::new(); entries.len()];
    let mut n_alive: Vec<usize> = vec![0; entries.len()];
    for (item, entry) in entries.iter().enumerate() {
        let mut holders = entry.holders.clone();
        holders.sort_unstable();
        holders.dedup();
        n_alive[item] = holders.len();
        holders.into_iter().for_each(|holder| held[holder].push(item));
    }
    let mut gone: HashSet<Item> = HashSet::new();
    let mut open: Vec<Item> = dropped.into_iter().collect();
    while let Some(item) = open.pop() {
        if !gone.insert(item) {
            continue;
        }
        for &next in &held[item] {
            n_alive[next] -= 1;
            if n_alive[next] == 0 || entries[next].lives == Lives::WithAll {
                open.push(next);
            }
        }
    }
    gone
}
