//! A GPU that the host plays.

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::profile::Profile;

/// An emulated GPU.
pub(crate) fn open() -> Result<(Box<dyn Backend>, Profile)> {
    Err(Error::new("there is no emulated GPU yet"))
}
