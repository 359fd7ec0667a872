//! Going through a profile again, event by event, with all live blocks known at each.

use std::collections::BTreeMap;
use std::io;

use plimsoll_memory::{Owner, Region, Rows, STEP, rounded_size};

use crate::code::{BlockRef, Event, N_ROWS, damaged};
use crate::profile::Profile;

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The bytes asked for.
    pub requested: u64,
    /// The bytes taken.
    pub bytes: u64,
    /// What it is for.
    pub owner: Owner,
    /// The number of the line, layer and op that took it: see [`Profile::site`].
    pub site: u32,
    /// The region it lies in,
    pub region: Region,
    /// and its offset there.
    pub offset: u64,
    /// The step in which it was taken; zero before the first.
    pub step: u64,
}

/// What an event of a profile has changed. Blocks are named by the numbers of their acquisitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A block was taken.
    Taken(u64),
    /// A block was freed, which was this one.
    Freed(u64, Block),
    /// A block is counted for another owner or site; before, it was this one.
    Relabelled(u64, Block),
    /// A mark: its name as [`Profile::text`] has it, and its number.
    Mark(u32, u64),
    /// The pool has committed or returned pages.
    Committed,
    /// The next work reads a block,
    Read(u64),
    /// or writes one.
    Write(u64),
    /// A kernel, by the number of its line, layer and op; how long it takes by formula, in nanoseconds; and whether it may run
    /// again for the same bits.
    Work(u32, u64, bool),
    /// A row was held against what the pool itself counted.
    Checked,
    /// Somebody was asked who keeps a block alive: who, as [`Profile::text`] has it, and how many bytes go with them.
    Held(u64, u32, u64),
}

impl Change {
    /// Whether the program did something to memory, or marked a moment: what pages count.
    pub fn is_counted(self) -> bool {
        use Change::{Freed, Mark, Relabelled, Taken};
        matches!(self, Taken(..) | Freed(..) | Relabelled(..) | Mark(..))
    }
}

/// The pool at one moment of a profile, after an event.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The number of the event, counted from zero.
    pub event: u64,
    /// The present step; zero before the first.
    pub step: u64,
    /// What goes on, as the last mark has called it: `forward`, `backward`, `update` …
    pub phase: String,
    /// The time of the last mark since recording began, in nanoseconds.
    pub nanoseconds: u64,
    /// The bytes in use.
    pub in_use: u64,
    /// The bytes committed.
    pub committed: u64,
    /// The site of the block that was taken last.
    pub site: Option<u32>,
    /// What the event has changed; nothing at the beginning of the recording.
    pub change: Option<Change>,
    /// The live blocks by the numbers of their acquisitions.
    pub blocks: BTreeMap<u64, Block>,
    /// Whether a step begins with this event.
    pub begins_step: bool,
    /// How long all kernels so far would have run, by formula; only dry runs know.
    pub worked: u64,
    next_serial: u64,
    /// The bytes by owner, those of rounding last.
    rows: [u64; N_ROWS],
    n_checked: u64,
}

impl Moment {
    /// The bytes in use by owner; the rows add up.
    pub fn rows(&self) -> Rows {
        let mut rows = Rows::default();
        self.blocks.values().for_each(|block| rows.add(block.owner, block.requested, block.bytes));
        rows
    }

    /// At how many moments so far the pool's own count of bytes in use was written down, and was this one; at one of eight of
    /// them owner by owner.
    pub fn n_checked(&self) -> u64 {
        self.n_checked
    }

    /// Holds a row against what the pool itself counted.
    fn check(&mut self, row: u8, bytes: u64) -> io::Result<()> {
        let is_total = usize::from(row) == N_ROWS;
        let counted = if is_total { Some(&self.in_use) } else { self.rows.get(usize::from(row)) };
        if counted != Some(&bytes) {
            return Err(damaged("the pool counted other bytes"));
        }
        self.n_checked += u64::from(is_total);
        Ok(())
    }

    /// Counts a block in the rows, or takes it away.
    fn count(&mut self, block: &Block, change: impl Fn(u64, u64) -> u64) {
        let (owner, rounding) = (block.owner as usize, block.bytes - block.requested);
        self.rows[owner] = change(self.rows[owner], block.requested);
        let last = self.rows.len() - 1;
        self.rows[last] = change(self.rows[last], rounding);
    }

    /// The moment at which recording began.
    pub(crate) fn begin(profile: &Profile) -> io::Result<Moment> {
        let mut moment = Moment {
            event: 0,
            step: 0,
            phase: "setup".to_owned(),
            nanoseconds: 0,
            in_use: 0,
            committed: profile.initial.committed,
            site: None,
            change: None,
            blocks: BTreeMap::new(),
            begins_step: false,
            worked: 0,
            rows: [0; N_ROWS],
            n_checked: 0,
            next_serial: profile.initial.next_serial,
        };
        for &(serial, event) in &profile.initial.blocks {
            let Event::Acquire { region, offset, bytes, owner, site } = event else {
                return Err(damaged("a block that was there was not taken"));
            };
            moment.take(
                serial,
                Block { requested: bytes, bytes: rounded(bytes)?, owner, site, region, offset, step: 0 },
            )?;
        }
        Ok(moment)
    }

    fn take(&mut self, serial: u64, block: Block) -> io::Result<()> {
        let too_much = || damaged("more bytes are in use than can be counted");
        self.in_use = self.in_use.checked_add(block.bytes).ok_or_else(too_much)?;
        self.count(&block, u64::wrapping_add);
        match self.blocks.insert(serial, block) {
            None => Ok(()),
            Some(_) => Err(damaged("a block is taken twice")),
        }
    }

    fn follow(
        &mut self,
        profile: &Profile,
        event: Event,
        marks: &mut impl Iterator<Item = (u64, u64)>,
    ) -> io::Result<()> {
        self.begins_step = false;
        self.change = Some(match event {
            Event::Acquire { region, offset, bytes: requested, owner, site } => {
                let (bytes, step) = (rounded(requested)?, self.step);
                self.take_next(Block { requested, bytes, owner, site, region, offset, step })?
            }
            Event::Release { back } => self.free(back)?,
            Event::Relabel { back, owner, site } => self.relabel(back, owner, site)?,
            Event::Mark { name } => {
                let (number, nanoseconds) = marks.next().unwrap_or_default();
                self.nanoseconds = nanoseconds;
                match profile.text(name) {
                    step if step == STEP.as_str() => (self.step, self.begins_step) = (number, true),
                    name => name.clone_into(&mut self.phase),
                }
                Change::Mark(name, number)
            }
            Event::Committed { bytes } => {
                self.committed = bytes;
                Change::Committed
            }
            Event::Level { row, bytes } => {
                self.check(row, bytes)?;
                Change::Checked
            }
            Event::Read { block } => Change::Read(self.named(block)?),
            Event::Write { block } => Change::Write(self.named(block)?),
            Event::Work { site, nanoseconds, repeats } => {
                self.worked = self.worked.saturating_add(nanoseconds);
                Change::Work(site, nanoseconds, repeats)
            }
            Event::Held { block, by, frees } => Change::Held(self.named(block)?, by, frees),
        });
        Ok(())
    }

    fn take_next(&mut self, block: Block) -> io::Result<Change> {
        let serial = self.next_serial;
        self.take(serial, block)?;
        (self.next_serial, self.site) = (serial + 1, Some(block.site));
        Ok(Change::Taken(serial))
    }

    fn free(&mut self, back: u64) -> io::Result<Change> {
        let serial = self.serial(back)?;
        let block = self.blocks.remove(&serial);
        let block = block.ok_or_else(|| damaged("a block is freed that is not there"))?;
        self.in_use -= block.bytes;
        self.count(&block, u64::wrapping_sub);
        Ok(Change::Freed(serial, block))
    }

    fn relabel(&mut self, back: u64, owner: Owner, site: u32) -> io::Result<Change> {
        let serial = self.serial(back)?;
        let block = self.blocks.get_mut(&serial);
        let block = block.ok_or_else(|| damaged("a block is relabelled that is not there"))?;
        let before = *block;
        (block.owner, block.site) = (owner, site);
        let after = *block;
        self.count(&before, u64::wrapping_sub);
        self.count(&after, u64::wrapping_add);
        Ok(Change::Relabelled(serial, before))
    }

    /// The number of the next acquisition.
    pub(crate) fn next_serial(&self) -> u64 {
        self.next_serial
    }

    fn named(&self, block: BlockRef) -> io::Result<u64> {
        match block {
            BlockRef::Back(back) => self.serial(back),
            BlockRef::Serial(serial) => Ok(serial),
        }
    }

    fn serial(&self, back: u64) -> io::Result<u64> {
        self.next_serial.checked_sub(back).ok_or_else(|| damaged("a block is older than the pool"))
    }
}

impl Profile {
    /// Goes through all moments, from the beginning of the recording on, until `see` says that it has seen enough.
    ///
    /// # Errors
    /// A profile that frees what is not there.
    pub fn replay(&self, mut see: impl FnMut(&Moment) -> bool) -> io::Result<()> {
        let mut moment = Moment::begin(self)?;
        for segment in &self.segments {
            let mut marks = segment.marks.iter().copied();
            for &event in &self.patterns[segment.pattern as usize].events {
                moment.follow(self, event, &mut marks)?;
                if !see(&moment) {
                    return Ok(());
                }
                moment.event += 1;
            }
        }
        Ok(())
    }
}

/// What a pool takes for so many bytes.
fn rounded(bytes: u64) -> io::Result<u64> {
    match bytes < 1 << 60 {
        true => Ok(rounded_size(bytes)),
        false => Err(damaged("a block has more bytes than there are addresses")),
    }
}
