//! Going through a profile again, event by event, with all live blocks known at each.

use std::collections::BTreeMap;
use std::io;

use plimsoll_memory::{Owner, Region, Rows, STEP, rounded_size};

use crate::code::{BlockRef, Event, N_ROWS, damaged};
use crate::profile::{Chapter, Profile};

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
    /// Steps come here that the profile has left out, of which it knows the stretch of that number: see [`Profile::stretch`]. What
    /// they have freed and taken follows, without what they did in between.
    LeftOut(usize),
    /// All of that is told, and the recording goes on.
    Resumed,
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
    /// The number of the moment, as pages count them: that of the events of memory and the marks up to here, also of those that
    /// the profile has left out.
    pub number: u64,
    /// Whether the event stands for several that the profile has left out.
    pub is_left_out: bool,
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
        let none = Chapter::default();
        let first = profile.chapters.first().unwrap_or(&none);
        let mut moment = Moment {
            event: 0,
            number: 0,
            is_left_out: false,
            step: 0,
            phase: "setup".to_owned(),
            nanoseconds: 0,
            in_use: 0,
            committed: first.committed,
            site: None,
            change: None,
            blocks: BTreeMap::new(),
            begins_step: false,
            worked: 0,
            rows: [0; N_ROWS],
            n_checked: 0,
            next_serial: first.next_serial,
        };
        for &(serial, event) in &first.blocks {
            moment.take(serial, there(event, 0)?)?;
        }
        Ok(moment)
    }

    /// Goes on to the next chapter. Where nothing was left out before it, the pool's own list of its blocks is held against
    /// ours; else what has changed meanwhile is told. Whether `see` has not seen enough.
    fn enter(&mut self, chapter: &Chapter, see: &mut impl FnMut(&Moment) -> bool) -> io::Result<bool> {
        let mut blocks = BTreeMap::new();
        for &(serial, event) in &chapter.blocks {
            if blocks.insert(serial, there(event, chapter.step)?).is_some() {
                return Err(damaged("a block is there twice"));
            }
        }
        if chapter.moment == self.number {
            let same = |(a, b): ((&u64, &Block), (&u64, &Block))| {
                a.0 == b.0 && *a.1 == Block { step: a.1.step, ..*b.1 }
            };
            let is_same = self.blocks.len() == blocks.len() && self.blocks.iter().zip(&blocks).all(same);
            let counters = (self.next_serial, self.committed) == (chapter.next_serial, chapter.committed);
            return match is_same && counters {
                true => Ok(true),
                false => Err(damaged("the pool had other blocks when a chapter began")),
            };
        }
        if chapter.next_serial < self.next_serial || chapter.worked < self.worked {
            return Err(damaged("a chapter begins before the one before it ends"));
        }
        self.number = chapter.moment;
        (self.step, self.nanoseconds, self.worked) = (chapter.step, chapter.clock, chapter.worked);
        (self.committed, self.begins_step, self.is_left_out) = (chapter.committed, false, true);
        let mut go_on = true;
        let mut tell = |moment: &mut Moment, change: Change| {
            moment.change = Some(change);
            go_on = go_on && see(moment);
            moment.event += 1;
        };
        chapter.stretches.clone().for_each(|stretch| tell(self, Change::LeftOut(stretch)));
        self.differ(blocks, &mut tell)?;
        (self.next_serial, self.is_left_out) = (chapter.next_serial, false);
        tell(self, Change::Resumed);
        Ok(go_on)
    }

    /// Frees what is not among these blocks, and takes what is not among ours: first the one, so that there are never more than
    /// before or after.
    fn differ(
        &mut self,
        blocks: BTreeMap<u64, Block>,
        tell: &mut impl FnMut(&mut Moment, Change),
    ) -> io::Result<()> {
        let gone: Vec<u64> =
            self.blocks.keys().filter(|serial| !blocks.contains_key(serial)).copied().collect();
        for serial in gone {
            let change = self.free(serial)?;
            tell(self, change);
        }
        for (serial, block) in blocks {
            let Some(before) = self.blocks.get(&serial).copied() else {
                if serial < self.next_serial {
                    return Err(damaged("a block is there again that was gone"));
                }
                self.take(serial, block)?;
                tell(self, Change::Taken(serial));
                continue;
            };
            let (owner, site) = (block.owner, block.site);
            if before != (Block { owner: before.owner, site: before.site, step: before.step, ..block }) {
                return Err(damaged("a block has moved"));
            }
            if (before.owner, before.site) != (owner, site) {
                let change = self.relabel(serial, owner, site)?;
                tell(self, change);
            }
        }
        Ok(())
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
        self.number += u64::from(event.is_counted());
        self.change = Some(match event {
            Event::Acquire { region, offset, bytes: requested, owner, site } => {
                let (bytes, step) = (rounded(requested)?, self.step);
                self.take_next(Block { requested, bytes, owner, site, region, offset, step })?
            }
            Event::Release { back } => self.free(self.serial(back)?)?,
            Event::Relabel { back, owner, site } => self.relabel(self.serial(back)?, owner, site)?,
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

    fn free(&mut self, serial: u64) -> io::Result<Change> {
        let block = self.blocks.remove(&serial);
        let block = block.ok_or_else(|| damaged("a block is freed that is not there"))?;
        self.in_use -= block.bytes;
        self.count(&block, u64::wrapping_sub);
        Ok(Change::Freed(serial, block))
    }

    fn relabel(&mut self, serial: u64, owner: Owner, site: u32) -> io::Result<Change> {
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
        let mut chapters = self.chapters.iter().skip(1).peekable();
        for (nth, segment) in self.segments.iter().enumerate() {
            while let Some(chapter) = chapters.next_if(|chapter| chapter.segment <= nth) {
                if !moment.enter(chapter, &mut see)? {
                    return Ok(());
                }
            }
            let mut marks = segment.marks.iter().copied();
            for &event in &self.patterns[segment.pattern as usize].events {
                moment.follow(self, event, &mut marks)?;
                if !see(&moment) {
                    return Ok(());
                }
                moment.event += 1;
            }
        }
        for chapter in chapters {
            if !moment.enter(chapter, &mut see)? {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// A block that was there when a chapter began.
fn there(event: Event, step: u64) -> io::Result<Block> {
    match event {
        Event::Acquire { region, offset, bytes: requested, owner, site } => {
            Ok(Block { requested, bytes: rounded(requested)?, owner, site, region, offset, step })
        }
        _ => Err(damaged("a block that was there was not taken")),
    }
}

/// What a pool takes for so many bytes.
fn rounded(bytes: u64) -> io::Result<u64> {
    match bytes < 1 << 60 {
        true => Ok(rounded_size(bytes)),
        false => Err(damaged("a block has more bytes than there are addresses")),
    }
}
