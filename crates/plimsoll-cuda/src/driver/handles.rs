//! Which pieces of physical memory lie behind which addresses.
//!
//! A driver maps a piece as a whole and takes it back as a whole, while a pool gives back any range of granules. Pieces of
//! one granule would fit every range, but making, mapping and freeing one takes tens of microseconds whatever its size:
//! 16 GiB would take the better part of a second. So a commit is made of pieces of up to [`MAX_PIECE`]. They grow from the
//! end of the range, where the granule that two blocks share lies, so that most ranges given back are whole pieces. A piece
//! that is given back in part is replaced: what stays is copied to new pieces of its own, at the same addresses. What is
//! committed is then to the byte what the driver counts as used; only during the copy it holds the part that stays twice.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::{Error, Result};

/// The most that a piece has.
pub(super) const MAX_PIECE: u64 = 16 << 20;

/// The addresses of the detour: a range given back cuts at most two pieces.
pub(super) const DETOUR_BYTES: u64 = 2 * MAX_PIECE;

/// What a driver does with physical memory. Addresses and sizes are multiples of the granule.
pub(super) trait Physical {
    /// New physical memory.
    fn create(&self, n_bytes: u64) -> Result<u64>;
    /// Puts all of it behind an address.
    fn map(&self, at: u64, n_bytes: u64, handle: u64) -> Result<()>;
    /// Gives the handle up. The memory is free when it is mapped nowhere either.
    fn release(&self, handle: u64) -> Result<()>;
    /// Takes whole mappings away.
    fn unmap(&self, range: Range<u64>) -> Result<()>;
    /// Allows the device to read and write at addresses that are mapped.
    fn allow(&self, range: Range<u64>) -> Result<()>;
    /// Copies and waits for it.
    fn copy(&self, from: u64, to: u64, n_bytes: u64) -> Result<()>;
    /// Waits until the device is done with all addresses.
    fn wait(&self) -> Result<()>;
}

/// The pieces behind the addresses of a source.
pub(super) struct Handles<P: Physical> {
    physical: P,
    granule: u64,
    /// Start and end of every mapped piece. The mapping alone keeps a piece alive; its handle was given up.
    pieces: BTreeMap<u64, u64>,
    /// [`DETOUR_BYTES`] of addresses through which pieces are copied.
    detour: u64,
    /// Why the contents of some address were lost; nothing works from then on.
    lost: Option<Error>,
}

impl<P: Physical> Handles<P> {
    pub fn new(physical: P, granule: u64, detour: u64) -> Handles<P> {
        Handles { physical, granule, pieces: BTreeMap::new(), detour, lost: None }
    }

    pub fn physical(&self) -> &P {
        &self.physical
    }

    /// Puts memory behind a range that has none; all of it or nothing.
    pub fn commit(&mut self, range: Range<u64>) -> Result<()> {
        self.check()?;
        let pieces = cut(range.clone(), self.granule);
        self.map_new(&pieces)?;
        self.pieces.extend(pieces.iter().map(|piece| (piece.start, piece.end)));
        Ok(())
    }

    /// Frees the memory behind a range that has some; all of it or nothing.
    pub fn decommit(&mut self, range: Range<u64>) -> Result<()> {
        self.check()?;
        self.physical.wait()?;
        let before = self.pieces.range(..range.start).next_back().map(|(&start, &end)| start..end);
        let first = before.filter(|piece| piece.end > range.start).map_or(range.start, |piece| piece.start);
        let last =
            self.pieces.range(..range.end).next_back().map_or(range.end, |(_, &end)| end.max(range.end));
        let stays: Vec<Range<u64>> =
            [first..range.start, range.end..last].into_iter().filter(|part| !part.is_empty()).collect();
        let copies = self.copies_of(&stays)?;
        if let Err(error) = self.physical.unmap(first..last) {
            let _ = self.discard(&copies);
            return Err(error);
        }
        self.pieces.retain(|start, _| !(first..last).contains(start));
        let put_back = copies.iter().try_for_each(|copy| self.put_back(copy));
        let discarded = self.discard(&copies);
        put_back.and(discarded).map_err(|error| {
            let error = Error::new(format!("the driver lost memory of which a part was given back, so that nothing more can be had: {error}"));
            self.lost = Some(error.clone());
            error
        })
    }

    fn check(&self) -> Result<()> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// Makes pieces and maps them; all of them or none.
    fn map_new(&self, pieces: &[Range<u64>]) -> Result<()> {
        for (done, piece) in pieces.iter().enumerate() {
            if let Err(error) = self.map_one(piece) {
                self.unmap_each(&pieces[..done]);
                return Err(error);
            }
        }
        let (Some(start), Some(end)) =
            (pieces.iter().map(|piece| piece.start).min(), pieces.iter().map(|piece| piece.end).max())
        else {
            return Ok(());
        };
        self.physical.allow(start..end).inspect_err(|_| self.unmap_each(pieces))
    }

    fn map_one(&self, piece: &Range<u64>) -> Result<()> {
        let n_bytes = piece.end - piece.start;
        let handle = self.physical.create(n_bytes)?;
        let mapped = self.physical.map(piece.start, n_bytes, handle);
        // The mapping keeps the memory from now on; without one, this frees it.
        let released = self.physical.release(handle);
        mapped.and(released)
    }

    /// Undoes mappings after a failure. The failure is what is reported, so that of undoing is not.
    fn unmap_each(&self, pieces: &[Range<u64>]) {
        for piece in pieces {
            let _ = self.physical.unmap(piece.clone());
        }
    }

    /// New memory with the contents of these parts of pieces, mapped at the detour; nothing after a failure.
    fn copies_of(&self, parts: &[Range<u64>]) -> Result<Vec<Copy>> {
        let mut copies: Vec<Copy> = Vec::with_capacity(parts.len());
        for (idx, part) in parts.iter().enumerate() {
            let at = self.detour + idx as u64 * MAX_PIECE;
            match self.copy_of(part, at) {
                Ok(copy) => copies.push(copy),
                Err(error) => {
                    let _ = self.discard(&copies);
                    return Err(error);
                }
            }
        }
        Ok(copies)
    }

    fn copy_of(&self, part: &Range<u64>, at: u64) -> Result<Copy> {
        let n_bytes = part.end - part.start;
        let handle = self.physical.create(n_bytes)?;
        let copy = Copy { handle, at, of: part.clone() };
        let made = self.physical.map(at, n_bytes, handle).and_then(|()| {
            let copied = self.physical.allow(at..at + n_bytes);
            let copied = copied.and_then(|()| self.physical.copy(part.start, at, n_bytes));
            copied.inspect_err(|_| drop(self.physical.unmap(at..at + n_bytes)))
        });
        match made {
            Ok(()) => Ok(copy),
            Err(error) => {
                let _ = self.physical.release(handle);
                Err(error)
            }
        }
    }

    /// Maps a copy where its original was.
    fn put_back(&mut self, Copy { handle, of, .. }: &Copy) -> Result<()> {
        self.physical.map(of.start, of.end - of.start, *handle)?;
        self.pieces.insert(of.start, of.end);
        self.physical.allow(of.clone())
    }

    /// Takes copies away from the detour. Where they have been mapped elsewhere, that mapping keeps them.
    fn discard(&self, copies: &[Copy]) -> Result<()> {
        let each = copies.iter().map(|Copy { handle, at, of }| {
            let unmapped = self.physical.unmap(*at..*at + (of.end - of.start));
            self.physical.release(*handle).and(unmapped)
        });
        each.fold(Ok(()), Result::and)
    }
}

/// Physical memory with the contents of a range, mapped at an address of the detour.
struct Copy {
    handle: u64,
    at: u64,
    of: Range<u64>,
}

impl<P: Physical> Drop for Handles<P> {
    fn drop(&mut self) {
        // After a failure here there is nobody to tell, and the process's end frees all.
        let _ = self.physical.wait();
        for (&start, &end) in &self.pieces {
            let _ = self.physical.unmap(start..end);
        }
    }
}

/// The pieces of a commit, from its end: one granule, two, four, and so on up to the most.
fn cut(range: Range<u64>, granule: u64) -> Vec<Range<u64>> {
    let (mut pieces, mut end, mut n_bytes) = (Vec::new(), range.end, granule);
    while end > range.start {
        let start = range.start.max(end.saturating_sub(n_bytes));
        pieces.push(start..end);
        (end, n_bytes) = (start, (2 * n_bytes).min(MAX_PIECE));
    }
    pieces
}

#[cfg(test)]
#[path = "handles_tests.rs"]
mod tests;
