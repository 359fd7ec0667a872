//! Adafactor: second moments of a matrix from their means over rows and over columns.
//!
//! A parameter of two or more dimensions is seen as matrices over its last two; each has a mean of squares per row and
//! one per column, and their outer product stands for the mean of squares of each element. Vectors keep one per element.
//! The update is never there as a whole: it is computed once for its norm and once to be applied, so the only scratch
//! memory is a few numbers per strip of rows, and partial sums of columns where a matrix has more than one strip. Sums
//! are made strip by strip and joined in their order, so they do not depend on threads.

use std::ops::Range;

use plimsoll_cpu::element::Number;
use plimsoll_cpu::math::Real;
use plimsoll_cpu::reduce::in_lanes;
use plimsoll_cpu::simd;
use plimsoll_cpu::threads::{SharedPtr, parallel};

use super::operands::{self, Members, Operands, Room, TILE_LEN};
use super::samples::{steps, torch_steps, ways};
use super::{Algorithm, Before, Common, Control, Decay, Member, StateSpec};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{Gradient, Meta, Op, OpRef, Outputs, Run};
use crate::ops::registry::{Array, OpInfo, Sample};
use crate::shape::Shape;

/// With u = g / √max(v, ε₁²), where v is the running mean of g² or its estimate from rows and columns, which the first
/// tᵝ of each new mean is mixed into: p ← p - α u / max(1, rms(u) / d), α = max(ε₂, rms(p)) min(η, 1 / √t). As in
/// PyTorch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adafactor {
    /// The power of the step number by which new squares count; negative.
    pub beta_2_decay: f64,
    /// ε₁: the least root of a mean of squares; the dtype's own precision if there is none.
    pub epsilon_1: Option<f64>,
    /// ε₂: the least root mean square of a parameter for the size of its step.
    pub epsilon_2: f64,
    /// d: the greatest root mean square of an update.
    pub clip_threshold: f64,
}

impl Adafactor {
    const NAME: &'static str = "adafactor";
}

impl Algorithm for Adafactor {
    fn states(&self, shape: &Shape, dtype: DType) -> Vec<StateSpec> {
        let state = |name, shape| StateSpec { name, shape, dtype, initial: 0.0 };
        match shape.rank() {
            0 | 1 => vec![state("v", *shape)],
            rank => vec![
                state("v_row", shape.with_dim(rank - 1, 1)),
                state("v_column", shape.with_dim(rank - 2, 1)),
            ],
        }
    }

    fn update(&self, common: Common, members: &[Member]) -> OpRef {
        OpRef::new(Factored { rule: *self, common, members: Members::new(members) })
    }
}

#[derive(Debug)]
struct Factored {
    rule: Adafactor,
    common: Common,
    members: Members,
}

/// How a parameter is cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    is_factored: bool,
    n_matrices: usize,
    n_rows: usize,
    n_cols: usize,
    /// Rows of a matrix that a strip has; the last one may have fewer.
    strip_rows: usize,
    strips_per_matrix: usize,
}

impl Cut {
    fn of(shape: &Shape) -> Cut {
        /// Elements that make a strip worth waking a thread for.
        const STRIP_LEN: usize = 64 * 1024;
        /// Partial sums of columns take an element for as many rows.
        const LEAST_ROWS: usize = 32;
        match *shape.dims() {
            [ref outer @ .., n_rows, n_cols] => {
                let strip_rows = (STRIP_LEN / n_cols.max(1)).max(LEAST_ROWS);
                // A matrix without columns has nothing to update.
                let strips_per_matrix = if n_cols == 0 { 0 } else { n_rows.div_ceil(strip_rows) };
                let n_matrices = outer.iter().product();
                Cut { is_factored: true, n_matrices, n_rows, n_cols, strip_rows, strips_per_matrix }
            }
            // A vector is a matrix of one column that is not factored.
            _ => {
                let n_rows = shape.n_elems();
                let strips_per_matrix = n_rows.div_ceil(STRIP_LEN);
                let (n_matrices, n_cols, strip_rows) = (1, 1, STRIP_LEN);
                Cut { is_factored: false, n_matrices, n_rows, n_cols, strip_rows, strips_per_matrix }
            }
        }
    }

    fn n_elems(&self) -> usize {
        self.n_matrices * self.n_rows * self.n_cols
    }

    fn n_strips(&self) -> usize {
        self.n_matrices * self.strips_per_matrix
    }

    /// Whether columns are summed in parts.
    fn in_parts(&self) -> bool {
        self.is_factored && self.strips_per_matrix > 1
    }

    /// Scratch numbers: a factor for the whole, two sums per strip, a mean per matrix, parts of column sums.
    fn scratch_len(&self) -> usize {
        let parts = if self.in_parts() { self.n_strips() * self.n_cols } else { 0 };
        1 + 2 * self.n_strips() + self.n_matrices + parts
    }

    /// The matrix of a strip, and its rows among those of all matrices.
    fn rows(&self, strip: usize) -> (usize, Range<usize>) {
        let (matrix, within) = (strip / self.strips_per_matrix, strip % self.strips_per_matrix);
        let first = matrix * self.n_rows;
        let rows = within * self.strip_rows..((within + 1) * self.strip_rows).min(self.n_rows);
        (matrix, first + rows.start..first + rows.end)
    }
}

impl Op for Factored {
    fn name(&self) -> &'static str {
        Adafactor::NAME
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Outputs> {
        self.members.infer(self.name(), inputs, |idx, parameter, state, meta| {
            let wanted = self.rule.states(parameter.shape(), parameter.dtype);
            match wanted.get(state) {
                Some(wanted) if wanted.shape == *meta.shape() && wanted.dtype == meta.dtype => Ok(()),
                _ => Err(Error::argument(
                    self.name(),
                    format!(
                        "parameter {idx} is {} {}, its state {state} {} {}; a matrix has a mean per row and one per \
                         column, a vector one per element, of the parameter's dtype",
                        parameter.shape(),
                        parameter.dtype,
                        meta.shape(),
                        meta.dtype
                    ),
                )),
            }
        })
    }

    fn workspace(&self, inputs: &[&Meta]) -> usize {
        let cuts = (0..self.members.len()).map(|idx| Cut::of(inputs[self.members.first(idx)].shape()));
        cuts.map(|cut| cut.scratch_len()).sum::<usize>() * size_of::<f64>()
    }

    fn run(&self, run: &mut Run<'_>) -> Result<()> {
        let operands = Operands::new(&self.members, run);
        let control = operands.control();
        // SAFETY: each parameter's operands are brought by one task.
        parallel(self.members.len(), |idx| unsafe { operands.carry_whole(idx) });
        if control.overflow != 0.0 {
            return Ok(());
        }
        let scratch = SharedPtr::new(run.workspace.cast::<f64>());
        let pass = Pass { operands: &operands, n_parameters: self.members.len(), scratch };
        let singles = Now::<f32>::new(self, &control, f64::from(f32::EPSILON));
        let doubles = Now::<f64>::new(self, &control, f64::EPSILON);
        pass.for_each_strip(|place, strip| match place.is_single {
            true => pass.moments(place, strip, &singles),
            false => pass.moments(place, strip, &doubles),
        });
        parallel(self.members.len(), |idx| match pass.places().nth(idx) {
            Some(place) if place.is_single => pass.join(&place, &singles),
            Some(place) => pass.join(&place, &doubles),
            None => {}
        });
        pass.for_each_strip(|place, strip| match place.is_single {
            true => pass.norm(place, strip, &singles),
            false => pass.norm(place, strip, &doubles),
        });
        pass.places().for_each(|place| self.decide(&place, &control));
        pass.for_each_strip(|place, strip| match place.is_single {
            true => pass.apply(place, strip, &singles),
            false => pass.apply(place, strip, &doubles),
        });
        Ok(())
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it updates an optimizer's variables")
    }
}

impl Factored {
    /// The factor of a parameter's update, from the sums of its strips.
    fn decide(&self, place: &Place, control: &Control) {
        let n_elems = place.cut.n_elems() as f64;
        let sum = |which: usize| -> f64 {
            // SAFETY: sums of strips, which nobody writes now.
            (0..place.cut.n_strips()).map(|strip| unsafe { *place.sum(strip, which) }).sum()
        };
        let root_mean = |which: usize| (sum(which) / n_elems).sqrt();
        let rate = control.learning_rate.min(control.step.sqrt().recip());
        let size = self.rule.epsilon_2.max(root_mean(PARAMETER)) * rate;
        let excess = (root_mean(UPDATE) / self.rule.clip_threshold).max(1.0);
        // SAFETY: the factor's place, which nobody else uses now.
        unsafe { *place.factor() = size / excess };
    }
}

/// Which sum of a strip.
const PARAMETER: usize = 0;
const UPDATE: usize = 1;

/// A parameter with its scratch memory.
struct Place {
    idx: usize,
    is_single: bool,
    cut: Cut,
    scratch: SharedPtr<f64>,
}

impl Place {
    /// The factor of the update.
    fn factor(&self) -> *mut f64 {
        self.scratch.get()
    }

    /// A sum of squares of a strip.
    fn sum(&self, strip: usize, which: usize) -> *mut f64 {
        self.scratch.get().wrapping_add(1 + 2 * strip + which)
    }

    /// The mean of a matrix's row means.
    fn mean(&self, matrix: usize) -> *mut f64 {
        self.scratch.get().wrapping_add(1 + 2 * self.cut.n_strips() + matrix)
    }

    /// A strip's part of the column sums.
    fn column_sums(&self, strip: usize) -> *mut f64 {
        let parts = 1 + 2 * self.cut.n_strips() + self.cut.n_matrices;
        self.scratch.get().wrapping_add(parts + strip * self.cut.n_cols)
    }
}

/// The numbers of a step in the type that is computed with.
#[derive(Clone, Copy)]
struct Now<T> {
    before: [Before<T>; 2],
    /// How much of each new mean of squares is mixed in.
    mixed_in: T,
    /// ε₁.
    least: T,
    /// ε₁².
    least_square: T,
}

impl<T: Real> Now<T> {
    fn new(op: &Factored, control: &Control, epsilon: f64) -> Now<T> {
        let least = op.rule.epsilon_1.unwrap_or(epsilon);
        Now {
            before: [false, true].map(|decays| Before::new(&op.common, control, decays)),
            mixed_in: T::from_f64(control.step.powf(op.rule.beta_2_decay)),
            least: T::from_f64(least),
            least_square: T::from_f64(least * least),
        }
    }
}

/// One execution.
struct Pass<'a> {
    operands: &'a Operands<'a>,
    n_parameters: usize,
    scratch: SharedPtr<f64>,
}

impl Pass<'_> {
    /// The parameters with their scratch memory, found anew each time: a kernel has nowhere to keep a list.
    fn places(&self) -> impl Iterator<Item = Place> {
        (0..self.n_parameters).scan(self.scratch.get(), |scratch, idx| {
            let parameter = self.operands.parameter(idx);
            let (cut, is_single) = (Cut::of(parameter.shape()), parameter.dtype() == DType::F32);
            let place = Place { idx, is_single, cut, scratch: SharedPtr::new(*scratch) };
            *scratch = scratch.wrapping_add(cut.scratch_len());
            Some(place)
        })
    }

    /// Calls `visit` for every strip of every parameter, on all threads.
    fn for_each_strip(&self, visit: impl Fn(&Place, usize) + Sync) {
        let total = self.places().map(|place| place.cut.n_strips()).sum();
        parallel(total, |strip| {
            let mut strip = strip;
            for place in self.places() {
                match strip.checked_sub(place.cut.n_strips()) {
                    None => return visit(&place, strip),
                    Some(rest) => strip = rest,
                }
            }
        });
    }

    /// Calls `visit` with pieces of a parameter and the gradient that the rule sees, from element `range` on.
    fn pieces<T: Real>(
        &self,
        place: &Place,
        now: &Now<T>,
        range: Range<usize>,
        mut visit: impl FnMut(Range<usize>, &mut [T], &[T]),
    ) {
        let before = &now.before[usize::from(self.operands.member(place.idx).decays)];
        let (mut room, mut seen) = (Room::new(), [T::ZERO; TILE_LEN]);
        for start in range.clone().step_by(TILE_LEN) {
            let piece = start..(start + TILE_LEN).min(range.end);
            // SAFETY: a piece of a strip, which one task uses; the types are those of the operands.
            let (parameter, gradient) = unsafe {
                let parameter = operands::part::<T>(self.operands.parameter(place.idx), piece.clone());
                (
                    parameter,
                    operands::gradient::<T>(self.operands.gradient(place.idx), piece.clone(), &mut room),
                )
            };
            let seen = &mut seen[..piece.len()];
            for ((seen, &p), &g) in seen.iter_mut().zip(&*parameter).zip(gradient) {
                *seen = before.apply(p, g).1;
            }
            visit(piece, parameter, seen);
        }
    }

    /// A part of a state.
    ///
    /// # Safety
    /// The part lies within the state, which is of type `T`, and no other task uses it now.
    unsafe fn state<T>(&self, place: &Place, state: usize, range: Range<usize>) -> &mut [T] {
        // SAFETY: the caller's promise.
        unsafe { operands::part::<T>(self.operands.state(place.idx, state), range) }
    }

    /// First pass: means of squares over rows, or of single elements; sums over columns; the parameter's squares.
    fn moments<T: Real>(&self, place: &Place, strip: usize, now: &Now<T>) {
        let cut = place.cut;
        let (matrix, rows) = cut.rows(strip);
        let whole = rows.start * cut.n_cols..rows.end * cut.n_cols;
        let mut sum = 0.0;
        self.pieces(place, now, whole, |piece, parameter, gradient| {
            sum += sum_of_squares(parameter).to_f64();
            if !cut.is_factored {
                // SAFETY: the state has the parameter's shape, and the piece is this task's.
                let v = unsafe { self.state::<T>(place, 0, piece) };
                for (v, &g) in v.iter_mut().zip(gradient) {
                    *v = *v + now.mixed_in * (g * g - *v);
                }
            }
        });
        // SAFETY: this strip's place.
        unsafe { *place.sum(strip, PARAMETER) = sum };
        if !cut.is_factored {
            return;
        }
        for row in rows.clone() {
            let mut squares = T::ZERO;
            self.pieces(place, now, row * cut.n_cols..(row + 1) * cut.n_cols, |_, _, gradient| {
                squares = squares + sum_of_squares(gradient);
            });
            // SAFETY: the row is this task's.
            let mean = unsafe { &mut self.state::<T>(place, 0, row..row + 1)[0] };
            *mean = *mean + now.mixed_in * (squares / T::from_f64(cut.n_cols as f64) - *mean);
        }
        for start in (0..cut.n_cols).step_by(TILE_LEN) {
            let mut sums = [0.0; TILE_LEN];
            let n = TILE_LEN.min(cut.n_cols - start);
            for row in rows.clone() {
                let first = row * cut.n_cols + start;
                self.pieces(place, now, first..first + n, |_, _, gradient| {
                    sums.iter_mut().zip(gradient).for_each(|(sum, &g)| *sum += (g * g).to_f64());
                });
            }
            if cut.in_parts() {
                // SAFETY: this strip's part of the scratch memory.
                unsafe { place.column_sums(strip).add(start).copy_from_nonoverlapping(sums.as_ptr(), n) };
            } else {
                self.mix_columns(place, now, matrix, start, &sums[..n]);
            }
        }
    }

    /// Mixes sums over columns into the state.
    fn mix_columns<T: Real>(&self, place: &Place, now: &Now<T>, matrix: usize, start: usize, sums: &[f64]) {
        let first = matrix * place.cut.n_cols + start;
        // SAFETY: columns of a matrix that one task sums.
        let means = unsafe { self.state::<T>(place, 1, first..first + sums.len()) };
        for (mean, sum) in means.iter_mut().zip(sums) {
            *mean = *mean + now.mixed_in * (T::from_f64(sum / place.cut.n_rows as f64) - *mean);
        }
    }

    /// Joins what the strips of a parameter have summed: columns, and the mean of each matrix's row means.
    fn join<T: Real>(&self, place: &Place, now: &Now<T>) {
        let cut = place.cut;
        if !cut.is_factored {
            return;
        }
        for matrix in 0..cut.n_matrices {
            // SAFETY: one task joins a parameter, and no strip is being worked on.
            unsafe {
                let rows = self.state::<T>(place, 0, matrix * cut.n_rows..(matrix + 1) * cut.n_rows);
                let sum: f64 = rows.iter().map(|row| row.to_f64()).sum();
                *place.mean(matrix) = (sum / cut.n_rows as f64).max(now.least.to_f64());
            }
            if !cut.in_parts() {
                continue;
            }
            for start in (0..cut.n_cols).step_by(TILE_LEN) {
                let mut sums = [0.0; TILE_LEN];
                let sums = &mut sums[..TILE_LEN.min(cut.n_cols - start)];
                for strip in matrix * cut.strips_per_matrix..(matrix + 1) * cut.strips_per_matrix {
                    for (col, sum) in sums.iter_mut().enumerate() {
                        // SAFETY: as above.
                        *sum += unsafe { *place.column_sums(strip).add(start + col) };
                    }
                }
                self.mix_columns(place, now, matrix, start, sums);
            }
        }
    }

    /// Calls `visit` with pieces of a parameter and their updates, before the update's factor.
    fn updates<T: Real>(
        &self,
        place: &Place,
        strip: usize,
        now: &Now<T>,
        mut visit: impl FnMut(Range<usize>, &mut [T], &[T]),
    ) {
        let cut = place.cut;
        let (matrix, rows) = cut.rows(strip);
        let mut room = [T::ZERO; TILE_LEN];
        if !cut.is_factored {
            return self.pieces(place, now, rows, |piece, parameter, gradient| {
                let updates = &mut room[..piece.len()];
                // SAFETY: the state has the parameter's shape, and nobody writes it in this pass.
                let v = unsafe { self.state::<T>(place, 0, piece.clone()) };
                for ((u, &g), &v) in updates.iter_mut().zip(gradient).zip(&*v) {
                    *u = g / Number::max(v, now.least_square).sqrt();
                }
                visit(piece, parameter, updates);
            });
        }
        // SAFETY: nobody writes states or means in this pass.
        let (mean, columns) = unsafe {
            let columns = matrix * cut.n_cols..(matrix + 1) * cut.n_cols;
            (T::from_f64(*place.mean(matrix)), &*self.state::<T>(place, 1, columns))
        };
        for row in rows {
            // SAFETY: as above.
            let of_row = unsafe { self.state::<T>(place, 0, row..row + 1)[0] } / mean;
            let first = row * cut.n_cols;
            self.pieces(place, now, first..first + cut.n_cols, |piece, parameter, gradient| {
                let updates = &mut room[..piece.len()];
                factored_updates(
                    gradient,
                    &columns[piece.start - first..],
                    of_row,
                    now.least_square,
                    updates,
                );
                visit(piece, parameter, updates);
            });
        }
    }

    /// Second pass: the squares of the update.
    fn norm<T: Real>(&self, place: &Place, strip: usize, now: &Now<T>) {
        let mut sum = 0.0;
        self.updates(place, strip, now, |_, _, updates| sum += sum_of_squares(updates).to_f64());
        // SAFETY: this strip's place.
        unsafe { *place.sum(strip, UPDATE) = sum };
    }

    /// Last pass: the update itself, and the compute copy.
    fn apply<T: Real>(&self, place: &Place, strip: usize, now: &Now<T>) {
        // SAFETY: nobody writes the factor now.
        let factor = T::from_f64(unsafe { *place.factor() });
        let shrink = now.before[usize::from(self.operands.member(place.idx).decays)].shrink;
        self.updates(place, strip, now, |piece, parameter, updates| {
            for (p, &u) in parameter.iter_mut().zip(updates) {
                *p = *p * shrink - factor * u;
            }
            if let Some(copy) = self.operands.copy(place.idx) {
                // SAFETY: the piece is this task's.
                unsafe { operands::write_copy(parameter, copy, piece) };
            }
        });
    }
}

#[inline(never)]
fn sum_of_squares<T: Real>(values: &[T]) -> T {
    simd::vectorize(
        #[inline(always)]
        || in_lanes(values, T::ZERO, |x, _| x * x, |a, b| a + b),
    )
}

#[inline(never)]
fn factored_updates<T: Real>(gradient: &[T], columns: &[T], of_row: T, least: T, updates: &mut [T]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for ((u, &g), &column) in updates.iter_mut().zip(gradient).zip(columns) {
                *u = g / Number::max(of_row * column, least).sqrt();
            }
        },
    );
}

/// The registry's entry of the op.
pub(super) static INFO: OpInfo = OpInfo {
    name: Adafactor::NAME,
    doc: "Updates parameters by Adafactor, with second moments of matrices kept by rows and columns.",
    samples: registry_samples,
};

fn registry_samples() -> Vec<Sample> {
    let rule = Adafactor { beta_2_decay: -0.8, epsilon_1: Some(1e-2), epsilon_2: 1e-3, clip_threshold: 1.0 };
    let common = Common { decay: Decay::Decoupled(0.3), clip_value: None };
    let torch = "torch.optim.Adafactor(parameters, lr=0.1, eps=(1e-2, 1e-3), weight_decay=0.3)";
    let sample = |name: &str, shapes| {
        Sample::many(name, ways(shapes), steps(rule, common, 10))
            .references(move |x| x[..2].iter().zip(&x[2..]).map(|(p, t)| reference(&rule, p, t)).collect())
            .torch(torch_steps(torch, 10))
    };
    vec![sample("a vector and a matrix", [&[7], &[4, 9]]), sample("matrices and a number", [&[2, 3, 5], &[]])]
}

/// Ten steps of one parameter towards a target, with every matrix whole.
fn reference(rule: &Adafactor, parameter: &Array, target: &Array) -> Array {
    let root_mean = |x: &[f64]| (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64).sqrt();
    let (n_rows, n_cols) = match parameter.shape[..] {
        [.., n_rows, n_cols] => (n_rows, n_cols),
        _ => (0, 0),
    };
    let mut p = parameter.values.clone();
    let mut v = vec![0.0; p.len()];
    // The means of rows and columns, written out for every element.
    let (mut rows, mut cols) = (v.clone(), v.clone());
    for step in 1..=10 {
        let g: Vec<f64> = p.iter().zip(&target.values).map(|(p, t)| p - t).collect();
        let new = f64::from(step).powf(rule.beta_2_decay);
        let size = rule.epsilon_2.max(root_mean(&p)) * f64::min(0.1, 1.0 / f64::from(step).sqrt());
        let mixed = |old: f64, mean: f64| old + new * (mean - old);
        let squares: Vec<f64> = g.iter().map(|g| g * g).collect();
        for at in 0..p.len() {
            if n_cols == 0 {
                v[at] = mixed(v[at], squares[at]);
                continue;
            }
            let (matrix, row, col) =
                (at / (n_rows * n_cols) * n_rows * n_cols, at / n_cols % n_rows, at % n_cols);
            let row_sum: f64 = (0..n_cols).map(|col| squares[matrix + row * n_cols + col]).sum();
            let col_sum: f64 = (0..n_rows).map(|row| squares[matrix + row * n_cols + col]).sum();
            rows[at] = mixed(rows[at], row_sum / n_cols as f64);
            cols[at] = mixed(cols[at], col_sum / n_rows as f64);
        }
        if n_cols > 0 {
            for at in 0..p.len() {
                let matrix = at / (n_rows * n_cols) * n_rows * n_cols;
                let sum: f64 = (0..n_rows).map(|row| rows[matrix + row * n_cols]).sum();
                v[at] = rows[at] * cols[at] / (sum / n_rows as f64).max(rule.epsilon_1.unwrap_or(0.0));
            }
        }
        let least = rule.epsilon_1.unwrap_or(0.0).powi(2);
        let updates: Vec<f64> = g.iter().zip(&v).map(|(g, v)| g / v.max(least).sqrt()).collect();
        let excess = (root_mean(&updates) / rule.clip_threshold).max(1.0);
        p.iter_mut().zip(&updates).for_each(|(p, u)| *p = *p * (1.0 - 0.1 * 0.3) - size / excess * u);
    }
    Array::new(&parameter.shape, p)
}
