//! `prod`: the product over some axes.

use plimsoll_cpu::math::Real;
use plimsoll_cpu::reduce::{Fold, Prod as ProdFold};
use plimsoll_cpu::{map, simd};
use plimsoll_cuda::Gpu;
use smallvec::{SmallVec, smallvec};
use std::marker::PhantomData;

use super::{Reduce, Reduced, fold, methods, numbers_only};
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::eager::execute::call;
use crate::eager::op::{AuxOutput, Form, Gradient, SavedRef, SavedRefs, Meta, Op, OpRef, Operand, Outputs, Run, Tensors, one};
use crate::ops::cuda::elementwise::Elementwise;
use crate::ops::cuda::reduce;
use crate::ops::kernel::{computed, for_computed_floats, for_computed_numbers};
use crate::ops::lanes::{expect_dtype, expect_float, expect_shape};
use crate::ops::registry::{OpInfo, Sample, floats, within};
use crate::base::axes::{Axes, IntoAxes};
use crate::base::shape::Shape;
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;

/// y = Π x; the derivative by an element is the product of the others, y / x where x is not zero. For the others a second
/// number per result is saved: the product without a single zero.
#[derive(Clone, Copy, Debug)]
pub struct Prod;

impl Reduce for Prod {
    const NAME: &'static str = "prod";
    const DOC: &'static str = "The product over some axes.";

    fn sample() -> Prod {
        Prod
    }

    fn output(self, input: DType) -> Result<DType> {
        numbers_only("prod", input)
    }

    fn run(self, x: &Operand, axes: Axes, y: &Operand, aux_outputs: &[Operand]) {
        for_computed_numbers!(x.dtype(), C => fold(&ProdFold::<C, C>::new(), x, axes, y));
        if let [others] = aux_outputs {
            for_computed_floats!(x.dtype(), C => fold(&Others::<C>(PhantomData), x, axes, others));
        }
    }

    fn cuda(self, input: DType, is_recorded: bool) -> reduce::Fold {
        let wide = reduce::wide_bytes(input);
        let plain = reduce::Fold {
            variant: 0,
            text: reduce::plain_fold!("Wide", "1", "x", "a * b"),
            finish: "y0 = acc.value;",
            acc_bytes: wide,
            is_ordered: false,
        };
        match is_recorded && input.is_float() {
            true => reduce::Fold { variant: 1, text: CUDA_OTHERS, finish: CUDA_FINISH, acc_bytes: 3 * wide, ..plain },
            false => plain,
        }
    }

    fn saved(self) -> SavedRefs {
        smallvec![SavedRef::Input(0), SavedRef::Output(0), SavedRef::Aux(0)]
    }

    fn aux_outputs(self, input: DType, result: Shape) -> SmallVec<[AuxOutput; 2]> {
        smallvec![AuxOutput { form: Form::Statistics, meta: Meta::fresh(result, input) }]
    }

    fn backward(self, reduced: &Reduced, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = reduced.gradient(backward)?;
        let share = gradient.mul(&reduced.output(backward)?)?;
        let at_zero = gradient.mul(&reduced.aux(backward, 0)?)?;
        let x = backward.input(0)?;
        let (share, at_zero) = (share.broadcast_to(x.shape())?, at_zero.broadcast_to(x.shape())?);
        let gradient = call(OpRef::fixed(&Shares), &[&x, &share, &at_zero])?;
        backward.set_grad(0, gradient)
    }

    /// The last of the products up to each element: a scan, whose derivatives need no division.
    fn composite(self, x: &Tensor, axes: Axes) -> Option<Result<Tensor>> {
        Some(last_product(x, axes))
    }

    fn reference(self, values: &[f64]) -> f64 {
        values.iter().product()
    }

    fn torch(self, dim: &str, several: bool) -> Option<String> {
        (!several).then(|| format!("x0.prod({dim})"))
    }
}

/// The GPU's fold of a recorded product: that of all elements, that of those that are not zero, and the number of zeros.
const CUDA_OTHERS: &str = "
    struct Acc { C all, others, zeros; };
    DEVICE Acc empty() { return {(C)1, (C)1, (C)0}; }
    template <int N> DEVICE Acc leaf(const Values<N>& values) {
        Acc acc = empty();
        _Pragma(\"unroll\") for (int i = 0; i < N; i++) {
            C x = values.x0[i];
            bool is_zero = x == (C)0;
            acc = {acc.all * x, is_zero ? acc.others : acc.others * x, acc.zeros + (C)is_zero};
        }
        return acc;
    }
    DEVICE Acc merge(Acc a, Count, Acc b, Count) {
        return {a.all * b.all, a.others * b.others, a.zeros + b.zeros};
    }";

const CUDA_FINISH: &str = "y0 = acc.all; y1 = acc.zeros == (C)1 ? acc.others : (C)0;";

fn last_product(x: &Tensor, axes: Axes) -> Result<Tensor> {
    let kept = x.shape().reduced(axes, true);
    let n_factors = super::n_reduced(x.shape(), axes);
    if n_factors == 0 {
        // The product of nothing is one.
        return x.sum_keepdims(axes)?.affine(1.0, 1.0);
    }
    let others = (0..x.rank()).filter(|&axis| !axes.contains(axis));
    let order: Vec<usize> = others.chain(axes.iter()).collect();
    let factors = x.permute(order)?.reshape([kept.n_elems(), n_factors])?;
    factors.cumprod(-1)?.narrow(-1, n_factors - 1, 1)?.reshape(kept)
}

/// The product of the elements that are not zero, where exactly one is zero; else zero.
#[derive(Clone, Copy, Debug)]
struct Others<C>(PhantomData<fn() -> C>);

impl<C: Real> Fold for Others<C> {
    type In = C;
    /// The product of what is not zero, and the number of zeros.
    type Acc = (C, C);
    type Out = C;

    #[inline(always)]
    fn empty(&self) -> Self::Acc {
        (C::ONE, C::ZERO)
    }

    #[inline(always)]
    fn one(&self, value: C, _: usize) -> Self::Acc {
        match value == C::ZERO {
            true => (C::ONE, C::ONE),
            false => (value, C::ZERO),
        }
    }

    #[inline(always)]
    fn merge(&self, first: Self::Acc, second: Self::Acc) -> Self::Acc {
        (first.0 * second.0, first.1 + second.1)
    }

    #[inline(always)]
    fn finish(&self, (product, n_zeros): Self::Acc, _: usize) -> C {
        if n_zeros == C::ONE { product } else { C::ZERO }
    }
}

/// `share / x`, or `at_zero` where x is zero.
#[derive(Debug)]
struct Shares;

impl Op for Shares {
    fn name(&self) -> &'static str {
        "prod_backward"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        expect_float(self.name(), inputs[0])?;
        for share in &inputs[1..] {
            expect_shape(self.name(), "a share", share, inputs[0].shape())?;
            expect_dtype(self.name(), "a share", share, inputs[0].dtype)?;
        }
        one(*inputs[0].shape(), inputs[0].dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let [x, share, at_zero] = run.inputs else { unreachable!("three operands") };
        let y = &run.outputs[0];
        for_computed_floats!(x.dtype(), C => {
            // SAFETY: `execute` hands out operands that are valid for their layouts; the output is fresh.
            unsafe { map::map3(x.shape(), computed(y), [x, share, at_zero].map(computed), tile::<C>) }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        let kernel = Elementwise {
            op: self.name(),
            inputs: &[&run.inputs[0], &run.inputs[1], &run.inputs[2]],
            outputs: &[&run.outputs[0]],
            numbers: &[],
            words: &[],
            variant: 0,
        };
        kernel.run(gpu, || "y0 = x0 == (C)0 ? x2 : x1 / x0;".to_owned())
    }

    fn gradient(&self) -> Gradient {
        Gradient::Composite
    }

    fn composite(&self, inputs: &[&Tensor]) -> Option<Result<Tensors>> {
        let [x, share, at_zero] = inputs else { unreachable!("three operands") };
        let result = || {
            let is_zero = x.eq(0.0)?;
            // The quotient that is not taken divides by one, so that its gradient is zero and not undefined.
            let quotient = share.div(&x.masked_fill(&is_zero, 1.0)?)?;
            is_zero.where_(at_zero, &quotient)
        };
        Some(result().map(|result| smallvec![result]))
    }
}

#[inline(never)]
fn tile<T: Real>(x: &[T], share: &[T], at_zero: &[T], y: &mut [T]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (((y, &x), &share), &at_zero) in y.iter_mut().zip(x).zip(share).zip(at_zero) {
                *y = if x == T::ZERO { at_zero } else { share / x };
            }
        },
    );
}

/// The registry's entry of the backward op.
pub(super) const BACKWARD_INFO: OpInfo = OpInfo {
    name: "prod_backward",
    doc: "A share divided by each element, or another number where it is zero.",
    samples: backward_samples,
};

fn backward_samples() -> Vec<Sample> {
    let inputs = vec![within(&[2, 3], 0.5, 2.0), floats(&[2, 3]), floats(&[2, 3])];
    vec![Sample::new("no zeros", inputs, |x| call(OpRef::fixed(&Shares), &[&x[0], &x[1], &x[2]]))]
}

methods!(Prod, prod, prod_keepdims, "The product", ["reduce_prod"]);
