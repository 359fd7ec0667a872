//! Convolutions by cuDNN.

use std::sync::Arc;

use super::context::Context;
use super::libraries::Library;
use crate::convolution::{Convolution, ConvolutionOperands};
use crate::error::{Error, Result};

/// The library.
pub(super) struct Dnn;

impl Dnn {
    pub fn new(_context: &Arc<Context>) -> Result<Dnn> {
        Library::Convolution.require()?;
        Ok(Dnn)
    }

    /// Starts a convolution.
    ///
    /// # Safety
    /// The addresses must be valid on the device.
    pub unsafe fn convolve(&mut self, _c: &Convolution, _o: &ConvolutionOperands) -> Result<()> {
        Err(Error::new("convolutions on a GPU are not there yet"))
    }
}
