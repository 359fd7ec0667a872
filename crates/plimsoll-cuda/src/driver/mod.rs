//! The driver's GPUs.

use std::convert::Infallible;
use std::ops::Range;

use plimsoll_memory::{Region, Source, SourceError};

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::profile::Profile;

/// The GPU of that number.
pub(crate) fn open(number: usize) -> Result<(Box<dyn Backend>, Profile)> {
    Err(Error::new(format!("GPU {number} is not there: no CUDA driver was found")))
}

/// Pages of the driver's virtual memory.
pub struct DriverPages(Infallible);

// SAFETY: there is no value of this type.
unsafe impl Source for DriverPages {
    fn region_bytes(&self, _region: Region) -> u64 {
        match self.0 {}
    }

    fn base(&self, _region: Region) -> *mut u8 {
        match self.0 {}
    }

    fn commit(&self, _region: Region, _range: Range<u64>) -> Result<(), SourceError> {
        match self.0 {}
    }

    fn decommit(&self, _region: Region, _range: Range<u64>) -> Result<(), SourceError> {
        match self.0 {}
    }
}
