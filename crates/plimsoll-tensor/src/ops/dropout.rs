//! `dropout`: each element is zero with some probability, and scaled up otherwise.
//!
//! The op holds its draw (seed and number), so no mask is kept: backward, and whoever rebuilds the output, draws the
//! same bits again. Element `i` in row-major order is kept if word `i` of the draw is below a threshold.

use plimsoll_cpu::element::Element;
use plimsoll_cpu::lanes::{Lanes, Room};
use plimsoll_cpu::map::TILE_LEN;
use plimsoll_cpu::math::Real;
use plimsoll_cpu::random::{Draw, keep_threshold};
use plimsoll_cpu::simd;
use plimsoll_cuda::Gpu;

use crate::base::error::{Error, Result};
use crate::eager::context;
use crate::eager::execute::{Arg, call, call_with};
use crate::eager::op::{Meta, Op, OpRef, Operand, Outputs, Pointwise, Run, one};
use crate::eager::random::{self, Generator};
use crate::eager::tape::Backward;
use crate::eager::tensor::Tensor;
use crate::ops::cuda::elementwise;
use crate::ops::kernel::for_floats;
use crate::ops::lanes::LanePtr;
use crate::ops::registry::{Array, OpInfo, Sample, Values, floats, input};

/// f(x) = x / (1 - rate) where the draw keeps it, else 0. Linear, so its gradient is the same op with the same draw.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dropout {
    pub rate: f64,
    pub draw: Draw,
}

impl Op for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        let dtype = inputs[0].dtype;
        if !dtype.is_float() {
            let detail = format!("takes floats, not {dtype}; convert with `cast(DType::F32)` first");
            return Err(Error::dtype("dropout", detail));
        }
        one(*inputs[0].shape(), dtype)
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        for_floats!(run.inputs[0].dtype(), T => drop_some::<T>(*self, run.first, &run.inputs[0], &run.outputs[0]));
        Ok(())
    }

    fn run_cuda(&self, run: &mut Run<'_>, gpu: &Gpu) -> Result<()> {
        elementwise::start(self, run, gpu)
    }

    fn pointwise(&self) -> Option<Pointwise> {
        let body = ["y0 = random < (u32)WORD(2) ? x0 * NUMBER(0) : C(0);", "", ""];
        Some(Pointwise::new(body).numbers(&[self.scale()]).draw(self.draw, &[u64::from(self.threshold())]))
    }

    fn backward(&self, backward: &mut Backward<'_>) -> Result<()> {
        let gradient = Arg::Given(backward.gradient()?);
        backward.set_grad(0, call_with(OpRef::shipped(*self), smallvec::smallvec![gradient])?)
    }

    fn overwrites(&self) -> &'static [usize] {
        &[0]
    }

    fn with_draw(&self, next: &dyn Fn(Draw) -> Draw) -> Option<OpRef> {
        Some(OpRef::shipped(self.redrawn(next)))
    }

    fn is_cheap(&self) -> bool {
        true
    }
}

impl Dropout {
    /// Dropout with the next draw of the thread's generator; none for a rate of zero, which changes nothing.
    pub fn drawn(op: &'static str, rate: f64) -> Result<Option<Dropout>> {
        if !(0.0..=1.0).contains(&rate) {
            return Err(Error::argument(op, format!("a rate of {rate}; it is a probability from 0 to 1")));
        }
        Ok((rate > 0.0).then(|| Dropout { rate, draw: random::draw() }))
    }

    /// The same dropout with the draw that `next` makes of its own.
    pub fn redrawn(self, next: &dyn Fn(Draw) -> Draw) -> Dropout {
        Dropout { draw: next(self.draw), ..self }
    }

    /// What a kept element is multiplied by.
    pub fn scale(self) -> f64 {
        if self.rate < 1.0 { 1.0 / (1.0 - self.rate) } else { 0.0 }
    }

    /// The words below it keep their elements.
    pub fn threshold(self) -> u32 {
        keep_threshold(1.0 - self.rate)
    }

    /// Drops some of the elements from number `first` on.
    #[inline(never)]
    pub fn tile<C: Real>(self, first: usize, x: &[C], y: &mut [C]) {
        let (threshold, scale) = (self.threshold(), C::from_f64(self.scale()));
        // Words come in blocks of four, and a piece may begin inside one.
        let skipped = first % 4;
        let mut words = [0; TILE_LEN + 4];
        simd::vectorize(
            #[inline(always)]
            || {
                let words = &mut words[..x.len() + skipped];
                self.draw.words(first - skipped, words);
                for ((y, &x), &word) in y.iter_mut().zip(x).zip(&words[skipped..]) {
                    *y = if word < threshold { x * scale } else { C::ZERO };
                }
            },
        );
    }
}

/// The length of the lanes that contiguous operands are cut into: many tasks of whole pieces.
const CUT: usize = 16 * TILE_LEN;

/// Drops some of the elements of operands whose first element has number `before`.
fn drop_some<T: Element<Compute: Real>>(op: Dropout, before: usize, x: &Operand, y: &Operand) {
    let n_elems = x.n_elems();
    if n_elems == 0 {
        return;
    }
    // Contiguous operands are lanes of an even length and a rest; others are lanes along their last axis.
    let (shape, rest): (&[usize], usize) = match x.is_contiguous() {
        true => (&[n_elems / CUT, CUT], n_elems % CUT),
        false => (x.shape(), 0),
    };
    let strides: [&[isize]; 2] = match x.is_contiguous() {
        true => [&[CUT as isize, 1]; 2],
        false => [x.meta.layout.strides(), y.meta.layout.strides()],
    };
    let is_over = x.ptr() == y.ptr();
    let (x, y) = (LanePtr::<T>::new(x), LanePtr::<T>::new(y));
    let run_lane = |first: usize, offsets: [isize; 2], steps: [isize; 2], len: usize| {
        // SAFETY: lanes of operands that `execute` hands out; each lane of the output belongs to one task, and where it
        // is the input's memory, pieces of the input are copies.
        let (x, y) = unsafe { (x.lane(offsets[0], steps[0], len), y.lane(offsets[1], steps[1], len)) };
        let (x, mut x_room, mut y_room) = (x.copied(is_over), Room::new(), Room::new());
        for piece in x.pieces() {
            let values = x.read(piece.clone(), &mut x_room);
            y.write(piece.clone(), &mut y_room, |y| op.tile(before + first + piece.start, values, y));
        }
    };
    let lanes = Lanes::along(shape.len() - 1, shape, strides);
    lanes.for_each(|lane| run_lane(lane * lanes.len, lanes.offsets(lane), lanes.steps, lanes.len));
    let first = n_elems - rest;
    run_lane(first, [first as isize; 2], [1; 2], rest);
}

impl Tensor {
    /// Each element zero with probability `rate`, else divided by `1 - rate`, so that the expected value stays. Takes
    /// one draw of the thread's generator, and none for a rate of zero, which changes nothing.
    ///
    /// # Errors
    /// A rate that is not between 0 and 1, a tensor that is not of floats; memory that is full.
    #[doc = example!("dropout")]
    #[track_caller]
    pub fn dropout(&self, rate: f64) -> Result<Tensor> {
        let _line = context::at_callers_line();
        match Dropout::drawn("dropout", rate)? {
            Some(dropout) => call(OpRef::shipped(dropout), &[self]),
            None => Ok(self.clone()),
        }
    }
}

/// The registry's entries.
pub const INFOS: &[&OpInfo] =
    &[&OpInfo { name: "dropout", doc: "Each element zero with some probability, else scaled up.", samples }];

fn samples() -> Vec<Sample> {
    let sample = |name: &str, shape: &'static [usize], rate: f64| {
        // Every call of a sample must draw the same bits, so it begins with the same generator.
        let call = move |x: &[Tensor]| {
            let before = Generator::current();
            Generator::new(17).make_current();
            let result = x[0].dropout(rate);
            before.make_current();
            result
        };
        Sample::new(name, vec![floats(shape)], call)
            .reference(move |x| {
                let draw = Draw { seed: 17, number: 0 };
                let limit = (1.0 - rate) * 2f64.powi(32);
                let mut idx = 0;
                Array::build(shape, |at| {
                    let is_kept = f64::from(draw.word(idx)) < limit.floor();
                    idx += 1;
                    if is_kept { x[0].at(at) / (1.0 - rate) } else { 0.0 }
                })
            })
            .example(format!("set_seed(17); x0.dropout({rate:?})"))
    };
    let wrong = input(&[3], Values::Of(crate::base::dtype::DType::I64, 0.0, 5.0));
    vec![sample("vector", &[37], 0.25).refuses(vec![wrong], "takes floats"), sample("cube", &[2, 3, 5], 0.5)]
}

#[cfg(test)]
mod tests {
    use crate::autograd::GradientTape;
    use crate::base::error::Result;
    use crate::eager::random::set_seed;
    use crate::eager::tensor::Tensor;

    #[test]
    fn a_share_of_the_elements_is_dropped_and_the_gradient_drops_the_same() -> Result<()> {
        set_seed(3);
        let x = Tensor::ones([300, 301])?;
        let tape = GradientTape::new();
        tape.watch(&x)?;
        let y = tape.record(|| x.dropout(0.3))?;
        assert_eq!(tape.saved().bytes(), 0);
        let [dx] = tape.gradient(&y, [&x])?;
        let (y, dx) = (y.to_vec::<f32>()?, dx.to_vec::<f32>()?);
        assert_eq!(y, dx);
        let share = y.iter().filter(|&&y| y == 0.0).count() as f64 / y.len() as f64;
        assert!((share - 0.3).abs() < 0.01, "{share}");
        assert!(y.iter().all(|&y| y == 0.0 || (y - 1.0 / 0.7).abs() < 1e-6));
        Ok(())
    }

    #[test]
    fn the_bits_belong_to_elements_and_not_to_memory() -> Result<()> {
        let x = Tensor::randn([130, 150])?;
        let dropped = |x: &Tensor| {
            set_seed(5);
            x.dropout(0.5)?.to_vec::<f32>()
        };
        assert_eq!(dropped(&x.t()?)?, dropped(&x.t()?.contiguous()?)?);
        Ok(())
    }

    #[test]
    fn rates_of_zero_and_one_are_exact_and_others_are_refused() -> Result<()> {
        let x = Tensor::ones(9)?;
        assert_eq!(x.dropout(0.0)?.to_vec::<f32>()?, [1.0; 9]);
        assert_eq!(x.dropout(1.0)?.to_vec::<f32>()?, [0.0; 9]);
        assert!(x.dropout(1.5).is_err_and(|error| error.to_string().contains("a rate of 1.5")));
        assert!(x.dropout(f64::NAN).is_err());
        Ok(())
    }
}
