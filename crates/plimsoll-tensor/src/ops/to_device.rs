//! `to_device`: the same values in the memory of another device.
//!
//! A copy between devices is a call like any other: tapes record it, with a copy back as its gradient, and so do programs,
//! which take memory of several pools then. It is not in the registry, whose samples are about one device, and it is never
//! recomputed to keep a limit: by then its source may be gone.

use plimsoll_cuda::Gpu;

use crate::base::error::{Error, Result};
use crate::device::Device;
use crate::device::storage;
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Meta, Op, OpRef, Outputs, Run, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// Copies row-major values from one device to another.
#[derive(Debug)]
struct ToDevice {
    from: Device,
    to: Device,
}

impl ToDevice {
    fn copy(&self, run: &mut Run<'_>) -> Result<()> {
        let (from, to) = (&run.inputs[0], &run.outputs[0]);
        let n_bytes = to.meta.n_bytes();
        // SAFETY: the input is row-major, as `Tensor::to_device` sees to, and on the device that the op names; the output is
        // row-major, as long, on the device that runs the op, and nobody else's.
        unsafe { storage::copy_between((&self.from, from.ptr()), (run.device, to.ptr()), n_bytes) }
    }
}

impl Op for ToDevice {
    fn name(&self) -> &'static str {
        "to_device"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        one(*inputs[0].shape(), inputs[0].dtype)
    }

    fn output_device(&self) -> Option<&Device> {
        Some(&self.to)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        self.copy(run)
    }

    fn run_cuda(&self, run: &mut Run<'_>, _gpu: &Gpu) -> Result<()> {
        self.copy(run)
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?.to_device(&self.from)?;
        backward.set_grad(0, gradient)
    }
}

impl Tensor {
    /// The same values on another device. A tape records the copy; its gradient is copied back.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    ///
    /// let other = Device::separate_cpu();
    /// let x = Tensor::from_vec(vec![1f32, 2.0])?.to_device(&other)?;
    /// assert_eq!((x.device(), x.to_vec::<f32>()?), (other, vec![1.0, 2.0]));
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// A ghost tensor cannot become a real one; memory that is full.
    #[doc(alias("to", "cuda", "device_put"))]
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let from = self.device();
        if from == *device {
            return Ok(self.clone());
        }
        if from.is_ghost() && !device.is_ghost() {
            return Err(Error::ghost("to_device"));
        }
        let op = ToDevice { from, to: device.clone() };
        call(OpRef::shipped(op), &[&self.contiguous()?])
    }
}
