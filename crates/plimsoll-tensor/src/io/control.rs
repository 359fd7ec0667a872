//! The control buffer of an optimizer from and to the host.

use plimsoll_memory::Owner;

use crate::base::error::Result;
use crate::eager::context;
use crate::eager::tensor::Tensor;
use crate::ops::optimizer::{Control, check_control};

impl Control {
    /// A buffer with these contents on the current device; its bytes are the optimizer's.
    ///
    /// # Errors
    /// Memory that is full.
    #[track_caller]
    pub fn to_tensor(&self) -> Result<Tensor> {
        let _line = context::at_callers_line();
        context::with_owner(Owner::Optimizer, || Tensor::from_slice(&self.to_array(), Control::LEN))
    }

    /// Reads a buffer back from the device: for reports and checkpoints, not for steps.
    ///
    /// # Errors
    /// A tensor that is no control buffer; a ghost, which has no values.
    #[track_caller]
    pub fn read(buffer: &Tensor) -> Result<Control> {
        let _line = context::at_callers_line();
        check_control("read control", buffer.meta())?;
        let mut values = [0.0; Control::LEN];
        values.copy_from_slice(&buffer.to_vec::<f64>()?);
        Ok(Control::from_array(values))
    }
}
