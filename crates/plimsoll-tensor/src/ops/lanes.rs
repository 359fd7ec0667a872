//! What the kernels that work lane by lane share: softmax, cross entropy and the norms.

use std::ops::Range;

use plimsoll_cpu::element::Element;
use plimsoll_cpu::lanes::{Lane, Lanes, Room};
use plimsoll_cpu::math::Real;
use plimsoll_cpu::reduce::{Source, Stretches, in_lanes};
use plimsoll_cpu::simd;
use plimsoll_cpu::threads::SharedPtr;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::layout::Layout;
use crate::eager::op::{Meta, Operand, TakesMade};

/// An operand seen as lanes: its address and layout.
#[derive(Clone, Copy)]
pub(crate) struct LanePtr<T> {
    first: *mut T,
}

// SAFETY: an address is a number; what is done with it is promised where lanes are made from it.
unsafe impl<T> Sync for LanePtr<T> {}

impl<T: Element> LanePtr<T> {
    pub fn new(operand: &Operand) -> LanePtr<T> {
        LanePtr { first: operand.ptr().cast() }
    }

    /// The lane that begins at `offset`.
    ///
    /// # Safety
    /// As [`Lane::new`].
    #[inline(always)]
    pub unsafe fn lane(&self, offset: isize, step: isize, len: usize) -> Lane<T> {
        // SAFETY: the caller's promise.
        unsafe { Lane::new(self.first.offset(offset), step, len) }
    }

    /// The element at `offset`.
    ///
    /// # Safety
    /// It is one of the operand's, and nobody writes it meanwhile.
    #[inline(always)]
    pub unsafe fn get(&self, offset: isize) -> T {
        // SAFETY: the caller's promise.
        unsafe { *self.first.offset(offset) }
    }

    /// Writes the element at `offset`.
    ///
    /// # Safety
    /// It is one of the operand's, and nobody else uses it meanwhile.
    #[inline(always)]
    pub unsafe fn set(&self, offset: isize, value: T) {
        // SAFETY: the caller's promise.
        unsafe { *self.first.offset(offset) = value };
    }
}

/// The lanes of an operand whose elements may have to be made before they are read. They lie along the last axis then, one lane after
/// the other.
pub(crate) struct MadeLanes<'a> {
    source: Option<&'a dyn Source>,
    memory: SharedPtr<u8>,
    len: usize,
    lane_bytes: usize,
}

/// The most elements that are made before they are read: they are to be in the nearest cache still.
const MADE_AT_ONCE: usize = 4096;

impl<'a> MadeLanes<'a> {
    /// Lanes of `len` elements.
    pub fn new(operand: &Operand<'a>, len: usize) -> MadeLanes<'a> {
        let memory = SharedPtr::new(operand.ptr());
        MadeLanes { source: operand.source(), memory, len, lane_bytes: len * operand.dtype().size() }
    }

    /// Runs `f` on some lanes in order, each when its elements are there.
    #[inline(always)]
    pub fn each(&self, lanes: Range<usize>, mut f: impl FnMut(usize)) {
        let Some(source) = self.source else { return lanes.for_each(f) };
        let at_once = (MADE_AT_ONCE / self.len.max(1)).max(1);
        for first in lanes.clone().step_by(at_once) {
            let end = lanes.end.min(first + at_once);
            let stretch = Stretches { first: first * self.len, n: 1, step: 0, len: (end - first) * self.len };
            // SAFETY: lanes of the operand, which lies row-major in memory, and no other task makes or reads them.
            unsafe { source.make(stretch, self.memory.get().wrapping_add(first * self.lane_bytes)) };
            (first..end).for_each(&mut f);
        }
    }

    /// Runs `f` on all lanes, on many threads where there is much to do.
    #[inline(always)]
    pub fn for_each<const N: usize>(&self, lanes: &Lanes<N>, f: impl Fn(usize) + Sync) {
        lanes.in_stretches(lanes.lanes_per_task(), |stretch| self.each(stretch, &f));
    }
}

/// How an op takes elements that are made along its last axis and lie in its input's memory from then on.
pub(crate) fn made_in_lanes(axis: usize, input: &Meta, over_output: bool) -> Option<TakesMade> {
    let is_last = axis + 1 == input.shape().rank();
    is_last.then_some(TakesMade::Written { over_output })
}

/// The layout of an operand with one element per lane, as if that were repeated along the lanes.
pub(crate) fn per_lane(operand: &Operand) -> Layout {
    let layout = &operand.meta.layout;
    layout.unsqueezed(layout.shape().rank())
}

/// The lanes along the last axis of operands that have it, and of operands with one element per lane.
pub(crate) fn last_axis<const N: usize>(shape: &[usize], layouts: [&Layout; N]) -> Lanes<N> {
    Lanes::along(shape.len() - 1, shape, layouts.map(Layout::strides))
}

/// Refuses an input of a backward op that has not the shape that belongs to it: its kernel would read elsewhere.
pub(crate) fn expect_shape(op: &'static str, what: &str, found: &Meta, expected: &[usize]) -> Result<()> {
    match found.shape().dims() == expected {
        true => Ok(()),
        false => Err(Error::shape(op, format!("{what} is {} but {expected:?} belongs here", found.shape()))),
    }
}

/// Refuses an input of a backward op that has not the dtype that belongs to it.
pub(crate) fn expect_dtype(op: &'static str, what: &str, found: &Meta, expected: DType) -> Result<()> {
    match found.dtype == expected {
        true => Ok(()),
        false => Err(Error::dtype(op, format!("{what} is {} but {expected} belongs here", found.dtype))),
    }
}

/// Refuses an input of a backward op that is not of floats.
pub(crate) fn expect_float(op: &'static str, found: &Meta) -> Result<()> {
    match found.dtype.is_float() {
        true => Ok(()),
        false => Err(Error::dtype(op, format!("takes floats, not {}; convert with `cast`", found.dtype))),
    }
}

/// The sum of the exponentials of a lane, scaled so that it does not overflow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exponentials<C> {
    /// What is taken from each element before its exponential is taken: the greatest, or nothing if that is infinite.
    pub shift: C,
    /// The sum of the exponentials of the shifted elements.
    pub sum: C,
}

impl<C: Real> Exponentials<C> {
    /// Reads a lane once; each piece is looked at twice while it is in the nearest cache.
    pub fn of<T: Element<Compute = C>>(lane: &Lane<T>, room: &mut Room<C>) -> Exponentials<C> {
        let (mut greatest, mut sum, mut is_first) = (C::LEAST, C::ZERO, true);
        for piece in lane.pieces() {
            let values = lane.read(piece, room);
            let max = greatest_of(values);
            let part = sum_of_exponentials(values, shift(max));
            if is_first {
                (greatest, sum, is_first) = (max, part, false);
                continue;
            }
            let both = greatest.max(max);
            let rescaled = |sum: C, max: C| if max == both { sum } else { sum * (max - shift(both)).exp() };
            sum = rescaled(sum, greatest) + rescaled(part, max);
            greatest = both;
        }
        Exponentials { shift: shift(greatest), sum }
    }

    /// The logarithm of the sum of the exponentials of the elements.
    pub fn log(self) -> C {
        self.shift + self.sum.ln()
    }
}

/// What is taken from elements whose greatest is `max`; an infinite one takes away nothing.
#[inline(always)]
pub(crate) fn shift<C: Real>(max: C) -> C {
    if max.abs() == C::GREATEST { C::ZERO } else { max }
}

/// The greatest of some values, or NaN where there is one.
#[inline(never)]
pub(crate) fn greatest_of<C: Real>(values: &[C]) -> C {
    simd::vectorize(
        #[inline(always)]
        || in_lanes(values, C::LEAST, |value, _| value, |a, b| a.max(b)),
    )
}

/// The number of exponentials that are added up side by side.
const N_LANES: usize = 16;

#[inline(always)]
fn add_exponentials<C: Real>(values: &[C; N_LANES], shift: C, lanes: &mut [C; N_LANES]) {
    for (lane, &value) in lanes.iter_mut().zip(values) {
        *lane = *lane + (value - shift).exp();
    }
}

/// The sum of the exponentials of shifted values, in lanes; the last few values are filled up to as many lanes, because
/// an exponential by itself takes as long as many side by side.
#[inline(never)]
fn sum_of_exponentials<C: Real>(values: &[C], shift: C) -> C {
    simd::vectorize(
        #[inline(always)]
        || {
            let (chunks, rest) = values.as_chunks::<N_LANES>();
            let mut lanes = [C::ZERO; N_LANES];
            for chunk in chunks {
                add_exponentials(chunk, shift, &mut lanes);
            }
            if !rest.is_empty() {
                let mut filled = [C::LEAST; N_LANES];
                filled[..rest.len()].copy_from_slice(rest);
                add_exponentials(&filled, shift, &mut lanes);
            }
            let mut width = N_LANES;
            while width > 1 {
                width /= 2;
                for lane in 0..width {
                    lanes[lane] = lanes[lane] + lanes[lane + width];
                }
            }
            lanes[0]
        },
    )
}

/// The sum of some values.
#[inline(never)]
pub(crate) fn sum_of<C: Real>(values: &[C]) -> C {
    simd::vectorize(
        #[inline(always)]
        || in_lanes(values, C::ZERO, |value, _| value, |a, b| a + b),
    )
}

/// The sum of the products of two rows of values.
#[inline(never)]
pub(crate) fn dot<C: Real>(a: &[C], b: &[C]) -> C {
    let b = &b[..a.len()];
    simd::vectorize(
        #[inline(always)]
        || {
            in_lanes(
                a,
                C::ZERO,
                #[inline(always)]
                |value, idx| value * b[idx],
                |a, b| a + b,
            )
        },
    )
}
