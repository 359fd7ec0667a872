//! The loops of group norm: lanes are the channels of one place, and an example is a run of lanes.
//!
//! Sums over an example are formed channel by channel, with whole vectors whatever the size of a group, and only then
//! brought together group by group. A task has a few examples, cut by shape alone, and rows of its own in the workspace.

use std::ops::Range;

use plimsoll_cpu::element::{Element, Number};
use plimsoll_cpu::lanes::{Lane, Lanes, Room};
use plimsoll_cpu::math::Real;
use plimsoll_cpu::simd;
use plimsoll_cpu::threads::SharedPtr;

use super::columns::write_all;
use crate::eager::op::{Meta, Operand, Run};
use crate::ops::lanes::{LanePtr, last_axis};

/// The most tasks, each with rows of its own.
const MAX_TASKS: usize = 32;

/// The least number of elements of a task.
const TASK_LEN: usize = 16 * 1024;

/// Rows of a task of forward: mean and rstd of each channel.
const FORWARD_ROWS: usize = 2;

/// Rows of a task of backward: mean, rstd, the example's sums for gamma and beta, the means along both that are taken
/// from the gradient, and the sums for gamma and beta of all its examples.
const BACKWARD_ROWS: usize = 8;

/// How examples are cut up for tasks.
#[derive(Clone, Copy)]
struct Cut {
    n_examples: usize,
    n_places: usize,
    width: usize,
    n_groups: usize,
    /// Examples of a task.
    per_task: usize,
}

impl Cut {
    fn new(x: &Meta, n_groups: usize) -> Cut {
        let &[n_examples, ref places @ .., width] = x.shape().dims() else { unreachable!("`infer` checks") };
        let n_places: usize = places.iter().product();
        let least = TASK_LEN.div_ceil((n_places * width).max(1));
        Cut { n_examples, n_places, width, n_groups, per_task: n_examples.div_ceil(MAX_TASKS).max(least) }
    }

    fn n_tasks(&self) -> usize {
        self.n_examples.div_ceil(self.per_task)
    }

    /// Channels of a group.
    fn group(&self) -> usize {
        self.width / self.n_groups
    }

    /// Numbers that a statistic of a group is formed from.
    fn group_len<C: Real>(&self) -> C {
        C::from_f64((self.n_places * self.group()) as f64)
    }

    /// The lanes of an example.
    fn lanes(&self, example: usize) -> Range<usize> {
        example * self.n_places..(example + 1) * self.n_places
    }

    /// Runs `f` on each task's examples, with its rows of the workspace.
    ///
    /// # Safety
    /// The workspace has `n_rows` rows for each task and is used by nobody else.
    unsafe fn each<C: Real>(
        &self,
        workspace: SharedPtr<C>,
        n_rows: usize,
        f: impl Fn(Range<usize>, &mut [C]) + Sync,
    ) {
        let len = n_rows * self.width;
        plimsoll_cpu::threads::parallel(self.n_tasks(), |task| {
            let first = task * self.per_task;
            let rows = match len {
                // There is no workspace then.
                0 => &mut [],
                // SAFETY: each task has its own rows, which the caller promises; zero is a value of every element type.
                _ => unsafe {
                    let rows = workspace.get().add(task * len);
                    rows.write_bytes(0, len);
                    std::slice::from_raw_parts_mut(rows, len)
                },
            };
            f(first..self.n_examples.min(first + self.per_task), rows);
        });
    }

    /// Puts in each channel's place what `f` makes of its group's sum.
    fn share<C: Real>(&self, row: &mut [C], f: impl Fn(C) -> C) {
        for group in row.chunks_exact_mut(self.group().max(1)) {
            let value = f(group.iter().fold(C::ZERO, |sum, &channel| sum + channel));
            group.fill(value);
        }
    }
}

/// The number of values that forward needs room for.
pub(super) fn forward_values(x: &Meta, n_groups: usize) -> usize {
    let cut = Cut::new(x, n_groups);
    FORWARD_ROWS * cut.n_tasks() * cut.width
}

/// The number of values that backward needs room for.
pub(super) fn backward_values(x: &Meta, n_groups: usize) -> usize {
    let cut = Cut::new(x, n_groups);
    BACKWARD_ROWS * cut.n_tasks() * cut.width
}

/// The lanes of an operand.
struct Operated<T> {
    first: LanePtr<T>,
    lanes: Lanes<1>,
    is_copied: bool,
}

impl<T: Element> Operated<T> {
    fn new(operand: &Operand) -> Operated<T> {
        let lanes = last_axis(operand.shape(), [&operand.meta.layout]);
        Operated { first: LanePtr::new(operand), lanes, is_copied: false }
    }

    fn at(&self, lane: usize) -> Lane<T> {
        // SAFETY: a lane of an operand that `execute` hands out; each lane that is written belongs to one task, and where
        // a result is written over an operand, pieces of the operand are copies.
        unsafe { self.first.lane(self.lanes.offsets(lane)[0], self.lanes.steps[0], self.lanes.len) }
            .copied(self.is_copied)
    }
}

/// The norm of every example's groups. Leaves mean and rstd in the auxiliary outputs, if there are any.
pub(super) fn normalise<T: Element<Compute: Real>>(n_groups: usize, eps: f64, run: &Run<'_>) {
    let cut = Cut::new(run.inputs[0].meta, n_groups);
    let x = Operated::<T>::new(&run.inputs[0]);
    let kept = [0, 1].map(|idx| run.aux_outputs.get(idx).map(LanePtr::<T::Compute>::new));
    let (len, eps) = (cut.group_len::<T::Compute>(), T::Compute::from_f64(eps));
    let apply = Apply::<T>::new(run);
    let task = |examples: Range<usize>, rows: &mut [T::Compute]| {
        let (means, rstds) = rows.split_at_mut(cut.width);
        for example in examples {
            means.fill(T::Compute::ZERO);
            rstds.fill(T::Compute::ZERO);
            each_piece(&x, cut.lanes(example), |piece, x| add_tile(x, &mut means[piece]));
            cut.share(means, |sum| sum / len);
            each_piece(&x, cut.lanes(example), |piece, x| {
                add_squares_tile(x, &means[piece.clone()], &mut rstds[piece]);
            });
            cut.share(rstds, |sum| (sum / len + eps).rsqrt());
            for (kept, row) in kept.iter().zip([&*means, &*rstds]) {
                for (group, value) in row.iter().step_by(cut.group().max(1)).enumerate() {
                    let Some(kept) = kept else { break };
                    // SAFETY: auxiliary outputs are fresh and contiguous, with one element per example and group.
                    unsafe { kept.set((example * n_groups + group) as isize, *value) };
                }
            }
            apply.example(cut.lanes(example), means, rstds);
        }
    };
    // SAFETY: the workspace is as large as `forward_values` says.
    unsafe { cut.each(SharedPtr::new(run.workspace.cast()), FORWARD_ROWS, task) }
}

/// The norm with given statistics. Inputs: x, gamma, beta, mean and rstd.
pub(super) fn apply<T: Element<Compute: Real>>(n_groups: usize, run: &Run<'_>) {
    let cut = Cut::new(run.inputs[0].meta, n_groups);
    let (apply, statistics) =
        (Apply::<T>::new(run), Statistics::<T::Compute>::new([&run.inputs[3], &run.inputs[4]]));
    let task = |examples: Range<usize>, rows: &mut [T::Compute]| {
        let (means, rstds) = rows.split_at_mut(cut.width);
        for example in examples {
            statistics.spread(&cut, example, [means, rstds]);
            apply.example(cut.lanes(example), means, rstds);
        }
    };
    // SAFETY: the workspace is as large as `forward_values` says.
    unsafe { cut.each(SharedPtr::new(run.workspace.cast()), FORWARD_ROWS, task) }
}

/// Kept means and rstds, one of each per example and group.
struct Statistics<C>([(LanePtr<C>, [isize; 2]); 2]);

impl<C: Real + Element> Statistics<C> {
    fn new(kept: [&Operand; 2]) -> Statistics<C> {
        Statistics(kept.map(|kept| {
            let strides = kept.meta.layout.strides();
            (LanePtr::new(kept), [strides[0], strides[1]])
        }))
    }

    /// Brings those of an example to the channels of their groups.
    fn spread(&self, cut: &Cut, example: usize, rows: [&mut [C]; 2]) {
        for ((first, strides), row) in self.0.iter().zip(rows) {
            for (group, channels) in row.chunks_exact_mut(cut.group().max(1)).enumerate() {
                let offset = example as isize * strides[0] + group as isize * strides[1];
                // SAFETY: saved statistics have one element per example and group, in the compute type.
                channels.fill(unsafe { first.get(offset) });
            }
        }
    }
}

/// Input, parameters and output of the norm.
struct Apply<T> {
    x: Operated<T>,
    y: Operated<T>,
    gamma: Operated<T>,
    beta: Operated<T>,
}

impl<T: Element<Compute: Real>> Apply<T> {
    fn new(run: &Run<'_>) -> Apply<T> {
        let [x, gamma, beta] = [0, 1, 2].map(|input| Operated::new(&run.inputs[input]));
        Apply { x, y: Operated::new(&run.outputs[0]), gamma, beta }
    }

    /// Writes the lanes of an example, given mean and rstd of each channel.
    fn example(&self, lanes: Range<usize>, means: &[T::Compute], rstds: &[T::Compute]) {
        let mut rooms = [const { Room::new() }; 4];
        let [x_room, gamma_room, beta_room, y_room] = &mut rooms;
        let (gamma, beta) = (self.gamma.at(0), self.beta.at(0));
        for piece in gamma.pieces() {
            let parameters = [gamma.read(piece.clone(), gamma_room), beta.read(piece.clone(), beta_room)];
            let statistics = [&means[piece.clone()], &rstds[piece.clone()]];
            for lane in lanes.clone() {
                let (x, y) = (self.x.at(lane), self.y.at(lane));
                let x = x.read(piece.clone(), x_room);
                y.write(piece.clone(), y_room, |y| apply_tile(x, statistics, parameters, y));
            }
        }
    }
}

/// Calls `f` with the pieces of some lanes.
fn each_piece<T: Element>(
    x: &Operated<T>,
    lanes: Range<usize>,
    mut f: impl FnMut(Range<usize>, &[T::Compute]),
) {
    let mut room = Room::new();
    for lane in lanes {
        let x = x.at(lane);
        for piece in x.pieces() {
            f(piece.clone(), x.read(piece, &mut room));
        }
    }
}

/// The gradients that are wanted. Inputs: the gradient of the output, x, gamma, mean and rstd.
pub(super) fn backward<T: Element<Compute: Real>>(n_groups: usize, wanted: [bool; 3], run: &Run<'_>) {
    let [g, x, gamma, mean, rstd] = run.inputs else { unreachable!("five operands") };
    let statistics = Statistics::<T::Compute>::new([mean, rstd]);
    let cut = Cut::new(x.meta, n_groups);
    let dx = wanted[0].then(|| Operated::<T>::new(&run.outputs[0]));
    let is_copied = wanted[0] && g.ptr() == run.outputs[0].ptr();
    let (g, x, gamma) =
        (Operated::<T> { is_copied, ..Operated::new(g) }, Operated::<T>::new(x), Operated::<T>::new(gamma));
    let workspace = SharedPtr::new(run.workspace.cast::<T::Compute>());
    let task = |examples: Range<usize>, rows: &mut [T::Compute]| {
        let mut example_rows = Rows::new(rows, cut.width);
        for example in examples {
            let Rows { means, rstds, .. } = &mut example_rows;
            statistics.spread(&cut, example, [means, rstds]);
            example_rows.sum(&cut, (&g, &x, &gamma), cut.lanes(example));
            if let Some(dx) = &dx {
                example_rows.write((&g, &x, &gamma), dx, cut.lanes(example));
            }
        }
    };
    // SAFETY: the workspace is as large as `backward_values` says.
    unsafe { cut.each(workspace, BACKWARD_ROWS, task) };
    let outputs = run.outputs[usize::from(wanted[0])..].iter().zip((0..2).filter(|&sum| wanted[1 + sum]));
    for (output, sum) in outputs {
        let total = (0..cut.width).map(|channel| {
            let of_task = |task: usize| {
                let row = (task * BACKWARD_ROWS + BACKWARD_ROWS - 2 + sum) * cut.width;
                // SAFETY: all tasks are done, and the workspace has this row.
                unsafe { *workspace.get().add(row + channel) }
            };
            (0..cut.n_tasks()).map(of_task).fold(T::Compute::ZERO, |total, part| total + part)
        });
        // SAFETY: the output is fresh, contiguous, and has one element per channel.
        unsafe { write_all::<T>(output.ptr().cast(), total) };
    }
}

/// The rows of a task of backward; see [`BACKWARD_ROWS`].
struct Rows<'a, C> {
    means: &'a mut [C],
    rstds: &'a mut [C],
    gammas: &'a mut [C],
    betas: &'a mut [C],
    along: &'a mut [C],
    shared: &'a mut [C],
    total_gammas: &'a mut [C],
    total_betas: &'a mut [C],
}

impl<C: Real> Rows<'_, C> {
    fn new(rows: &mut [C], width: usize) -> Rows<'_, C> {
        let mut rest = rows;
        let mut next = || rest.split_off_mut(..width).unwrap_or_default();
        let [means, rstds, gammas, betas, along, shared, total_gammas, total_betas] =
            std::array::from_fn(|_| next());
        Rows { means, rstds, gammas, betas, along, shared, total_gammas, total_betas }
    }

    /// Forms the sums of an example, and adds them to those of the task.
    fn sum<T: Element<Compute = C>>(
        &mut self,
        cut: &Cut,
        (g, x, gamma): (&Operated<T>, &Operated<T>, &Operated<T>),
        lanes: Range<usize>,
    ) {
        self.gammas.fill(C::ZERO);
        self.betas.fill(C::ZERO);
        let mut room = Room::new();
        for lane in lanes {
            let x = x.at(lane);
            each_piece(g, lane..lane + 1, |piece, g| {
                let inputs = [g, x.read(piece.clone(), &mut room)];
                let statistics = [&self.means[piece.clone()], &self.rstds[piece.clone()]];
                let sums = [&mut self.gammas[piece.clone()], &mut self.betas[piece]];
                columns_tile(inputs, statistics, sums);
            });
        }
        each_piece(gamma, 0..1, |piece, gamma| {
            for (channel, &gamma) in piece.zip(gamma) {
                self.total_gammas[channel] = self.total_gammas[channel] + self.gammas[channel];
                self.total_betas[channel] = self.total_betas[channel] + self.betas[channel];
                self.along[channel] = self.gammas[channel] * gamma;
                self.shared[channel] = self.betas[channel] * gamma;
            }
        });
        let len = cut.group_len::<C>();
        cut.share(self.along, |sum| sum / len);
        cut.share(self.shared, |sum| sum / len);
    }

    /// Writes an example's gradient of the input.
    fn write<T: Element<Compute = C>>(
        &self,
        (g, x, gamma): (&Operated<T>, &Operated<T>, &Operated<T>),
        dx: &Operated<T>,
        lanes: Range<usize>,
    ) {
        let mut rooms = [const { Room::new() }; 4];
        let [g_room, x_room, gamma_room, dx_room] = &mut rooms;
        let gamma = gamma.at(0);
        for piece in gamma.pieces() {
            let gamma = gamma.read(piece.clone(), gamma_room);
            let [means, rstds] = [&self.means[piece.clone()], &self.rstds[piece.clone()]];
            let [along, shared] = [&self.along[piece.clone()], &self.shared[piece.clone()]];
            for lane in lanes.clone() {
                let (g, x, dx) = (g.at(lane), x.at(lane), dx.at(lane));
                let (g, x) = (g.read(piece.clone(), g_room), x.read(piece.clone(), x_room));
                dx.write(piece.clone(), dx_room, |dx| {
                    grad_tile([g, x, gamma], [means, rstds], [along, shared], dx);
                });
            }
        }
    }
}

#[inline(never)]
fn add_tile<C: Real>(x: &[C], sums: &mut [C]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (sum, &x) in sums.iter_mut().zip(x) {
                *sum = *sum + x;
            }
        },
    );
}

#[inline(never)]
fn add_squares_tile<C: Real>(x: &[C], means: &[C], sums: &mut [C]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for ((sum, &x), &mean) in sums.iter_mut().zip(x).zip(means) {
                *sum = *sum + (x - mean) * (x - mean);
            }
        },
    );
}

#[inline(never)]
fn apply_tile<C: Real>(x: &[C], [means, rstds]: [&[C]; 2], [gamma, beta]: [&[C]; 2], y: &mut [C]) {
    simd::vectorize(
        #[inline(always)]
        || {
            let rows = means.iter().zip(rstds).zip(gamma).zip(beta);
            for ((y, &x), (((&mean, &rstd), &gamma), &beta)) in y.iter_mut().zip(x).zip(rows) {
                *y = (x - mean) * rstd * gamma + beta;
            }
        },
    );
}

#[inline(never)]
fn columns_tile<C: Real>([g, x]: [&[C]; 2], [means, rstds]: [&[C]; 2], [gammas, betas]: [&mut [C]; 2]) {
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
fn grad_tile<C: Real>(
    [g, x, gamma]: [&[C]; 3],
    [means, rstds]: [&[C]; 2],
    [along, shared]: [&[C]; 2],
    dx: &mut [C],
) {
    simd::vectorize(
        #[inline(always)]
        || {
            let rows = means.iter().zip(rstds).zip(along).zip(shared);
            let inputs = g.iter().zip(x).zip(gamma);
            for ((dx, ((&g, &x), &gamma)), (((&mean, &rstd), &along), &shared)) in
                dx.iter_mut().zip(inputs).zip(rows)
            {
                *dx = (g * gamma - shared - (x - mean) * rstd * along) * rstd;
            }
        },
    );
}
