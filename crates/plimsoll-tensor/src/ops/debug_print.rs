//! `debug_print`: values on standard error while a program runs, which cannot be asked for a value while it is recorded.
//!
//! The values that are shown are picked out by ordinary ops, so their memory is planned like any other; printing them is the
//! op's effect. It has no output with elements and is not in the registry, whose ops are functions.

use std::cmp::Reverse;
use std::io::Write;

use plimsoll_cuda::Gpu;

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::shape::Shape;
use crate::base::text::{EDGE, is_cut, text_of};
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Gradient, Meta, Op, OpRef, Outputs, Run, one};
use crate::eager::tensor::Tensor;

/// Prints the values that are shown of a tensor, which are its input.
#[derive(Debug)]
struct DebugPrint {
    label: Box<str>,
    shape: Shape,
    dtype: DType,
}

impl DebugPrint {
    fn print(&self, values: &[f64]) {
        let text = text_of(&self.shape, self.dtype, values);
        // Whoever closes standard error does not want to see it.
        let _ = writeln!(std::io::stderr().lock(), "{}: {text}", self.label);
    }
}

impl Op for DebugPrint {
    fn name(&self) -> &'static str {
        "debug_print"
    }

    fn infer(&self, _inputs: &[&Meta]) -> Result<Outputs> {
        one(Shape::new(&[0])?, DType::Bool)
    }

    fn has_effect(&self) -> bool {
        true
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let shown = &run.inputs[0];
        match shown.n_elems() {
            0 => self.print(&[]),
            // SAFETY: the input is row-major float64, made by `shown_values`, and written by nobody while the op runs.
            n => self.print(unsafe { std::slice::from_raw_parts(shown.ptr().cast(), n) }),
        }
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let shown = &run.inputs[0];
        let mut values = vec![0.0; shown.n_elems()];
        // SAFETY: the input is row-major float64, made by `shown_values`, and as long as the vector.
        unsafe { gpu.download(shown.ptr(), values.as_mut_ptr().cast(), size_of_val(&*values)) }?;
        self.print(&values);
        Ok(())
    }
}

/// The values of a tensor that are shown, one after the other, as a tensor of float64. Whole numbers beyond 2^53 are rounded.
fn shown_values(tensor: &Tensor) -> Result<Tensor> {
    let shape = *tensor.shape();
    let mut cut: Vec<usize> = (0..shape.rank()).filter(|&axis| is_cut(&shape, axis)).collect();
    // The longest first, so that little is copied.
    cut.sort_by_key(|&axis| Reverse(shape[axis]));
    let mut shown = tensor.clone();
    for axis in cut {
        let end = |start: usize| shown.narrow(axis, start, EDGE);
        shown = Tensor::concat(&[&end(0)?, &end(shape[axis] - EDGE)?], axis)?;
    }
    let n_elems = shown.n_elems();
    shown.cast(DType::F64)?.reshape(n_elems)?.contiguous()
}

impl Tensor {
    /// Prints the values on standard error after `label`, as `jax.debug.print`: at each run of a
    /// [`Function`](crate::Function), in the order of its calls, where reading a value is not possible. Of a large tensor the
    /// ends of its axes are shown. What is recomputed for a limit is not printed again, and a dry run prints nothing.
    ///
    /// # Errors
    /// Memory that is full.
    #[track_caller]
    pub fn debug_print(&self, label: &str) -> Result<()> {
        let _line = context::at_callers_line();
        let op = DebugPrint { label: label.into(), shape: *self.shape(), dtype: self.dtype() };
        context::without_tapes(|| {
            let shown = shown_values(self)?;
            call(OpRef::shipped(op), &[&shown]).map(drop)
        })
    }
}
