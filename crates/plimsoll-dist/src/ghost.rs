//! A rank of ranks that are not there: for plans of clusters.
//!
//! On a ghost no collective transfers anything, so a plan of a rank needs nothing of the others but how many they are. Whoever asks
//! such a rank for a message gets an error: there is nobody to send one.

use std::sync::Arc;

use plimsoll_tensor::{Error, Result};

use crate::agreements::Agreements;
use crate::communicator::Communicator;

/// A rank that transfers nothing.
#[derive(Debug)]
struct Ghost {
    rank: usize,
    size: usize,
    agreements: Agreements,
}

/// The rank of that number of so many that are not there.
///
/// # Errors
/// A number that there is not.
pub fn ghost(rank: usize, size: usize) -> Result<Arc<dyn Communicator>> {
    match rank < size {
        true => Ok(Arc::new(Ghost { rank, size, agreements: Agreements::default() })),
        false => Err(Error::argument("rank", format!("there is no rank {rank} of {size}"))),
    }
}

impl Communicator for Ghost {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn agreements(&self) -> &Agreements {
        &self.agreements
    }

    fn send(&self, to: usize, _: &[u8]) -> Result<()> {
        Err(nobody(to))
    }

    fn recv(&self, from: usize, _: &mut [u8]) -> Result<()> {
        Err(nobody(from))
    }

    fn abort(&self, _: i32) {}
}

fn nobody(rank: usize) -> Error {
    Error::device("distributed", format!("rank {rank} is a ghost: it can be planned, and transfers nothing"))
}
