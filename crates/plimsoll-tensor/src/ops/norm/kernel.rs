//! The loops of layer and RMS norm: lane by lane, with statistics in the compute type.

use plimsoll_cpu::element::{Element, Number};
use plimsoll_cpu::lanes::{Lane, Room};
use plimsoll_cpu::math::Real;
use plimsoll_cpu::reduce::in_lanes;
use plimsoll_cpu::simd;
use plimsoll_cpu::threads::SharedPtr;

use super::add::AddLastAxisNorm;
use super::columns::{Stretches, write_all};
use super::last_axis::LastAxisNormBackward;
use crate::eager::op::{Meta, Operand, Run};
use crate::ops::dropout::Dropout;
use crate::ops::lanes::{LanePtr, MadeLanes, dot, last_axis, per_lane, sum_of};

/// Gamma or beta: one lane that every lane of the input meets.
struct Parameter<T> {
    first: LanePtr<T>,
    step: isize,
    len: usize,
}

impl<T: Element> Parameter<T> {
    fn new(operand: &Operand) -> Parameter<T> {
        Parameter {
            first: LanePtr::new(operand),
            step: operand.meta.layout.strides()[0],
            len: operand.shape()[0],
        }
    }

    fn lane(&self) -> Lane<T> {
        // SAFETY: a vector that `execute` hands out, seen as one lane; nobody writes it while the op runs.
        unsafe { self.first.lane(0, self.step, self.len) }
    }
}

/// A lane's mean (zero if that is not taken away) and one over its deviation.
fn statistics<T: Element<Compute: Real>>(
    x: &Lane<T>,
    len: usize,
    is_centred: bool,
    eps: f64,
) -> [T::Compute; 2] {
    let n = T::Compute::from_f64(len as f64);
    let mut room = Room::new();
    let mut mean = T::Compute::ZERO;
    if is_centred {
        for piece in x.pieces() {
            mean = mean + sum_of(x.read(piece, &mut room));
        }
        mean = mean / n;
    }
    let mut squares = T::Compute::ZERO;
    for piece in x.pieces() {
        squares = squares + squared_distances(x.read(piece, &mut room), mean);
    }
    [mean, (squares / n + T::Compute::from_f64(eps)).rsqrt()]
}

/// The norm of every lane. Inputs: x, gamma and, if it is centred, beta. Leaves the statistics in the auxiliary outputs, if
/// any.
pub(super) fn normalise<T: Element<Compute: Real>>(
    (is_centred, eps): (bool, f64),
    inputs: &[Operand],
    y: &Operand,
    aux_outputs: &[Operand],
) {
    let lanes = last_axis(y.shape(), [&inputs[0].meta.layout, &y.meta.layout]);
    let (is_over, made) = (inputs[0].ptr() == y.ptr(), MadeLanes::new(&inputs[0], lanes.len));
    let (x, y) = (LanePtr::<T>::new(&inputs[0]), LanePtr::<T>::new(y));
    let gamma = Parameter::<T>::new(&inputs[1]);
    let beta = inputs.get(2).map(Parameter::<T>::new);
    let kept = SavedStatistics::new(aux_outputs);
    made.for_each(&lanes, |lane| {
        let [x_offset, y_offset] = lanes.offsets(lane);
        // SAFETY: lanes of operands that `execute` hands out; each lane of the output belongs to one task, and where it is the
        // input's memory, pieces of the input are copies.
        let (x, y) = unsafe {
            (x.lane(x_offset, lanes.steps[0], lanes.len), y.lane(y_offset, lanes.steps[1], lanes.len))
        };
        let x = x.copied(is_over);
        let found = statistics(&x, lanes.len, is_centred, eps);
        kept.set(lane, found);
        apply_lane(&x, &gamma, beta.as_ref(), found, &y);
    });
}

/// Where the statistics of lanes are left, if that is wanted.
struct SavedStatistics<C>([Option<LanePtr<C>>; 2]);

impl<C: Element> SavedStatistics<C> {
    fn new(aux_outputs: &[Operand]) -> SavedStatistics<C> {
        // The second of the two is kept alone where there is no mean.
        SavedStatistics(
            [0, 1]
                .map(|idx| (idx + aux_outputs.len()).checked_sub(2).map(|at| LanePtr::new(&aux_outputs[at]))),
        )
    }

    fn set(&self, lane: usize, found: [C; 2]) {
        for (kept, value) in self.0.iter().zip(found) {
            if let Some(kept) = kept {
                // SAFETY: an auxiliary output is fresh and contiguous, with one element per lane, and each lane belongs to
                // one task.
                unsafe { kept.set(lane as isize, value) };
            }
        }
    }
}

/// The sum of x and a branch, of which some elements may be dropped, and its norm. Inputs: x, the branch, and the norm's
/// parameters; outputs: the sum, which may lie in the branch's memory, and the norm. Leaves the statistics in the
/// auxiliary outputs, if any.
pub(super) fn add_and_normalise<T: Element<Compute: Real>>(op: &AddLastAxisNorm, run: &Run<'_>) {
    let (x, branch, sum, y) = (&run.inputs[0], &run.inputs[1], &run.outputs[0], &run.outputs[1]);
    let layouts = [x, branch, sum, y].map(|operand| &operand.meta.layout);
    let lanes = last_axis(y.shape(), layouts);
    let is_over = branch.ptr() == sum.ptr();
    let operands = [x, branch, sum, y].map(LanePtr::<T>::new);
    let gamma = Parameter::<T>::new(&run.inputs[2]);
    let beta = run.inputs.get(3).map(Parameter::<T>::new);
    let kept = SavedStatistics::new(run.aux_outputs);
    lanes.for_each(|lane| {
        let offsets = lanes.offsets(lane);
        // SAFETY: lanes of operands that `execute` hands out; each lane of the outputs belongs to one task, and where the sum
        // lies in the branch's memory, pieces of the branch are copies.
        let lane_of = |idx: usize| unsafe { operands[idx].lane(offsets[idx], lanes.steps[idx], lanes.len) };
        let (x, branch, sum, y) = (lane_of(0), lane_of(1).copied(is_over), lane_of(2), lane_of(3));
        add_lane(&x, &branch, op.dropout, lane * lanes.len, &sum);
        let found = statistics(&sum, lanes.len, op.norm.is_centred, op.norm.eps);
        kept.set(lane, found);
        apply_lane(&sum, &gamma, beta.as_ref(), found, &y);
    });
}

/// The sum of a lane of x and one of the branch, whose first element has the number `first`.
fn add_lane<T: Element<Compute: Real>>(
    x: &Lane<T>,
    branch: &Lane<T>,
    dropout: Option<Dropout>,
    first: usize,
    sum: &Lane<T>,
) {
    let mut rooms = [const { Room::new() }; 4];
    let [x_room, branch_room, dropped_room, sum_room] = &mut rooms;
    for piece in x.pieces() {
        let x = x.read(piece.clone(), x_room);
        let mut branch = branch.read(piece.clone(), branch_room);
        if let Some(dropout) = dropout {
            let dropped = dropped_room.zeros(branch.len());
            dropout.tile(first + piece.start, branch, dropped);
            round::<T>(dropped);
            branch = dropped;
        }
        sum.write(piece, sum_room, |sum| sum_tile(x, branch, sum));
    }
}

/// Rounds values as if they had been stored.
fn round<T: Element<Compute: Real>>(values: &mut [T::Compute]) {
    if T::IS_COMPUTE {
        return;
    }
    simd::vectorize(
        #[inline(always)]
        || {
            for value in values {
                *value = T::narrow(*value).widen();
            }
        },
    );
}

/// The norm of every lane with given statistics. Inputs: those of [`normalise`], then its auxiliary outputs.
pub(super) fn apply<T: Element<Compute: Real>>(is_centred: bool, inputs: &[Operand], y: &Operand) {
    let rstd = &inputs[inputs.len() - 1];
    let mean = if is_centred { &inputs[3] } else { rstd };
    let layouts = [&inputs[0].meta.layout, &y.meta.layout, &per_lane(mean), &per_lane(rstd)];
    let lanes = last_axis(y.shape(), layouts);
    let (x, y) = (LanePtr::<T>::new(&inputs[0]), LanePtr::<T>::new(y));
    let (mean, rstd) = (LanePtr::<T::Compute>::new(mean), LanePtr::<T::Compute>::new(rstd));
    let gamma = Parameter::<T>::new(&inputs[1]);
    let beta = is_centred.then(|| Parameter::<T>::new(&inputs[2]));
    lanes.for_each(|lane| {
        let offsets = lanes.offsets(lane);
        // SAFETY: lanes and elements of operands that `execute` hands out; each lane of the fresh output belongs to one
        // task.
        let (x, y, mean, rstd) = unsafe {
            (
                x.lane(offsets[0], lanes.steps[0], lanes.len),
                y.lane(offsets[1], lanes.steps[1], lanes.len),
                if is_centred { mean.get(offsets[2]) } else { T::Compute::ZERO },
                rstd.get(offsets[3]),
            )
        };
        apply_lane(&x, &gamma, beta.as_ref(), [mean, rstd], &y);
    });
}

fn apply_lane<T: Element<Compute: Real>>(
    x: &Lane<T>,
    gamma: &Parameter<T>,
    beta: Option<&Parameter<T>>,
    [mean, rstd]: [T::Compute; 2],
    y: &Lane<T>,
) {
    let mut rooms = [const { Room::new() }; 4];
    let [x_room, gamma_room, beta_room, y_room] = &mut rooms;
    let (gamma, beta) = (gamma.lane(), beta.map(Parameter::lane));
    for piece in x.pieces() {
        let (x, gamma) = (x.read(piece.clone(), x_room), gamma.read(piece.clone(), gamma_room));
        match &beta {
            Some(beta) => {
                let beta = beta.read(piece.clone(), beta_room);
                y.write(piece, y_room, |y| layer_tile(x, gamma, beta, [mean, rstd], y));
            }
            None => y.write(piece, y_room, |y| rms_tile(x, gamma, rstd, y)),
        }
    }
}

/// The lanes of x cut for the sums of gamma's and beta's gradients.
fn stretches(x: &Meta, wanted: [bool; 3]) -> Stretches {
    let width = x.shape().last().copied().unwrap_or(0);
    let n_lanes = x.shape().iter().take(x.shape().rank() - 1).product();
    Stretches::new(n_lanes, width, if wanted[1] || wanted[2] { 2 } else { 0 })
}

/// The number of values that backward needs room for.
pub(super) fn backward_values(x: &Meta, wanted: [bool; 3]) -> usize {
    stretches(x, wanted).n_values()
}

/// The gradients that are wanted. Inputs: the gradient of the output, x, gamma, the auxiliary outputs of [`normalise`], and a
/// gradient that x has from elsewhere, if there is one.
pub(super) fn backward<T: Element<Compute: Real>>(op: &LastAxisNormBackward, run: &Run<'_>) {
    let (is_centred, wanted) = (op.norm.is_centred, op.wanted);
    let n_aux = op.norm.n_aux();
    let (g, x, mean, rstd) = (&run.inputs[0], &run.inputs[1], &run.inputs[3], &run.inputs[2 + n_aux]);
    // What is not there is never read; x stands for it.
    let joined = run.inputs.get(3 + n_aux);
    let dx = run.outputs.first().filter(|_| wanted[0]);
    let dropped = run.outputs.last().filter(|_| op.dropout.is_some());
    let operands = [g, x, joined.unwrap_or(x), dx.unwrap_or(x), dropped.unwrap_or(x)];
    let [g_at, x_at, joined_at, dx_at, dropped_at] = operands.map(|operand| &operand.meta.layout);
    let layouts = [g_at, x_at, joined_at, dx_at, dropped_at, &per_lane(mean), &per_lane(rstd)];
    let (lanes, cut) = (last_axis(x.shape(), layouts), stretches(x.meta, wanted));
    let (is_over, made) = (g.ptr() == operands[3].ptr(), MadeLanes::new(g, lanes.len));
    let operands = operands.map(LanePtr::<T>::new);
    let (gamma, mean, rstd) = (Parameter::<T>::new(&run.inputs[2]), LanePtr::new(mean), LanePtr::new(rstd));
    let (is_joined, has_dx) = (joined.is_some(), dx.is_some());
    let workspace = SharedPtr::new(run.workspace.cast::<T::Compute>());
    lanes.in_stretches(cut.per_stretch, |stretch| {
        // SAFETY: the workspace has room for the rows of all stretches, and this task has this stretch alone.
        let sums = unsafe { cut.rows(workspace, stretch.start) };
        made.each(stretch, |lane| {
            let offsets = lanes.offsets(lane);
            // SAFETY: lanes of operands that `execute` hands out; each lane of a result belongs to one task, and where it is
            // the gradient's memory, pieces of the gradient are copies.
            let lane_of =
                |idx: usize| unsafe { operands[idx].lane(offsets[idx], lanes.steps[idx], lanes.len) };
            // SAFETY: elements of operands that `execute` hands out.
            let [mean, rstd] = unsafe { [mean.get(offsets[5]), rstd.get(offsets[6])] };
            let row = Row {
                g: lane_of(0).copied(is_over),
                x: lane_of(1),
                joined: is_joined.then(|| lane_of(2)),
                gamma: gamma.lane(),
                mean: if is_centred { mean } else { T::Compute::ZERO },
                rstd,
            };
            let dx = has_dx.then(|| lane_of(3));
            row.backward(is_centred, lanes.len, dx.as_ref(), sums);
            if let (Some(dropout), Some(dx)) = (op.dropout, dx) {
                drop_lane(dropout, &dx, lane * lanes.len, &lane_of(4));
            }
        });
    });
    // SAFETY: the rows of all stretches, which the tasks have written.
    let sums = unsafe { cut.all_rows(workspace) };
    let outputs = &run.outputs[usize::from(wanted[0])..];
    let numbers = (0..2).filter(|&sum| wanted[1 + sum]);
    for (output, sum) in outputs.iter().zip(numbers) {
        // SAFETY: the output is fresh, contiguous, and as wide as a lane.
        unsafe { write_all::<T>(output.ptr().cast(), cut.total(sums, sum)) };
    }
}

/// Drops some elements of a lane whose first has the number `first`.
fn drop_lane<T: Element<Compute: Real>>(dropout: Dropout, x: &Lane<T>, first: usize, y: &Lane<T>) {
    let (mut x_room, mut y_room) = (Room::new(), Room::new());
    for piece in x.pieces() {
        let x = x.read(piece.clone(), &mut x_room);
        y.write(piece.clone(), &mut y_room, |y| dropout.tile(first + piece.start, x, y));
    }
}

/// One lane of what backward reads.
struct Row<T: Element> {
    g: Lane<T>,
    x: Lane<T>,
    /// A gradient that x has from elsewhere.
    joined: Option<Lane<T>>,
    gamma: Lane<T>,
    mean: T::Compute,
    rstd: T::Compute,
}

impl<T: Element<Compute: Real>> Row<T> {
    /// Writes the gradient of x, if it is wanted, and adds to the sums for gamma and beta, if there are any.
    fn backward(&self, is_centred: bool, len: usize, dx: Option<&Lane<T>>, sums: &mut [T::Compute]) {
        let mut rooms = [const { Room::new() }; 5];
        let [g_room, x_room, gamma_room, joined_room, dx_room] = &mut rooms;
        let statistics = [self.mean, self.rstd];
        let zero = T::Compute::ZERO;
        let (mut shared, mut along) = (zero, zero);
        if dx.is_some() {
            for piece in self.x.pieces() {
                let g = self.g.read(piece.clone(), g_room);
                let x = self.x.read(piece.clone(), x_room);
                let gamma = self.gamma.read(piece, gamma_room);
                shared = shared + if is_centred { dot(g, gamma) } else { zero };
                along = along + dot_normalised(g, gamma, x, statistics);
            }
        }
        let per_elem = T::Compute::ONE / T::Compute::from_f64(len as f64);
        let means = [shared * per_elem, along * per_elem];
        for piece in self.x.pieces() {
            let g = self.g.read(piece.clone(), g_room);
            let x = self.x.read(piece.clone(), x_room);
            if !sums.is_empty() {
                let (gammas, betas) = sums.split_at_mut(len);
                columns_tile(g, x, statistics, &mut gammas[piece.clone()], &mut betas[piece.clone()]);
            }
            let Some(dx) = dx else { continue };
            let gamma = self.gamma.read(piece.clone(), gamma_room);
            dx.write(piece.clone(), dx_room, |dx| {
                grad_tile([g, x, gamma], statistics, means, dx);
                if let Some(joined) = &self.joined {
                    round::<T>(dx);
                    add_tile(joined.read(piece, joined_room), dx);
                }
            });
        }
    }
}

#[inline(never)]
fn squared_distances<C: Real>(x: &[C], mean: C) -> C {
    simd::vectorize(
        #[inline(always)]
        || {
            in_lanes(
                x,
                C::ZERO,
                #[inline(always)]
                |x, _| (x - mean) * (x - mean),
                |a, b| a + b,
            )
        },
    )
}

/// The sum of g gamma and the normalised x.
#[inline(never)]
fn dot_normalised<C: Real>(g: &[C], gamma: &[C], x: &[C], [mean, rstd]: [C; 2]) -> C {
    let (gamma, x) = (&gamma[..g.len()], &x[..g.len()]);
    simd::vectorize(
        #[inline(always)]
        || {
            in_lanes(
                g,
                C::ZERO,
                #[inline(always)]
                |g, idx| g * gamma[idx] * ((x[idx] - mean) * rstd),
                |a, b| a + b,
            )
        },
    )
}

#[inline(never)]
fn layer_tile<C: Real>(x: &[C], gamma: &[C], beta: &[C], [mean, rstd]: [C; 2], y: &mut [C]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (((y, &x), &gamma), &beta) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
                *y = (x - mean) * rstd * gamma + beta;
            }
        },
    );
}

#[inline(never)]
fn rms_tile<C: Real>(x: &[C], gamma: &[C], rstd: C, y: &mut [C]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for ((y, &x), &gamma) in y.iter_mut().zip(x).zip(gamma) {
                *y = x * rstd * gamma;
            }
        },
    );
}

#[inline(never)]
fn grad_tile<C: Real>([g, x, gamma]: [&[C]; 3], [mean, rstd]: [C; 2], means: [C; 2], dx: &mut [C]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (((dx, &g), &x), &gamma) in dx.iter_mut().zip(g).zip(x).zip(gamma) {
                *dx = (g * gamma - means[0] - (x - mean) * rstd * means[1]) * rstd;
            }
        },
    );
}

#[inline(never)]
fn columns_tile<C: Real>(g: &[C], x: &[C], [mean, rstd]: [C; 2], gammas: &mut [C], betas: &mut [C]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (((&g, &x), gamma), beta) in g.iter().zip(x).zip(gammas).zip(betas) {
                *gamma = *gamma + g * ((x - mean) * rstd);
                *beta = *beta + g;
            }
        },
    );
}

#[inline(never)]
fn sum_tile<C: Real>(x: &[C], branch: &[C], sum: &mut [C]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for ((sum, &x), &branch) in sum.iter_mut().zip(x).zip(branch) {
                *sum = x + branch;
            }
        },
    );
}

#[inline(never)]
fn add_tile<C: Real>(x: &[C], sum: &mut [C]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (sum, &x) in sum.iter_mut().zip(x) {
                *sum = *sum + x;
            }
        },
    );
}
