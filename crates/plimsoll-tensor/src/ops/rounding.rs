//! `floor`, `ceil`, `round`, `trunc` and `sign`: functions that jump, and are flat between the jumps.
//!
//! Their outputs are floats, so the target of a tape stays connected; the gradient is zero, and nothing is saved for it.

use plimsoll_cpu::math::Real;
use plimsoll_cpu::{map, simd};
use plimsoll_cuda::Gpu;

use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::execute::call;
use crate::eager::op::{Meta, Op, OpRef, Outputs, Pointwise, Run, one};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::cuda::elementwise;
use crate::ops::kernel::{computed, for_computed_floats};
use crate::ops::registry::{OpInfo, Sample, Values, floats, input};

/// Which function.
#[derive(Clone, Copy, Debug)]
enum Rounding {
    Floor,
    Ceil,
    Round,
    Trunc,
    Sign,
}

impl Op for Rounding {
    fn name(&self) -> &'static str {
        match self {
            Rounding::Floor => "floor",
            Rounding::Ceil => "ceil",
            Rounding::Round => "round",
            Rounding::Trunc => "trunc",
            Rounding::Sign => "sign",
        }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        match inputs[0].dtype {
            dtype if dtype.is_float() => one(*inputs[0].shape(), dtype),
            dtype => Err(Error::dtype(
                self.name(),
                format!("takes floats, not {dtype}; convert with `cast(DType::F32)` first"),
            )),
        }
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let (x, y) = (&run.inputs[0], &run.outputs[0]);
        for_computed_floats!(x.dtype(), C => {
            // SAFETY: `execute` hands out operands that are valid for their layouts; the output is fresh, or the input.
            unsafe { map::map1::<C, C>(x.shape(), computed(y), computed(x), |x, y| tile(*self, x, y)) }
        });
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        elementwise::start(self, run, gpu)
    }

    fn pointwise(&self) -> Option<Pointwise> {
        let function = match self {
            Rounding::Round => "rint",
            _ => self.name(),
        };
        Some(Pointwise::new(["y0 = m::", function, "(x0);"]))
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let zero = Tensor::full_like_scalar(&backward.gradient()?, 0.0)?;
        backward.set_grad(0, zero)
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

#[inline(never)]
fn tile<T: Real>(rounding: Rounding, x: &[T], y: &mut [T]) {
    match rounding {
        Rounding::Floor => each(x, y, T::floor),
        Rounding::Ceil => each(x, y, T::ceil),
        Rounding::Round => each(x, y, T::round),
        Rounding::Trunc => each(x, y, T::trunc),
        Rounding::Sign => each(x, y, T::sign),
    }
}

#[inline(always)]
fn each<T: Real>(x: &[T], y: &mut [T], f: impl Fn(T) -> T) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = f(x);
            }
        },
    );
}

macro_rules! roundings {
    ($($name:ident, $rounding:ident, $doc:literal, $reference:expr;)*) => {
        impl Tensor {$(
            #[doc = $doc]
            ///
            /// # Errors
            /// A tensor that is not of floats; memory that is full.
            #[doc = example!(stringify!($name))]
            #[track_caller]
            pub fn $name(&self) -> Result<Tensor> {
                let _line = context::at_callers_line();
                call(OpRef::fixed(&Rounding::$rounding), &[self])
            }
        )*}

        /// The registry's entries.
        pub const INFOS: &[&OpInfo] = &[$(&OpInfo {
            name: stringify!($name),
            doc: $doc,
            samples: || samples(concat!("x0.", stringify!($name), "()"), $reference, |x| x.$name()),
        }),*];
    };
}

roundings! {
    floor, Floor, "The greatest whole number that is not greater than each element.", |x| -(-x).ceil();
    ceil, Ceil, "The least whole number that is not less than each element.", |x| -(-x).floor();
    round, Round, "The whole number nearest to each element, ties to the even one.", f64::round_ties_even;
    trunc, Trunc, "Each element without its fractional part.", |x| x - x % 1.0;
    sign, Sign, "Minus one, zero or one, by the sign of each element; zero for NaN.", |x| x / x.abs();
}

fn samples(torch: &str, reference: fn(f64) -> f64, call: fn(&Tensor) -> Result<Tensor>) -> Vec<Sample> {
    let sample = |name: &str, shape: &[usize]| {
        Sample::new(name, vec![floats(shape)], move |x| call(&x[0]))
            .reference(move |x| x[0].map(reference))
            .torch(torch)
            .example(torch)
            .refuses(vec![input(&[3], Values::Of(crate::base::dtype::DType::I64, 0.0, 5.0))], "takes floats")
    };
    vec![sample("vector", &[7]), sample("square", &[3, 4])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_even_number_and_zero_has_no_sign() {
        let x = Tensor::from_vec(vec![0.5f32, 1.5, -2.5, 0.0, -0.1]).unwrap();
        assert_eq!(x.round().unwrap().to_vec::<f32>().unwrap(), [0.0, 2.0, -2.0, 0.0, -0.0]);
        assert_eq!(x.sign().unwrap().to_vec::<f32>().unwrap(), [1.0, 1.0, -1.0, 0.0, -1.0]);
    }
}
