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
