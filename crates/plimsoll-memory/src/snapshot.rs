//! Every live block at one moment, and who holds how much.

use std::collections::HashMap;
use std::fmt;

use crate::bytes::grouped;
use crate::{Owner, Region, Rows, Site};

/// A live block as a snapshot shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// The number of the acquisition, counted from zero over the pool's life.
    pub serial: u64,
    /// What it is for.
    pub owner: Owner,
    /// Which line asked for it.
    pub site: Site,
    /// The bytes asked for.
    pub requested: u64,
    /// The bytes taken.
    pub rounded: u64,
    /// The region it lies in.
    pub region: Region,
    /// Its offset in the region.
    pub offset: u64,
}

/// All live blocks with the same owner and site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What they are for.
    pub owner: Owner,
    /// Which line asked for them.
    pub site: Site,
    /// The bytes they take, rounding included.
    pub bytes: u64,
    /// How many they are.
    pub blocks: u64,
}

/// Every live block of a pool at one moment, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    blocks: Vec<BlockInfo>,
}

impl Snapshot {
    pub(crate) fn new(mut blocks: Vec<BlockInfo>) -> Self {
        blocks.sort_unstable_by_key(|block| block.serial);
        Self { blocks }
    }

    /// The blocks, oldest first.
    pub fn blocks(&self) -> &[BlockInfo] {
        &self.blocks
    }

    /// The bytes the blocks take, rounding included.
    pub fn in_use(&self) -> u64 {
        self.blocks.iter().map(|block| block.rounded).sum()
    }

    /// The rows, added up from the blocks; equal to those of [`Stats`](crate::Stats) at the same moment.
    pub fn by_owner(&self) -> Rows {
        let mut rows = Rows::default();
        for block in &self.blocks {
            rows.add(block.owner, block.requested, block.rounded);
        }
        rows
    }

    /// The `n` largest holders, largest first; ties in the order of owners, then of first blocks.
    pub fn holders(&self, n: usize) -> Vec<Holder> {
        let mut positions = HashMap::new();
        let mut holders: Vec<Holder> = Vec::new();
        for block in &self.blocks {
            let position = *positions.entry((block.owner, block.site)).or_insert(holders.len());
            if position == holders.len() {
                holders.push(Holder { owner: block.owner, site: block.site, bytes: 0, blocks: 0 });
            }
            holders[position].bytes += block.rounded;
            holders[position].blocks += 1;
        }
        holders.sort_by_key(|holder| (std::cmp::Reverse(holder.bytes), holder.owner));
        holders.truncate(n);
        holders
    }
}

/// What all blocks with the same owner and site take at two moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderDiff {
    /// What they are for.
    pub owner: Owner,
    /// Which line asked for them.
    pub site: Site,
    /// The bytes they took at the earlier moment,
    pub bytes_before: u64,
    /// and those that they take now.
    pub bytes: u64,
    /// How many they were,
    pub blocks_before: u64,
    /// and how many they are.
    pub blocks: u64,
}

impl Snapshot {
    /// Who holds more or less than at an earlier moment, the largest difference first; ties in the order of owners.
    ///
    /// ```
    /// # use plimsoll_memory::{HostPages, Label, Owner, Pool, Site};
    /// let pool = Pool::new(HostPages::new()?);
    /// let before = pool.snapshot();
    /// let loss = pool.acquire(4, Label::new(Owner::Temporary, Site::intern("src/main.rs", 41, "", "mean")))?;
    /// let changes = pool.snapshot().diff(&before);
    /// assert_eq!((changes[0].bytes_before, changes[0].bytes, changes[0].site.line()), (0, 512, 41));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn diff(&self, earlier: &Snapshot) -> Vec<HolderDiff> {
        let mut rows: HashMap<(Owner, Site), HolderDiff> = HashMap::new();
        for (snapshot, is_now) in [(earlier, false), (self, true)] {
            for Holder { owner, site, bytes, blocks } in snapshot.holders(usize::MAX) {
                let none = HolderDiff { owner, site, bytes_before: 0, bytes: 0, blocks_before: 0, blocks: 0 };
                let row = rows.entry((owner, site)).or_insert(none);
                match is_now {
                    true => (row.bytes, row.blocks) = (bytes, blocks),
                    false => (row.bytes_before, row.blocks_before) = (bytes, blocks),
                }
            }
        }
        let differs = |row: &HolderDiff| (row.bytes, row.blocks) != (row.bytes_before, row.blocks_before);
        let mut rows: Vec<HolderDiff> = rows.into_values().filter(differs).collect();
        rows.sort_by_key(|row| {
            let place = (row.site.file(), row.site.line(), row.site.scope(), row.site.op());
            (std::cmp::Reverse(row.bytes.abs_diff(row.bytes_before)), row.owner, place)
        });
        rows
    }
}

impl fmt::Display for Snapshot {
    /// A table of the holders, largest first, and the sum.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>20}  {:>7}  {:<11} line", "bytes", "blocks", "owner")?;
        for holder in self.holders(usize::MAX) {
            writeln!(f, "{holder}")?;
        }
        write!(f, "{:>20}  {:>7}  in use", grouped(self.in_use()), self.blocks.len())
    }
}

impl fmt::Display for Holder {
    /// One row of the table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>20}  {:>7}  {:<11} {:#}", grouped(self.bytes), self.blocks, self.owner, self.site)
    }
}
