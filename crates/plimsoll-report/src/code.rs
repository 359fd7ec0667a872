//! How numbers, texts and events are written.
//!
//! Numbers take as many bytes as they need, seven bits in each. Events name blocks by how many were taken since, and texts and
//! sites by their numbers, so that two steps that do the same are the same bytes.

use std::io;

use plimsoll_memory::{Owner, Region};

/// The first bytes of a profile, and the version of what follows.
pub(crate) const MAGIC: &[u8; 8] = b"plimprof";
pub(crate) const VERSION: u32 = 3;
/// Files from this version on are read, too: they have fewer kinds of events, and those before 3 have one chapter.
pub(crate) const OLDEST_VERSION: u32 = 1;

/// The rows of a moment: the owners, and what rounding takes.
pub(crate) const N_ROWS: usize = Owner::ALL.len() + 1;

/// What a frame of the file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameKind {
    /// What is known of the run, as JSON; later ones add to it.
    About = 1,
    /// The blocks that are there when a chapter begins.
    Initial = 2,
    /// Events that have not been seen before in this order.
    Pattern = 3,
    /// Events as an earlier pattern has them.
    Repeat = 4,
    /// Recording ended as it should, as JSON.
    End = 5,
    /// What is known of chapters that were left out here.
    LeftOut = 6,
}

impl FrameKind {
    pub fn from_byte(byte: u8) -> Option<FrameKind> {
        use FrameKind::{About, End, Initial, LeftOut, Pattern, Repeat};
        [About, Initial, Pattern, Repeat, End, LeftOut].into_iter().find(|&kind| kind as u8 == byte)
    }
}

/// What happens in a pool, as a profile has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The next block is taken.
    Acquire { region: Region, offset: u64, bytes: u64, owner: Owner, site: u32 },
    /// The block that was taken so many before the next one is freed.
    Release { back: u64 },
    /// It is counted for another owner or site.
    Relabel { back: u64, owner: Owner, site: u32 },
    /// Something begins; number and time are beside the pattern.
    Mark { name: u32 },
    /// The pool has so many bytes committed from here on.
    Committed { bytes: u64 },
    /// The next work reads a block.
    Read { block: BlockRef },
    /// The next work writes one.
    Write { block: BlockRef },
    /// A kernel runs here, for so long by formula; of a run that is not a dry run only from version 2 on.
    Work { site: u32, nanoseconds: u64, repeats: bool },
    /// The pool itself counts so many bytes in a row: those of an owner, of rounding, or after that all that are in use.
    Level { row: u8, bytes: u64 },
    /// Somebody was asked who keeps a block alive: who, and what goes with them.
    Held { block: BlockRef, by: u32, frees: u64 },
}

/// How a block is named that may be of an earlier step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockRef {
    /// How many acquisitions before the next one it was taken, which is the same each time that a step repeats.
    Back(u64),
    /// The number of its acquisition, which is the same while it lives.
    Serial(u64),
}

impl BlockRef {
    fn put(self, into: &mut Vec<u8>) {
        match self {
            BlockRef::Back(back) => put(back << 1, into),
            BlockRef::Serial(serial) => put(serial << 1 | 1, into),
        }
    }
}

pub(crate) fn put(number: u64, into: &mut Vec<u8>) {
    let mut rest = number;
    while rest >= 0x80 {
        into.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    into.push(rest as u8);
}

pub(crate) fn put_text(text: &str, into: &mut Vec<u8>) {
    put(text.len() as u64, into);
    into.extend_from_slice(text.as_bytes());
}

impl Event {
    /// Whether it is one of those that pages count: what a run and its dry run have in common.
    pub fn is_counted(&self) -> bool {
        use Event::{Acquire, Mark, Relabel, Release};
        matches!(self, Acquire { .. } | Release { .. } | Relabel { .. } | Mark { .. })
    }

    /// The event with sites and texts as they are numbered over all chapters.
    pub fn renumbered(mut self, sites: &[u32], texts: &[u32]) -> Event {
        match &mut self {
            Event::Acquire { site, .. } | Event::Relabel { site, .. } | Event::Work { site, .. } => {
                *site = sites[*site as usize];
            }
            Event::Mark { name: text } | Event::Held { by: text, .. } => *text = texts[*text as usize],
            Event::Release { .. }
            | Event::Committed { .. }
            | Event::Read { .. }
            | Event::Write { .. }
            | Event::Level { .. } => {}
        }
        self
    }

    pub fn put(&self, into: &mut Vec<u8>) {
        match *self {
            Event::Acquire { region, offset, bytes, owner, site } => {
                into.extend([0, region as u8, owner as u8]);
                [offset, bytes, site.into()].into_iter().for_each(|number| put(number, into));
            }
            Event::Release { back } => {
                into.push(1);
                put(back, into);
            }
            Event::Relabel { back, owner, site } => {
                into.extend([2, owner as u8]);
                [back, site.into()].into_iter().for_each(|number| put(number, into));
            }
            Event::Mark { name } => {
                into.push(3);
                put(name.into(), into);
            }
            Event::Committed { bytes } => {
                into.push(4);
                put(bytes, into);
            }
            Event::Work { site, nanoseconds, repeats } => {
                into.push(if repeats { 5 } else { 8 });
                [site.into(), nanoseconds].into_iter().for_each(|number| put(number, into));
            }
            Event::Read { block } => {
                into.push(6);
                block.put(into);
            }
            Event::Write { block } => {
                into.push(7);
                block.put(into);
            }
            Event::Level { row, bytes } => {
                into.extend([10, row]);
                put(bytes, into);
            }
            Event::Held { block, by, frees } => {
                into.push(9);
                block.put(into);
                [by.into(), frees].into_iter().for_each(|number| put(number, into));
            }
        }
    }
}

/// Reads what was written; whatever cannot be is an error.
pub(crate) struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> io::Result<u8> {
        let (&first, rest) =
            self.0.split_first().ok_or_else(|| damaged("it ends in the middle of a number"))?;
        self.0 = rest;
        Ok(first)
    }

    pub fn number(&mut self) -> io::Result<u64> {
        let mut number = 0u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(damaged("a number is too large"))
    }

    /// A number that must be below a bound.
    pub fn index(&mut self, n: usize, what: &str) -> io::Result<u32> {
        let index = self.number()?;
        match index < n as u64 {
            true => Ok(index as u32),
            false => Err(damaged(&format!("{what} {index} of {n} is named"))),
        }
    }

    pub fn text(&mut self) -> io::Result<String> {
        let len = self.number()?;
        if len > self.0.len() as u64 {
            return Err(damaged("a text is longer than what is left"));
        }
        let (text, rest) = self.0.split_at(len as usize);
        self.0 = rest;
        String::from_utf8(text.to_vec()).map_err(|_| damaged("a text is not UTF-8"))
    }

    fn owner(&mut self) -> io::Result<Owner> {
        let byte = self.byte()?;
        Owner::ALL
            .into_iter()
            .find(|&owner| owner as u8 == byte)
            .ok_or_else(|| damaged("an owner is unknown"))
    }

    fn block(&mut self) -> io::Result<BlockRef> {
        let number = self.number()?;
        Ok(if number & 1 == 0 { BlockRef::Back(number >> 1) } else { BlockRef::Serial(number >> 1) })
    }

    pub fn event(&mut self, n_sites: usize, n_names: usize) -> io::Result<Event> {
        Ok(match self.byte()? {
            0 => {
                let region = self.byte()?;
                let region = Region::ALL.into_iter().find(|&known| known as u8 == region);
                let region = region.ok_or_else(|| damaged("a region is unknown"))?;
                let owner = self.owner()?;
                let (offset, bytes) = (self.number()?, self.number()?);
                Event::Acquire { region, offset, bytes, owner, site: self.index(n_sites, "site")? }
            }
            1 => Event::Release { back: self.number()? },
            2 => {
                let owner = self.owner()?;
                Event::Relabel { back: self.number()?, owner, site: self.index(n_sites, "site")? }
            }
            3 => Event::Mark { name: self.index(n_names, "name")? },
            4 => Event::Committed { bytes: self.number()? },
            kind @ (5 | 8) => Event::Work {
                site: self.index(n_sites, "site")?,
                nanoseconds: self.number()?,
                repeats: kind == 5,
            },
            6 => Event::Read { block: self.block()? },
            7 => Event::Write { block: self.block()? },
            9 => {
                Event::Held { block: self.block()?, by: self.index(n_names, "name")?, frees: self.number()? }
            }
            10 => Event::Level { row: self.byte()?, bytes: self.number()? },
            _ => return Err(damaged("an event is unknown")),
        })
    }
}

pub(crate) fn damaged(detail: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("this profile is damaged: {detail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_written() -> io::Result<()> {
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX];
        let mut bytes = Vec::new();
        numbers.iter().for_each(|&number| put(number, &mut bytes));
        let mut input = Input(&bytes);
        for number in numbers {
            assert_eq!(input.number()?, number);
        }
        assert!(input.is_empty() && input.number().is_err());
        assert!(Input(&[0xFF; 10]).number().is_err(), "more than 64 bits");
        Ok(())
    }
}
