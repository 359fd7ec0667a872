//! The loops of batch norm: lanes are the channels of one place, and sums run over lanes.
//!
//! With relu, backward does the norm again to learn where it was positive: [`normal`] is the one formula of both, so that no
//! rounding can make them differ. Where something is added before relu, both are rounded as if they had been stored.

use std::ops::Range;

use plimsoll_cpu::element::{CastTo, Element};
use plimsoll_cpu::lanes::{Lane, Lanes, Room};
use plimsoll_cpu::math::Real;
use plimsoll_cpu::reduce::{Mean, Variance};
use plimsoll_cpu::simd;
use plimsoll_cpu::threads::SharedPtr;

use super::batch::{Behind, batch_axes};
use super::columns::{Stretches, write_all};
use crate::eager::op::{Meta, Operand, Run};
use crate::ops::lanes::{LanePtr, MadeLanes, last_axis};
use crate::ops::reduce::fold;
use crate::ops::unary::Unary;
use crate::ops::unary::relu::Relu;

/// The element of a vector that belongs to a channel.
///
/// # Safety
/// The operand is a vector of `T` with that many elements, and nobody writes it meanwhile.
unsafe fn channel_of<T: Element>(vector: &Operand, channel: usize) -> T::Compute {
    // SAFETY: the caller's promise.
    unsafe { LanePtr::<T>::new(vector).get(channel as isize * vector.meta.layout.strides()[0]) }.widen()
}

/// The norm of every channel with what is behind it, its mean and variance; leaves mean and rstd in the auxiliary outputs, if there
/// are any.
pub(super) fn normalise<T: Element>(eps: f64, behind: Behind, run: &Run<'_>)
where
    T::Compute: Real + CastTo<T::Compute>,
{
    let (x, [_, mean, variance]) = (&run.inputs[0], run.outputs) else { unreachable!("three outputs") };
    let axes = batch_axes(x.shape());
    fold(&Mean::<T::Compute, T::Compute>::new(), x, axes, mean);
    // What had to be made was written when it was read first.
    fold(&Variance::<T::Compute, T::Compute>::new(0.0, false), &x.viewed(x.meta), axes, variance);
    let statistics = |channel: usize| {
        // SAFETY: the reductions have written one element per channel.
        let [mean, variance] =
            [mean, variance].map(|output| unsafe { channel_of::<T::Compute>(output, channel) });
        [mean, (variance + T::Compute::from_f64(eps)).rsqrt()]
    };
    if let [mean, rstd] = run.aux_outputs {
        for channel in 0..mean.n_elems() {
            for (aux, value) in [mean, rstd].into_iter().zip(statistics(channel)) {
                // SAFETY: auxiliary outputs are fresh and contiguous, with one element per channel in the compute type.
                unsafe { LanePtr::<T::Compute>::new(aux).set(channel as isize, value) };
            }
        }
    }
    apply_with::<T>(behind, run, statistics);
}

/// The norm with given statistics. Inputs: x, gamma, beta, mean and rstd.
pub(super) fn apply<T: Element<Compute: Real>>(behind: Behind, run: &Run<'_>) {
    apply_with::<T>(behind, run, |channel| {
        // SAFETY: statistics are vectors of one value per channel, in the compute type.
        [3, 4].map(|input| unsafe { channel_of::<T::Compute>(&run.inputs[input], channel) })
    });
}

/// Writes the first output, given mean and rstd of a channel.
fn apply_with<T: Element<Compute: Real>>(
    behind: Behind,
    run: &Run<'_>,
    statistics: impl Fn(usize) -> [T::Compute; 2],
) {
    let (x, y) = (&run.inputs[0], &run.outputs[0]);
    // What is not there is never read; x stands for it.
    let added = if behind == Behind::AddRelu { &run.inputs[3] } else { x };
    let lanes = last_axis(x.shape(), [x, y, added].map(|operand| &operand.meta.layout));
    // SAFETY: the workspace holds three rows, and this is its only slice.
    let rows = unsafe { rows_of::<T::Compute>(run, 3 * lanes.len) };
    let (means, rest) = rows.split_at_mut(lanes.len);
    let (scales, shifts) = rest.split_at_mut(lanes.len);
    for channel in 0..lanes.len {
        let [mean, rstd] = statistics(channel);
        means[channel] = mean;
        // SAFETY: `infer` has checked that the parameters have one element per channel.
        unsafe {
            scales[channel] = rstd * channel_of::<T>(&run.inputs[1], channel);
            shifts[channel] = channel_of::<T>(&run.inputs[2], channel);
        }
    }
    let (means, scales, shifts) = (&*means, &*scales, &*shifts);
    let is_over = added.ptr() == y.ptr();
    let operands = [x, y, added].map(LanePtr::<T>::new);
    lanes.for_each(|lane| {
        let offsets = lanes.offsets(lane);
        // SAFETY: lanes of operands that `execute` hands out; each lane of the output belongs to one task, and where that lies in
        // the memory of what is added, pieces of it are copies.
        let lane_of = |idx: usize| unsafe { operands[idx].lane(offsets[idx], lanes.steps[idx], lanes.len) };
        let (x, y, added) = (lane_of(0), lane_of(1), lane_of(2).copied(is_over));
        let mut rooms = [const { Room::new() }; 3];
        let [x_room, y_room, added_room] = &mut rooms;
        for piece in x.pieces() {
            let values = x.read(piece.clone(), x_room);
            let rows = [&means[piece.clone()], &scales[piece.clone()], &shifts[piece.clone()]];
            match behind {
                Behind::Nothing => y.write(piece, y_room, |y| apply_tile(values, rows, y)),
                Behind::Relu => y.write(piece, y_room, |y| relu_tile(values, rows, y)),
                Behind::AddRelu => {
                    let added = added.read(piece.clone(), added_room);
                    y.write(piece, y_room, |y| add_relu_tile::<T>([values, added], rows, y));
                }
            }
        }
    });
}

/// The first values of the workspace, as zeros.
///
/// # Safety
/// The workspace holds them, and they are used nowhere else.
unsafe fn rows_of<'a, C: Real>(run: &Run<'_>, len: usize) -> &'a mut [C] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise; zero is a value of every element type.
    unsafe {
        run.workspace.write_bytes(0, len * size_of::<C>());
        std::slice::from_raw_parts_mut(run.workspace.cast(), len)
    }
}

/// The rows of backward: mean, rstd, the factor of the result, and what is taken away: a shift and a factor of x; with relu,
/// beta, too.
const N_ROWS: usize = 5;

/// Rows of one value per channel.
#[derive(Clone, Copy)]
struct Rows<'a, C> {
    values: &'a [C],
    width: usize,
}

impl<'a, C> Rows<'a, C> {
    /// A piece of some rows.
    fn pieces<const N: usize>(self, rows: [usize; N], piece: &Range<usize>) -> [&'a [C]; N] {
        rows.map(|row| &self.values[row * self.width..][piece.clone()])
    }

    /// With relu, a piece of what its input is made with: mean, scale and shift.
    fn gate(self, piece: &Range<usize>) -> Option<[&'a [C]; 3]> {
        (self.values.len() > N_ROWS * self.width).then(|| self.pieces([0, 2, 5], piece))
    }
}

/// The number of values that backward needs room for.
pub(super) fn backward_values(inputs: &[&Meta]) -> usize {
    n_rows(inputs) * inputs[2].n_elems() + stretches(inputs[1]).n_values()
}

/// The number of rows, by the inputs of backward.
fn n_rows<T>(inputs: &[T]) -> usize {
    if inputs.len() > 5 { N_ROWS + 1 } else { N_ROWS }
}

fn stretches(x: &Meta) -> Stretches {
    let width = x.shape().last().copied().unwrap_or(0);
    Stretches::new(x.shape().iter().take(x.shape().rank() - 1).product(), width, 2)
}

/// The gradients that are wanted. Inputs: the gradient of the output, x, gamma, mean and rstd; with relu, beta, too.
pub(super) fn backward<T: Element<Compute: Real>>(wanted: [bool; 3], run: &Run<'_>) {
    let [g, x, ..] = run.inputs else { unreachable!("five operands or six") };
    let dx = if wanted[0] { &run.outputs[0] } else { x };
    let lanes = last_axis(x.shape(), [&g.meta.layout, &x.meta.layout, &dx.meta.layout]);
    let (width, cut) = (lanes.len, stretches(x.meta));
    let n_values = n_rows(run.inputs) * width;
    // SAFETY: the workspace holds these rows and, after them, the sums.
    let (values, shared) = unsafe {
        let sums = run.workspace.cast::<T::Compute>().wrapping_add(n_values);
        (rows_of::<T::Compute>(run, n_values), SharedPtr::new(sums))
    };
    begin_rows::<T>(run.inputs, values, width);
    let made = MadeLanes::new(g, width);
    let pairs = Pairs::<T> { is_over: g.ptr() == dx.ptr(), g: LanePtr::new(g), x: LanePtr::new(x), lanes };
    let rows = Rows { values: &*values, width };
    lanes.in_stretches(cut.per_stretch, |stretch| {
        // SAFETY: the workspace has room for the rows of all stretches, and this task has this stretch alone.
        let (gammas, betas) = unsafe { cut.rows(shared, stretch.start) }.split_at_mut(width);
        made.each(stretch, |lane| {
            let (g, x) = pairs.at(lane);
            add_lane(&g, &x, rows, [&mut *gammas, &mut *betas]);
        });
    });
    // SAFETY: the tasks have written the rows of all stretches.
    let sums = unsafe { cut.all_rows(shared) };
    let outputs = run.outputs[usize::from(wanted[0])..].iter().zip((0..2).filter(|&sum| wanted[1 + sum]));
    for (output, sum) in outputs {
        // SAFETY: the output is fresh, contiguous, and has one element per channel.
        unsafe { write_all::<T>(output.ptr().cast(), cut.total(sums, sum)) };
    }
    if wanted[0] {
        finish_rows(cut.total(sums, 0).zip(cut.total(sums, 1)), lanes.n_lanes, values, width);
        write_lanes(&pairs, Rows { values, width }, &LanePtr::new(dx));
    }
}

/// The gradient and the input of backward, lane by lane.
struct Pairs<T> {
    g: LanePtr<T>,
    x: LanePtr<T>,
    lanes: Lanes<3>,
    /// Whether the result is written over the gradient.
    is_over: bool,
}

impl<T: Element> Pairs<T> {
    #[inline(always)]
    fn at(&self, lane: usize) -> (Lane<T>, Lane<T>) {
        let (offsets, steps) = (self.lanes.offsets(lane), self.lanes.steps);
        // SAFETY: lanes of operands that `execute` hands out; where the result is the gradient's memory, pieces of the
        // gradient are copies.
        unsafe {
            let g = self.g.lane(offsets[0], steps[0], self.lanes.len).copied(self.is_over);
            (g, self.x.lane(offsets[1], steps[1], self.lanes.len))
        }
    }
}

/// Fills the rows that are known before the sums: mean, rstd, the factor and, with relu, beta.
fn begin_rows<T: Element<Compute: Real>>(inputs: &[Operand], rows: &mut [T::Compute], width: usize) {
    let [_, _, gamma, mean, rstd, rest @ ..] = inputs else { unreachable!("five operands or six") };
    for channel in 0..width {
        // SAFETY: these vectors have one element per channel.
        unsafe {
            rows[channel] = channel_of::<T::Compute>(mean, channel);
            rows[width + channel] = channel_of::<T::Compute>(rstd, channel);
            rows[2 * width + channel] = rows[width + channel] * channel_of::<T>(gamma, channel);
            if let [beta] = rest {
                rows[N_ROWS * width + channel] = channel_of::<T>(beta, channel);
            }
        }
    }
}

/// Fills the other rows from the sums for gamma and beta.
fn finish_rows<C: Real>(totals: impl Iterator<Item = (C, C)>, n_lanes: usize, rows: &mut [C], width: usize) {
    let per_lane = C::ONE / C::from_f64(n_lanes as f64);
    for (channel, (for_gamma, for_beta)) in totals.enumerate() {
        rows[3 * width + channel] = for_beta * per_lane;
        rows[4 * width + channel] = for_gamma * per_lane * rows[width + channel];
    }
}

/// Writes the gradient of the input.
fn write_lanes<T: Element<Compute: Real>>(pairs: &Pairs<T>, rows: Rows<'_, T::Compute>, result: &LanePtr<T>) {
    let lanes = &pairs.lanes;
    lanes.for_each(|lane| {
        let (g, x) = pairs.at(lane);
        // SAFETY: a lane of the result, which belongs to this task.
        let result = unsafe { result.lane(lanes.offsets(lane)[2], lanes.steps[2], lanes.len) };
        write_lane(&g, &x, rows, &result);
    });
}

/// Adds a lane to the sums for gamma and beta. Lanes are as short as there are channels, so a call for each would be felt.
#[inline(always)]
fn add_lane<T: Element<Compute: Real>>(
    g: &Lane<T>,
    x: &Lane<T>,
    rows: Rows<'_, T::Compute>,
    [gammas, betas]: [&mut [T::Compute]; 2],
) {
    let mut rooms = [const { Room::new() }; 3];
    let [g_room, x_room, gate_room] = &mut rooms;
    for piece in x.pieces() {
        let (g, x) = (g.read(piece.clone(), g_room), x.read(piece.clone(), x_room));
        let g = gated([g, x], rows.gate(&piece), gate_room);
        columns_tile([g, x], rows.pieces([0, 1], &piece), &mut gammas[piece.clone()], &mut betas[piece]);
    }
}

/// Writes a lane of the result.
#[inline(always)]
fn write_lane<T: Element<Compute: Real>>(
    g: &Lane<T>,
    x: &Lane<T>,
    rows: Rows<'_, T::Compute>,
    result: &Lane<T>,
) {
    let mut rooms = [const { Room::new() }; 4];
    let [g_room, x_room, gate_room, result_room] = &mut rooms;
    for piece in x.pieces() {
        let (g, x) = (g.read(piece.clone(), g_room), x.read(piece.clone(), x_room));
        let g = gated([g, x], rows.gate(&piece), gate_room);
        let rows = rows.pieces([0, 2, 3, 4], &piece);
        result.write(piece, result_room, |y| grad_tile([g, x], rows, y));
    }
}

/// The gradient of the norm from that of the output: with relu, what passes through it.
fn gated<'a, C: Real + Element>(
    [g, x]: [&'a [C]; 2],
    gate: Option<[&[C]; 3]>,
    room: &'a mut Room<C>,
) -> &'a [C] {
    let Some(rows) = gate else { return g };
    let passed = room.zeros(g.len());
    gate_tile([g, x], rows, passed);
    passed
}

/// An element of the norm.
#[inline(always)]
fn normal<C: Real>(x: C, [mean, scale, shift]: [C; 3]) -> C {
    (x - mean) * scale + shift
}

#[inline(never)]
fn apply_tile<C: Real>(x: &[C], [means, scales, shifts]: [&[C]; 3], y: &mut [C]) {
    simd::vectorize(
        #[inline(always)]
        || {
            let rows = means.iter().zip(scales).zip(shifts);
            for ((y, &x), ((&mean, &scale), &shift)) in y.iter_mut().zip(x).zip(rows) {
                *y = normal(x, [mean, scale, shift]);
            }
        },
    );
}

#[inline(never)]
fn relu_tile<C: Real>(x: &[C], [means, scales, shifts]: [&[C]; 3], y: &mut [C]) {
    simd::vectorize(
        #[inline(always)]
        || {
            let rows = means.iter().zip(scales).zip(shifts);
            for ((y, &x), ((&mean, &scale), &shift)) in y.iter_mut().zip(x).zip(rows) {
                *y = Relu.value(normal(x, [mean, scale, shift]));
            }
        },
    );
}

#[inline(never)]
fn add_relu_tile<T: Element<Compute: Real>>(
    [x, added]: [&[T::Compute]; 2],
    [means, scales, shifts]: [&[T::Compute]; 3],
    y: &mut [T::Compute],
) {
    simd::vectorize(
        #[inline(always)]
        || {
            let rows = means.iter().zip(scales).zip(shifts);
            for (((y, &x), &added), ((&mean, &scale), &shift)) in y.iter_mut().zip(x).zip(added).zip(rows) {
                let normal = T::narrow(normal(x, [mean, scale, shift])).widen();
                *y = Relu.value(T::narrow(normal + added).widen());
            }
        },
    );
}

#[inline(never)]
fn gate_tile<C: Real>([g, x]: [&[C]; 2], [means, scales, shifts]: [&[C]; 3], y: &mut [C]) {
    simd::vectorize(
        #[inline(always)]
        || {
            let rows = means.iter().zip(scales).zip(shifts);
            for (((y, &g), &x), ((&mean, &scale), &shift)) in y.iter_mut().zip(g).zip(x).zip(rows) {
                *y = g * Relu.backward_kernel(normal(x, [mean, scale, shift]));
            }
        },
    );
}

#[inline(never)]
fn columns_tile<C: Real>([g, x]: [&[C]; 2], [means, rstds]: [&[C]; 2], gammas: &mut [C], betas: &mut [C]) {
    simd::vectorize(
        #[inline(always)]
        || {
            let inputs = g.iter().zip(x).zip(means).zip(rstds);
            for ((((&g, &x), &mean), &rstd), (gamma, beta)) in inputs.zip(gammas.iter_mut().zip(betas)) {
                *gamma = *gamma + g * ((x - mean) * rstd);
                *beta = *beta + g;
            }
        },
    );
}

#[inline(never)]
fn grad_tile<C: Real>([g, x]: [&[C]; 2], [means, factors, shifts, x_factors]: [&[C]; 4], y: &mut [C]) {
    simd::vectorize(
        #[inline(always)]
        || {
            let rows = means.iter().zip(factors).zip(shifts).zip(x_factors);
            for (((y, &g), &x), (((&mean, &factor), &shift), &x_factor)) in
                y.iter_mut().zip(g).zip(x).zip(rows)
            {
                *y = (g - shift - (x - mean) * x_factor) * factor;
            }
        },
    );
}
