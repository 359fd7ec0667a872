//! `batch_norm_add_relu`: the end of a residual block, relu(batch norm + what goes around the block), in one pass over memory.
//!
//! The norm and the sum are rounded to the dtype as if they had been stored: the bits are those of `batch_norm`, `add` and `relu`
//! one after the other, so a pass over programs may put it in their place. Backward tells from the output's sign where relu passed
//! something on: what comes next keeps the output anyway, so nothing is kept for it that the three ops would not keep. It is made
//! of relu's backward and the norm's. A kernel that did both would read the output a second time in place of a product that has to
//! be written in any case, because it is the gradient of what was added.

use plimsoll_cuda::{Gpu, Profile};
use smallvec::{SmallVec, smallvec};

use super::batch::{BatchNorm, Behind, EPS, forward_bytes, reference};
use super::{batch_cuda as cuda, batch_kernel as kernel};
use crate::base::error::Result;
use crate::eager::op::{AuxOutput, Meta, Op, Outputs, Run, SavedRef, SavedRefs, TakesMade, Tensors};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::kernel::for_floats;
use crate::ops::lanes::{expect_dtype, expect_shape};
use crate::ops::registry::{Array, OpInfo, Sample, floats};
use crate::ops::unary::relu::Relu;
use crate::ops::unary::times_local_grad;

/// y = relu(norm(x) + added). Inputs: x, gamma, beta and what is added, whose memory y may be written over. Outputs: y, mean and
/// variance. Auxiliary outputs: mean and rstd.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchNormAddRelu {
    pub norm: BatchNorm,
}

impl Op for BatchNormAddRelu {
    fn name(&self) -> &'static str {
        "batch_norm_add_relu"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let (x, added) = (inputs[0], inputs[3]);
        super::check(self.name(), x, &inputs[1..3])?;
        expect_shape(self.name(), "what is added", added, x.shape())?;
        expect_dtype(self.name(), "what is added", added, x.dtype)?;
        self.norm.infer(&inputs[..3])
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[0].dtype(), T => kernel::normalise::<T>(self.norm.eps, Behind::AddRelu, run));
        Ok(())
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        forward_bytes(inputs[0])
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::normalise(self.name(), self.norm.eps, Behind::AddRelu, run, gpu)
    }

    fn workspace_cuda(&self, inputs: &[&Meta], _profile: &Profile) -> usize {
        cuda::forward_bytes(inputs[0])
    }

    fn takes_made(&self, inputs: &[&Meta]) -> Option<TakesMade> {
        self.norm.takes_made(inputs)
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        let mut saved: SavedRefs = smallvec![SavedRef::Output(0)];
        saved.extend(self.norm.saved(wanted));
        saved
    }

    fn aux_outputs(&self, inputs: &[&Meta], wanted: &[bool]) -> SmallVec<[AuxOutput; 2]> {
        self.norm.aux_outputs(inputs, wanted)
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let output = backward.take_output(0)?;
        let gradient = times_local_grad(Relu, backward.gradient()?, output)?;
        if backward.wants(3) {
            backward.set_grad(3, gradient.clone())?;
        }
        match (0..3).any(|input| backward.wants(input)) {
            true => self.norm.set_gradients(backward, gradient),
            false => Ok(()),
        }
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let normed = self.norm.composite(&inputs[..3])?;
        let with_sum = |mut outputs: Tensors| {
            outputs[0] = outputs[0].add(inputs[3])?.into_relu()?;
            Ok(outputs)
        };
        Some(normed.and_then(with_sum))
    }

    fn overwrites(&self) -> &'static [usize] {
        &[3]
    }
}

/// The registry's entry of `batch_norm_add_relu`.
pub(super) const INFO: OpInfo = OpInfo {
    name: "batch_norm_add_relu",
    doc: "Batch norm for training, what is added to it, and relu of the sum.",
    samples,
};

fn samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize], norm: &str| {
        let width = shape[shape.len() - 1];
        let inputs = vec![floats(shape), floats(&[width]), floats(&[width]), floats(shape)];
        Sample::new(name, inputs, |x| Ok(x[0].batch_norm_add_relu(&x[1], &x[2], x[3].clone(), EPS)?.0))
            .reference(|x| {
                let normed = reference(x);
                Array::build(&x[0].shape, |idx| (normed.at(idx) + x[3].at(idx)).max(0.0))
            })
            .torch(format!("F.relu({norm} + x3)"))
            .example("let (y, mean, variance) = x0.batch_norm_add_relu(&x1, &x2, x3, 1e-3)")
    };
    const ROWS: &str = "F.batch_norm(x0, None, None, x1, x2, True, 0.1, 1e-3)";
    const IMAGES: &str =
        "F.batch_norm(x0.movedim(-1, 1), None, None, x1, x2, True, 0.1, 1e-3).movedim(1, -1)";
    let refused = vec![floats(&[2, 3]), floats(&[3]), floats(&[3]), floats(&[3])];
    vec![
        sample("rows", &[5, 3], ROWS).refuses(refused, "what is added is [3] but [2, 3] belongs here"),
        sample("images", &[2, 2, 3, 2], IMAGES),
    ]
}
