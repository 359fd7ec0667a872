//! Scaled dot-product attention in memory linear in the sequence.
//!
//! Scores are formed tile by tile with a running maximum and sum, in forward and again in backward, and never lie in
//! memory as a whole. What is saved for backward: queries, keys, values and output, and one number per query, the
//! logarithm of its sum of exponentials. A query that may see no key gives zeros.

mod backward;
mod composite;
mod cuda;
mod forward;
mod samples;
mod tiles;

use plimsoll_cpu::element::Element as Stored;
use plimsoll_cpu::threads::SharedPtr;
use plimsoll_cuda::{Gpu, Profile};

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::shape::Shape;
use crate::eager::context;
use crate::eager::execute::{Arg, Order, call, execute};
use crate::eager::op::{
    AuxOutput, Cost, Form, Gradient, Meta, Op, OpRef, Operand, Output, Outputs, Run, SavedRef, SavedRefs,
    Tensors, bytes_moved, one,
};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::backward::gradients_of_plain_ops;
use crate::ops::compute::{Access, Compute};
use crate::ops::kernel::for_floats;
use crate::ops::linear::check_dtypes;
use crate::ops::registry::OpInfo;
use tiles::{Extents, Matrices, Scoring};

/// How queries, keys and values attend to each other.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionConfig<'a> {
    /// Whether query `i` may see the keys `0..=i` only.
    pub causal: bool,
    /// What scores are multiplied by; one over the square root of the queries' length if it is not given.
    pub scale: Option<f64>,
    /// Broadcasts to `[.., queries, keys]`. Truth values say which keys a query may see; floats are added to the
    /// scores.
    pub mask: Option<&'a Tensor>,
}

/// softmax(scale q kᵀ + mask) v for each head. The inputs have the same leading dimensions.
#[derive(Clone, Copy, Debug)]
struct Attention {
    causal: bool,
    scale: f64,
    masked: bool,
}

/// The gradients of queries, keys and values, from: the gradient of the output, queries, keys, values, the output, the
/// logarithms of the sums, and the mask if there is one.
#[derive(Debug)]
struct AttentionBackward(Attention);

/// Exponentials keep attention from the rate of large products: four tenths of it are what an H200 was seen to reach, forward
/// and backward.
const COMPUTING_SHARE: f64 = 0.4;

/// The dtype of the numbers saved for each query.
fn statistics_dtype(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

impl Attention {
    /// Refuses queries, keys and values that do not belong together.
    fn check(&self, inputs: &[&Meta]) -> Result<Extents> {
        let [q, k, v, ..] = inputs else { unreachable!("queries, keys and values") };
        check_dtypes("attention", &inputs[..3])?;
        let (
            &[ref lead @ .., _, depth],
            &[ref k_lead @ .., n_keys, k_depth],
            &[ref v_lead @ .., n_values, _],
        ) = (q.shape().dims(), k.shape().dims(), v.shape().dims())
        else {
            return Err(Error::shape(
                "attention",
                format!(
                    "shapes {}, {} and {}; queries, keys and values need two dimensions or more",
                    q.shape(),
                    k.shape(),
                    v.shape()
                ),
            ));
        };
        if depth != k_depth || n_keys != n_values || lead != k_lead || lead != v_lead {
            return Err(Error::shape(
                "attention",
                format!(
                    "shapes {}, {} and {}; queries are [.., queries, depth], keys [.., keys, depth] and values \
                     [.., keys, width], with the same depth and keys",
                    q.shape(),
                    k.shape(),
                    v.shape()
                ),
            ));
        }
        Ok(Extents::of(q, k, v))
    }

    fn scoring<C: Compute, T: Stored<Compute = C>>(&self, mask: Option<&Operand>) -> Scoring<C> {
        let access = |mask: &Operand| match mask.dtype() {
            DType::Bool => tiles::truths(),
            _ => Access::floats::<T>(),
        };
        let mask = mask.map(|mask| Matrices::new(mask, access(mask)));
        Scoring { causal: self.causal, scale: C::from_f64(self.scale), mask }
    }

    fn run_on<T: Stored<Compute: Compute>>(&self, run: &mut Run<'_>) {
        let [q, k, v, ..] = run.inputs else { unreachable!("queries, keys and values") };
        let matrices = |operand| Matrices::new(operand, Access::floats::<T>());
        let log_sums = run.aux_outputs.first().map_or(std::ptr::null_mut(), |aux| aux.ptr().cast());
        let kernel = forward::Forward {
            extents: Extents::of(q.meta, k.meta, v.meta),
            q: matrices(q),
            k: matrices(k),
            v: matrices(v),
            scoring: self.scoring::<_, T>(run.inputs.get(3)),
            output: SharedPtr::new(run.outputs[0].ptr()),
            access: Access::floats::<T>(),
            log_sums: SharedPtr::new(log_sums),
        };
        // SAFETY: `infer` has checked the extents, `workspace` has asked for the kernel's scratch memory.
        unsafe { kernel.run(run.workspace) };
    }

    fn backward_on<T: Stored<Compute: Compute>>(&self, run: &mut Run<'_>) {
        let [gradient, q, k, v, output, log_sums, ..] = run.inputs else {
            unreachable!("six operands or more")
        };
        let matrices = |operand| Matrices::new(operand, Access::floats::<T>());
        let kernel = backward::Backward {
            extents: Extents::of(q.meta, k.meta, v.meta),
            gradient: matrices(gradient),
            output: matrices(output),
            q: matrices(q),
            k: matrices(k),
            v: matrices(v),
            log_sums: Matrices::columns(log_sums, Access::floats::<T::Compute>()),
            scoring: self.scoring::<_, T>(run.inputs.get(6)),
            results: [0, 1, 2].map(|of| SharedPtr::new(run.outputs[of].ptr())),
            access: Access::floats::<T>(),
        };
        // SAFETY: `infer` has checked the extents, `workspace` has asked for the kernel's scratch memory.
        unsafe { kernel.run(run.workspace) };
    }

    /// The gradient of an added mask: it is as large as all scores, so they are formed.
    fn mask_gradient(&self, backward: &Backward<'_>, gradient: &Tensor) -> Result<Tensor> {
        let inputs: Vec<Tensor> = (0..4).map(|idx| backward.input(idx)).collect::<Result<_>>()?;
        let forward = || composite::forward(self, &inputs.iter().collect::<Vec<_>>());
        let tape = backward.inner_tape();
        let mut gradients = gradients_of_plain_ops(&tape, forward, gradient, &[&inputs[3]])?;
        Ok(gradients.remove(0))
    }
}

impl Op for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let extents = self.check(inputs)?;
        check_mask(self.name(), inputs.get(3).copied(), inputs[0].dtype, &extents)?;
        one(extents.with([extents.n_queries, extents.width])?, inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[0].dtype(), T => self.run_on::<T>(run));
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::forward(self, run, gpu)
    }

    fn workspace_cuda(&self, inputs: &[&Meta], _profile: &Profile) -> usize {
        cuda::workspace(inputs)
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        let extents = Extents::of(inputs[0], inputs[1], inputs[2]);
        match inputs[0].dtype {
            DType::F64 => forward::workspace::<f64>(&extents, false),
            dtype => forward::workspace::<f32>(&extents, dtype != DType::F32),
        }
    }

    fn computing_share_cuda(&self) -> f64 {
        COMPUTING_SHARE
    }

    fn cost(&self, inputs: &[&Meta], outputs: &[&Meta]) -> Cost {
        let bytes = bytes_moved(inputs, outputs);
        Cost { flops: Extents::of(inputs[0], inputs[1], inputs[2]).flops(self.causal), bytes }
    }

    fn saved(&self, wanted: &[bool]) -> SavedRefs {
        let inputs = (0..wanted.len()).map(SavedRef::Input);
        inputs.chain([SavedRef::Output(0), SavedRef::Aux(0)]).collect()
    }

    fn aux_outputs(&self, inputs: &[&Meta], _wanted: &[bool]) -> smallvec::SmallVec<[AuxOutput; 2]> {
        let per_query = inputs[0].shape().leading(inputs[0].shape().rank() - 1);
        let meta = Meta::fresh(per_query, statistics_dtype(inputs[0].dtype));
        smallvec::smallvec![AuxOutput { form: Form::Statistics, meta }]
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = backward.gradient()?;
        if backward.wants(3) {
            backward.set_grad(3, self.mask_gradient(backward, &gradient)?)?;
        }
        if !(0..3).any(|input| backward.wants(input)) {
            return Ok(());
        }
        let mut args = smallvec::smallvec![Arg::Given(gradient)];
        for idx in 0..3 {
            args.push(Arg::Given(backward.input(idx)?));
        }
        args.push(Arg::Given(backward.output(0)?));
        args.push(Arg::Given(backward.aux(0)?));
        if self.masked {
            args.push(Arg::Given(backward.input(3)?));
        }
        for (idx, gradient) in
            execute(OpRef::shipped(AttentionBackward(*self)), args)?.into_iter().enumerate()
        {
            backward.set_grad(idx, gradient)?;
        }
        Ok(())
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        Some(composite::forward(self, inputs).map(|output| smallvec::smallvec![output]))
    }
}

impl Op for AttentionBackward {
    fn name(&self) -> &'static str {
        "attention_backward"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let extents = self.0.check(&inputs[1..4])?;
        let Extents { n_queries, n_keys, depth, width, .. } = extents;
        check_mask(self.name(), inputs.get(6).copied(), inputs[1].dtype, &extents)?;
        let statistics = Meta::fresh(extents.with([n_queries])?, statistics_dtype(inputs[0].dtype));
        let output = Meta::fresh(extents.with([n_queries, width])?, inputs[1].dtype);
        for (input, expected) in [(&inputs[0], output), (&inputs[4], output), (&inputs[5], statistics)] {
            if input.shape() != expected.shape() || input.dtype != expected.dtype {
                return Err(Error::shape(
                    "attention_backward",
                    format!(
                        "an operand is {} {}, but queries, keys and values ask for {} {}",
                        input.shape(),
                        input.dtype,
                        expected.shape(),
                        expected.dtype
                    ),
                ));
            }
        }
        let shapes = [[n_queries, depth], [n_keys, depth], [n_keys, width]];
        let output = |dims| Ok(Output::New { shape: extents.with(dims)?, dtype: inputs[0].dtype });
        shapes.into_iter().map(output).collect()
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[0].dtype(), T => self.0.backward_on::<T>(run));
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::backward(&self.0, run, gpu, Order::Fixed)
    }

    fn workspace_cuda(&self, inputs: &[&Meta], profile: &Profile) -> usize {
        cuda::backward_workspace(inputs, profile, Order::Fixed)
    }

    fn run_cuda_unordered(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        cuda::backward(&self.0, run, gpu, Order::Any)
    }

    fn workspace_cuda_unordered(&self, inputs: &[&Meta], profile: &Profile) -> usize {
        cuda::backward_workspace(inputs, profile, Order::Any)
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        let extents = Extents::of(inputs[1], inputs[2], inputs[3]);
        match inputs[0].dtype {
            DType::F64 => backward::workspace::<f64>(&extents, false),
            dtype => backward::workspace::<f32>(&extents, dtype != DType::F32),
        }
    }

    fn computing_share_cuda(&self) -> f64 {
        COMPUTING_SHARE
    }

    fn cost(&self, inputs: &[&Meta], outputs: &[&Meta]) -> Cost {
        let bytes = bytes_moved(inputs, outputs);
        let forward = Extents::of(inputs[1], inputs[2], inputs[3]).flops(self.0.causal);
        // Five products of tiles where forward has two.
        Cost { flops: forward / 2 * 5, bytes }
    }

    fn gradient(&self) -> Gradient {
        Gradient::Composite
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        Some(composite::backward(&self.0, inputs))
    }
}

impl Tensor {
    /// Scaled dot-product attention of these queries `[.., queries, depth]` to `keys` `[.., keys, depth]` and `values`
    /// `[.., keys, width]`; the result is `[.., queries, width]`. Leading dimensions, such as batch and heads,
    /// broadcast. No operand is copied, whatever its strides.
    ///
    /// # Errors
    /// Shapes that do not fit, dtypes that differ or are not floats, a mask that does not broadcast; memory that is
    /// full.
    #[doc = example!("attention")]
    #[doc(alias("scaled_dot_product_attention", "flash_attention"))]
    #[track_caller]
    pub fn attention(&self, keys: &Tensor, values: &Tensor, config: &AttentionConfig<'_>) -> Result<Tensor> {
        let _line = context::at_callers_line();
        let operands = [self, keys, values];
        let lead = common_lead(operands)?;
        let stretched = operands.map(|operand| stretch(operand, &lead));
        let [q, k, v] = stretched;
        let (q, k, v) = (q?, k?, v?);
        let depth = q.shape().last().copied().unwrap_or(1).max(1);
        let scale = config.scale.unwrap_or(1.0 / (depth as f64).sqrt());
        let op = Attention { causal: config.causal, scale, masked: config.mask.is_some() };
        let Some(mask) = config.mask else { return call(OpRef::shipped(op), &[&q, &k, &v]) };
        let extents = op.check(&[q.meta(), k.meta(), v.meta(), mask.meta()])?;
        let scores = extents.with([extents.n_queries, extents.n_keys])?;
        let mask = match mask.layout().broadcast_to(&scores) {
            Some(_) => mask.broadcast_to(scores)?,
            None => mask.clone(),
        };
        call(OpRef::shipped(op), &[&q, &k, &v, &mask])
    }
}

/// Refuses a mask of numbers that are not the queries', and one that has not one element for each score.
fn check_mask(op: &'static str, mask: Option<&Meta>, dtype: DType, extents: &Extents) -> Result<()> {
    let scores = extents.with([extents.n_queries, extents.n_keys])?;
    match mask {
        Some(mask) if mask.dtype != DType::Bool && mask.dtype != dtype => Err(Error::dtype(
            op,
            format!("the mask is {}; it must be bool, or {dtype} as the queries are", mask.dtype),
        )),
        Some(mask) if *mask.shape() != scores => Err(Error::shape(
            op,
            format!(
                "the mask has shape {}, which does not broadcast to that of the scores, {scores}",
                mask.shape()
            ),
        )),
        _ => Ok(()),
    }
}

/// The leading dimensions that all operands broadcast to.
fn common_lead(operands: [&Tensor; 3]) -> Result<Shape> {
    let lead = |operand: &Tensor| operand.shape().leading(operand.rank().saturating_sub(2));
    let [q, k, v] = operands;
    let joined = lead(q)
        .broadcast(&lead(k))
        .ok_or_else(|| Error::not_broadcastable("attention", q.shape(), k.shape()))?;
    joined.broadcast(&lead(v)).ok_or_else(|| Error::not_broadcastable("attention", q.shape(), v.shape()))
}

/// The operand repeated to the common leading dimensions; one with too few dimensions is left for `infer` to refuse.
fn stretch(operand: &Tensor, lead: &Shape) -> Result<Tensor> {
    match operand.shape().dims() {
        &[.., rows, cols] => operand.broadcast_to(lead.followed_by(&[rows, cols])?),
        _ => Ok(operand.clone()),
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] = &[
    &OpInfo {
        name: "attention",
        doc: "Scaled dot-product attention, causal or masked, in memory linear in the sequence.",
        samples: samples::forward,
    },
    &OpInfo {
        name: "attention_backward",
        doc: "The gradients of the queries, keys and values of an attention.",
        samples: samples::backward,
    },
];
