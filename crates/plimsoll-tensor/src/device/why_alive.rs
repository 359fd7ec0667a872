//! `device.why_alive()`: what keeps each byte in use alive, what would be freed by whom, and what getting it back would cost.
//!
//! Each block of the pool is in one row, with its bytes as the pool rounds them, so the rows add up to the bytes in use. What
//! a drop frees is not computed from the rows: it is simulated on the graph of holders (see `survey`), in which a slot of a tape
//! goes with its tape or with the last tensor that leads to it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use plimsoll_memory::{BlockInfo, Bytes, Name, Owner, Price, Site};

use crate::device::Device;
use crate::device::offload_store::MIN_OFFLOADED_BYTES;
use crate::device::storage::Storage;
use crate::device::survey::{Entry, HolderKind, Item, Lives, Survey, What, drop_from};

/// For so many sets of holders, those with the most bytes, a recording is told what goes with them. Of others it is the block alone.
const MOST_DROPS: usize = 256;

/// Of so many handles the names are in a row.
const MAX_NAMES: usize = 3;

/// Somebody who keeps memory alive, in one [`WhyAlive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HolderId(Item);

/// One of those that keep a block alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBy {
    /// Who it is, for [`WhyAlive::freed_by`].
    pub holder: HolderId,
    /// What kind of holder it is.
    pub kind: HolderKind,
    /// Its name: a variable's, the line of a tape.
    pub name: String,
    /// What it is held for, such as the op whose backward reads it; empty if there is nothing to say.
    pub purpose: &'static str,
}

/// A block that is alive, and why.
#[derive(Clone, Debug)]
pub struct AliveBlock {
    /// What the block is for, which line made it, and how many bytes it takes.
    pub block: BlockInfo,
    /// Who keeps it alive.
    pub held_by: Vec<HeldBy>,
    /// How many tensors in your code do, views included; none where only they do, so that nobody has counted them.
    pub n_handles: Option<usize>,
    /// The lines that made or cloned these tensors, while [`trace_handles`](crate::trace_handles) is on.
    pub handle_lines: Vec<Site>,
    /// Who has these tensors in a language that embeds the framework: what [`WhyAlive::name_handle`] was told.
    pub handle_names: Vec<String>,
    /// What having its value again would take.
    pub price: Price,
}

/// Blocks with the same owner, line and holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliveRow {
    /// What they are for.
    pub owner: Owner,
    /// Which line made them.
    pub site: Site,
    /// Who keeps them alive.
    pub holders: String,
    /// The bytes they take, rounding included.
    pub bytes: u64,
    /// How many they are.
    pub blocks: u64,
    /// What having them again would take, if all of them can be recomputed.
    pub nanoseconds: Option<u64>,
    /// Why one of them cannot be recomputed.
    pub why_not: Option<String>,
}

/// What a drop would free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freed {
    /// The bytes, rounding included: by so many the bytes in use fall.
    pub bytes: u64,
    /// The blocks, by the numbers of their acquisitions, oldest first.
    pub blocks: Vec<u64>,
}

/// What keeps the bytes of a device alive at one moment.
pub struct WhyAlive {
    device: Device,
    entries: Vec<Entry>,
    blocks: Vec<AliveBlock>,
    /// The bytes of values that wait outside the device.
    offloaded: u64,
    /// How long offloading a byte takes, in nanoseconds, where the device may offload.
    offload_rate: Option<f64>,
}

impl Device {
    /// What keeps each byte in use alive: framework holders by name, tensors in your code, and the price of freeing it. While a
    /// profile is recorded, the answer is noted in it, too.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, GradientTape, HolderKind, Tensor, Variable};
    ///
    /// let device = Device::separate_cpu();
    /// let _on = device.enter();
    /// let w = Variable::new(Tensor::ones([1000])?).named("w");
    /// let tape = GradientTape::new();
    /// let y = tape.record(|| w.sin()?.exp())?;
    ///
    /// let why = device.why_alive();
    /// assert_eq!(why.in_use(), device.stats().in_use);
    /// let saved = why.of(&y).expect("y is alive");
    /// assert_eq!(saved.held_by.iter().map(|by| by.kind).collect::<Vec<_>>(), [HolderKind::Tape, HolderKind::Handles]);
    ///
    /// // Dropping the tape frees nothing, because y is still there. Dropping y does: its slot goes with its last tensor.
    /// let [of_tape, of_handles] = [saved.held_by[0].holder, saved.held_by[1].holder];
    /// assert_eq!(why.freed_by([of_tape]).bytes, 0);
    /// assert_eq!(why.freed_by([of_handles]).bytes, 4096);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    #[doc(alias("memory_snapshot", "get_referrers"))]
    pub fn why_alive(&self) -> WhyAlive {
        self.asked(Survey::of(self, true))
    }

    /// Tells whoever records the pool who keeps what is in it alive at the moment at which memory could not be had: afterwards
    /// much of it is gone. `running` are the blocks that the program has which runs now, and how that is called.
    #[cold]
    pub(crate) fn tell_holders(&self, running: Option<(String, Vec<u64>)>) {
        let mut survey = Survey::of(self, false);
        if let Some((program, serials)) = running {
            let program = survey.holder(HolderKind::Program, program);
            for serial in serials {
                let block = survey.block(serial);
                survey.entries[block].holders.push(program);
            }
        }
        drop(self.asked(survey));
    }

    /// What follows from what keepers have told.
    fn asked(&self, mut survey: Survey<'_>) -> WhyAlive {
        survey.complete();
        let snapshot = self.snapshot();
        for block in snapshot.blocks() {
            let item = survey.block(block.serial);
            if survey.entries[item].holders.is_empty() {
                hold_unknown(&mut survey, block, item);
            }
        }
        let mut lines = survey.handle_lines();
        let alive: HashMap<u64, &BlockInfo> =
            snapshot.blocks().iter().map(|block| (block.serial, block)).collect();
        let blocks = snapshot.blocks().iter().map(|block| {
            let held_by = held_by(&mut survey, block.serial);
            let n_handles = survey.n_handles.get(&block.serial).copied().filter(|_| !held_by.is_empty());
            AliveBlock {
                block: *block,
                n_handles,
                handle_lines: lines.remove(&block.serial).unwrap_or_default(),
                handle_names: Vec::new(),
                price: price(&survey, block, &held_by, &alive),
                held_by,
            }
        });
        let blocks = blocks.collect();
        let (offloaded, offload_rate) = match self.offload_store() {
            Some(store) => (store.in_use(), Some(1e3 / store.known().bytes_per_us.max(1) as f64)),
            None => (0, None),
        };
        let why = WhyAlive { device: self.clone(), entries: survey.entries, blocks, offloaded, offload_rate };
        if self.pool().has_sink() {
            why.tell_recording();
        }
        why
    }
}

/// A block of which no keeper told: scratch memory of an op, what a program has for itself, or tensors in the user's code.
fn hold_unknown(survey: &mut Survey<'_>, block: &BlockInfo, item: Item) {
    let (kind, name) = match block.owner {
        Owner::Workspace => (HolderKind::Kernel, "an op that runs now"),
        Owner::Graph => (HolderKind::Program, "a program"),
        // It may be a tensor's, or that of a keeper that was not asked.
        _ if survey.n_unasked > 0 => (HolderKind::Kernel, "an op that runs now"),
        _ => {
            survey.handles_of(block.serial);
            return;
        }
    };
    let holder = survey.holder(kind, name);
    survey.entries[item].holders.push(holder);
}

/// Who keeps a block alive, with those that can let go: of a slot, its tape.
fn held_by(survey: &mut Survey<'_>, serial: u64) -> Vec<HeldBy> {
    let block = survey.block(serial);
    let (mut found, mut seen): (Vec<HeldBy>, HashSet<(Item, &str)>) = Default::default();
    for &holder in &survey.entries[block].holders {
        // What is passed first says what for, and of which kind the holder is for this block.
        let (mut open, mut passed) = (vec![(holder, None)], HashSet::new());
        while let Some((item, through)) = open.pop() {
            let Entry { what, lives, holders, .. } = &survey.entries[item];
            let through = match what {
                What::Link(Some(kind), purpose) => through.or(Some((*kind, *purpose))),
                _ => through,
            };
            match what {
                What::Holder(kind, name, _) => {
                    let (kind, purpose) = through.unwrap_or((*kind, ""));
                    if seen.insert((item, purpose)) {
                        let (holder, name) = (HolderId(item), name.clone());
                        found.push(HeldBy { holder, kind, name, purpose });
                    }
                }
                // Of those with whom a slot goes, the first is its tape.
                _ if *lives == Lives::WithAll => open.extend(holders.first().map(|&tape| (tape, through))),
                _ if passed.insert(item) => open.extend(holders.iter().map(|&next| (next, through))),
                _ => {}
            }
        }
    }
    found.sort_by(|a, b| {
        let place = |by: &HeldBy| (by.kind == HolderKind::Handles, by.kind);
        place(a).cmp(&place(b)).then_with(|| a.name.cmp(&b.name)).then_with(|| a.purpose.cmp(b.purpose))
    });
    found
}

/// What having the value of a block again would take: the ops from what is alive to it.
fn price(
    survey: &Survey<'_>,
    block: &BlockInfo,
    held_by: &[HeldBy],
    alive: &HashMap<u64, &BlockInfo>,
) -> Price {
    if let Some(by) =
        held_by.iter().find(|by| matches!(by.kind, HolderKind::Variable | HolderKind::Optimizer))
    {
        return Price::never(format!("it is the value of {}, which only a checkpoint has", by.name));
    }
    if let Some(price) = Price::of_owner(block.owner) {
        return price;
    }
    let (mut nanoseconds, mut n_ops) = (0u64, 0);
    let (mut open, mut seen) = (vec![block.serial], HashSet::new());
    while let Some(serial) = open.pop() {
        if !seen.insert(serial) {
            continue;
        }
        let Some(computation) = survey.computations.get(&serial) else {
            return match serial == block.serial {
                true => Price::never("no tape has recorded how it was computed"),
                false => Price::never(Price::INPUTS_GONE),
            };
        };
        let at = |why: &str| Price::never(format!("{} at {:#} {why}", computation.op, computation.site));
        if !computation.repeats {
            return at(Price::HAS_EFFECT);
        }
        nanoseconds = nanoseconds.saturating_add(computation.nanoseconds);
        n_ops += 1;
        for input in &computation.inputs {
            let Some((key, n_overwrites)) = *input else { return at(Price::OVERWROTE) };
            let Some(input) = key.serial_on(survey.device()) else { return at("read from another device") };
            match alive.contains_key(&input) && input != block.serial {
                true if survey.n_overwrites.get(&input).is_some_and(|&now| now != n_overwrites) => {
                    return at("read a variable that was assigned since");
                }
                true => {}
                false => open.push(input),
            }
        }
    }
    Price::Recompute { nanoseconds, n_ops }
}

impl WhyAlive {
    /// The blocks, oldest first.
    pub fn blocks(&self) -> &[AliveBlock] {
        &self.blocks
    }

    /// The bytes in use, which the blocks and the rows add up to.
    pub fn in_use(&self) -> u64 {
        self.blocks.iter().map(|alive| alive.block.rounded).sum()
    }

    /// All holders, each once, with the blocks' bytes that they keep alive, alone or with others.
    pub fn holders(&self) -> Vec<(HeldBy, u64)> {
        let mut holders: BTreeMap<HolderId, (HeldBy, u64)> = BTreeMap::new();
        for alive in &self.blocks {
            let mut seen = HashSet::new();
            for by in alive.held_by.iter().filter(|by| seen.insert(by.holder)) {
                let none = || (HeldBy { purpose: "", ..by.clone() }, 0);
                holders.entry(by.holder).or_insert_with(none).1 += alive.block.rounded;
            }
        }
        holders.into_values().collect()
    }

    /// What the pool would free if all of these let go: if handles of your code, a tape or a variable were dropped.
    pub fn freed_by(&self, holders: impl IntoIterator<Item = HolderId>) -> Freed {
        let gone = drop_from(&self.entries, holders.into_iter().map(|HolderId(item)| item));
        let blocks: HashSet<u64> = gone
            .into_iter()
            .filter_map(|item| match self.entries[item].what {
                What::Block(serial) => Some(serial),
                _ => None,
            })
            .collect();
        let freed =
            self.blocks.iter().map(|alive| &alive.block).filter(|block| blocks.contains(&block.serial));
        let (mut bytes, mut serials) = (0, Vec::new());
        for block in freed {
            bytes += block.rounded;
            serials.push(block.serial);
        }
        Freed { bytes, blocks: serials }
    }

    /// How long offloading so many bytes and reloading them takes, by formula; nothing where the device has nowhere to
    /// offload to, or for values too small to be worth it.
    pub fn offload_nanoseconds(&self, bytes: u64) -> Option<u64> {
        let rate = self.offload_rate.filter(|_| bytes >= MIN_OFFLOADED_BYTES)?;
        Some((2.0 * rate * bytes as f64) as u64)
    }

    /// The rows: blocks with the same owner, line and holders together, the most bytes first. Each block is in one of them.
    pub fn rows(&self) -> Vec<AliveRow> {
        let mut positions: HashMap<(Owner, Site, String), usize> = HashMap::new();
        let mut rows: Vec<AliveRow> = Vec::new();
        for alive in &self.blocks {
            let BlockInfo { owner, site, rounded, .. } = alive.block;
            let at = *positions.entry((owner, site, alive.holders())).or_insert(rows.len());
            if at == rows.len() {
                let (bytes, blocks, nanoseconds, why_not) = (0, 0, Some(0), None);
                rows.push(AliveRow {
                    owner,
                    site,
                    holders: alive.holders(),
                    bytes,
                    blocks,
                    nanoseconds,
                    why_not,
                });
            }
            let row = &mut rows[at];
            row.bytes += rounded;
            row.blocks += 1;
            match &alive.price {
                Price::Recompute { nanoseconds, .. } => {
                    row.nanoseconds = row.nanoseconds.map(|sum| sum.saturating_add(*nanoseconds));
                }
                Price::Never(why) => {
                    row.nanoseconds = None;
                    row.why_not.get_or_insert_with(|| why.clone());
                }
            }
        }
        rows.sort_by_key(|row| (std::cmp::Reverse(row.bytes), row.owner));
        rows
    }

    /// Tells whoever records the pool who holds each block, and what would go with it.
    fn tell_recording(&self) {
        let holders = |alive: &AliveBlock| -> Vec<HolderId> {
            let ids: BTreeSet<HolderId> = alive.held_by.iter().map(|by| by.holder).collect();
            ids.into_iter().collect()
        };
        let mut sets: HashMap<Vec<HolderId>, u64> = HashMap::new();
        for alive in &self.blocks {
            *sets.entry(holders(alive)).or_default() += alive.block.rounded;
        }
        let mut largest: Vec<(Vec<HolderId>, u64)> = sets.into_iter().collect();
        largest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        largest.truncate(MOST_DROPS);
        let frees: HashMap<Vec<HolderId>, u64> = largest
            .into_iter()
            .map(|(ids, _)| {
                let freed = self.freed_by(ids.iter().copied());
                (ids, freed.bytes)
            })
            .collect();
        self.device.pool().tell_held(self.blocks.iter().map(|alive| {
            let frees = frees.get(&holders(alive)).copied().unwrap_or(alive.block.rounded);
            (alive.block.serial, Name::intern(&alive.holders()), frees)
        }));
    }

    /// The holder that was found at an address.
    pub(crate) fn holder_at(&self, address: usize) -> Option<HolderId> {
        let is_it = |entry: &Entry| matches!(entry.what, What::Holder(_, _, at) if at == address);
        self.entries.iter().position(is_it).map(HolderId)
    }

    /// The place of a storage's block in the list of blocks.
    pub(crate) fn place_of(&self, storage: &Storage) -> Option<usize> {
        let serial = storage.key()?.serial_on(&self.device)?;
        self.blocks.binary_search_by_key(&serial, |alive| alive.block.serial).ok()
    }

    /// Adds a name to the handles of the block in that place.
    pub(crate) fn name_handle_at(&mut self, place: usize, name: String) {
        self.blocks[place].handle_names.push(name);
    }
}

impl AliveBlock {
    /// The tensors in your code that keep the block alive, all of them together; none if there are none.
    pub fn handles(&self) -> Option<HolderId> {
        let yours = |by: &&HeldBy| by.kind == HolderKind::Handles;
        self.held_by.iter().find(yours).map(|by| by.holder)
    }

    /// Who keeps the block alive, in words: one, or `shared by` several; names of handles follow in parentheses.
    pub fn holders(&self) -> String {
        let mut names: Vec<String> = self.held_by.iter().map(|by| self.described(by)).collect();
        names.dedup();
        let holders = match names.as_slice() {
            [] => String::new(),
            [one] => one.clone(),
            [others @ .., last] => format!("shared by {} and {last}", others.join(", ")),
        };
        match self.handle_names.as_slice() {
            [] => holders,
            names if names.len() <= MAX_NAMES => format!("{holders} ({})", names.join("; ")),
            names => {
                let n_more = names.len() - MAX_NAMES;
                format!("{holders} ({}; and {n_more} more)", names[..MAX_NAMES].join("; "))
            }
        }
    }

    fn described(&self, by: &HeldBy) -> String {
        let HeldBy { kind, name, purpose, .. } = by;
        match (kind, self.n_handles) {
            (HolderKind::Handles, Some(1)) => "1 handle in your code".to_owned(),
            (HolderKind::Handles, Some(n)) if n > 1 => format!("{n} handles in your code"),
            (HolderKind::Handles, _) if name == "your code" => "handles in your code".to_owned(),
            (HolderKind::Tape, _) if !purpose.is_empty() => format!("{name} for {purpose}"),
            (HolderKind::Evictor, _) if !purpose.is_empty() => {
                format!("the evictor, to {purpose} for {name}")
            }
            _ => name.clone(),
        }
    }
}

impl fmt::Display for WhyAlive {
    /// A table of the rows and the sum.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "why the memory of {} is alive", self.device)?;
        writeln!(
            f,
            "{:>20}  {:>7}  {:<11} {:>12}  line, and who holds it",
            "bytes", "blocks", "owner", "recompute"
        )?;
        for row in self.rows() {
            let price = match row.nanoseconds {
                Some(nanoseconds) => format!("{:.3} ms", nanoseconds as f64 / 1e6),
                None => "-".to_owned(),
            };
            let (bytes, blocks) = (Bytes::new(row.bytes).grouped(), row.blocks);
            writeln!(
                f,
                "{bytes:>20}  {blocks:>7}  {:<11} {price:>12}  {:#}: {}",
                row.owner, row.site, row.holders
            )?;
        }
        write!(f, "{:>20}  {:>7}  in use", Bytes::new(self.in_use()).grouped(), self.blocks.len())?;
        if self.offloaded > 0 {
            write!(
                f,
                "\n{:>20}           offloaded, outside the device",
                Bytes::new(self.offloaded).grouped()
            )?;
        }
        Ok(())
    }
}

impl fmt::Debug for WhyAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WhyAlive").field("device", &self.device).field("blocks", &self.blocks).finish()
    }
}
