//! The passes over all strips of all parameters that an update consists of.

use std::ops::Range;

use plimsoll_cpu::element::Number;
use plimsoll_cpu::math::Real;
use plimsoll_cpu::reduce::in_lanes;
use plimsoll_cpu::simd;
use plimsoll_cpu::threads::{SharedPtr, parallel};

use super::Factored;
use super::cut::{Cut, Place, Sum};
use crate::base::dtype::DType;
use crate::ops::optimizer::elements::{self, Room, TILE_LEN};
use crate::ops::optimizer::operands::Operands;
use crate::ops::optimizer::{Before, Control};

/// The numbers of a step in the type that is computed with.
#[derive(Clone, Copy)]
pub struct Now<T> {
    before: [Before<T>; 2],
    /// How much of each new mean of squares is mixed in.
    mixed_in: T,
    /// ε₁.
    least: T,
    /// ε₁².
    least_square: T,
}

impl<T: Real> Now<T> {
    pub fn new(op: &Factored, control: &Control, epsilon: f64) -> Now<T> {
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
pub struct Pass<'a> {
    pub operands: &'a Operands<'a>,
    pub n_parameters: usize,
    pub scratch: SharedPtr<f64>,
}

impl Pass<'_> {
    /// The parameters with their scratch memory, found anew each time: a kernel has nowhere to keep a list.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        (0..self.n_parameters).scan(self.scratch.get(), |scratch, idx| {
            let parameter = self.operands.parameter(idx);
            let (cut, is_single) = (Cut::of(parameter.shape()), parameter.dtype() == DType::F32);
            let place = Place { idx, is_single, cut, scratch: SharedPtr::new(*scratch) };
            *scratch = scratch.wrapping_add(cut.scratch_len());
            Some(place)
        })
    }

    /// Calls `visit` for every strip of every parameter, on all threads.
    pub fn for_each_strip(&self, visit: impl Fn(&Place, usize) + Sync) {
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
                let parameter = elements::part::<T>(self.operands.parameter(place.idx), piece.clone());
                (
                    parameter,
                    elements::gradient::<T>(self.operands.gradient(place.idx), piece.clone(), &mut room),
                )
            };
            let seen = &mut seen[..piece.len()];
            see(before, parameter, gradient, seen);
            visit(piece, parameter, seen);
        }
    }

    /// A part of a state.
    ///
    /// # Safety
    /// The part lies within the state, which is of type `T`, and no other task uses it now.
    unsafe fn state<'s, T>(&self, place: &Place, state: usize, range: Range<usize>) -> &'s mut [T] {
        // SAFETY: the caller's promise.
        unsafe { elements::part::<T>(self.operands.state(place.idx, state), range) }
    }

    /// First pass: means of squares over rows, or of single elements; sums over columns; the parameter's squares.
    pub fn moments<T: Real>(&self, place: &Place, strip: usize, now: &Now<T>) {
        let (matrix, rows) = place.cut.rows(strip);
        let sum = match place.cut.is_factored {
            true => {
                self.mix_strip_columns(place, strip, now, matrix, rows.clone());
                self.mix_rows(place, now, rows)
            }
            false => self.mix_elements(place, now, rows),
        };
        // SAFETY: this strip's place.
        unsafe { *place.sum(strip, Sum::Parameter) = sum };
    }

    /// Mixes squares of elements into the state, and returns the sum of the parameter's squares.
    fn mix_elements<T: Real>(&self, place: &Place, now: &Now<T>, range: Range<usize>) -> f64 {
        let mut sum = 0.0;
        self.pieces(place, now, range, |piece, parameter, gradient| {
            sum += sum_of_squares(parameter).to_f64();
            // SAFETY: the state has the parameter's shape, and the piece is this task's.
            mix_squares(now.mixed_in, gradient, unsafe { self.state::<T>(place, 0, piece) });
        });
        sum
    }

    /// Mixes means of squares over rows into the state, and returns the sum of the parameter's squares.
    fn mix_rows<T: Real>(&self, place: &Place, now: &Now<T>, rows: Range<usize>) -> f64 {
        let n_cols = place.cut.n_cols;
        let mut sum = 0.0;
        for row in rows {
            let mut squares = T::ZERO;
            self.pieces(place, now, row * n_cols..(row + 1) * n_cols, |_, parameter, gradient| {
                sum += sum_of_squares(parameter).to_f64();
                squares = squares + sum_of_squares(gradient);
            });
            // SAFETY: the row is this task's.
            let mean = unsafe { &mut self.state::<T>(place, 0, row..row + 1)[0] };
            *mean = *mean + now.mixed_in * (squares / T::from_f64(n_cols as f64) - *mean);
        }
        sum
    }

    /// Sums squares over the columns of a strip, for the state or, where a matrix has several strips, for [`Pass::join`].
    fn mix_strip_columns<T: Real>(
        &self,
        place: &Place,
        strip: usize,
        now: &Now<T>,
        matrix: usize,
        rows: Range<usize>,
    ) {
        let cut = place.cut;
        for start in (0..cut.n_cols).step_by(TILE_LEN) {
            let mut sums = [0.0; TILE_LEN];
            let n = TILE_LEN.min(cut.n_cols - start);
            for row in rows.clone() {
                let first = row * cut.n_cols + start;
                self.pieces(place, now, first..first + n, |_, _, gradient| add_squares(gradient, &mut sums));
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
    pub fn join<T: Real>(&self, place: &Place, now: &Now<T>) {
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
                factored_updates(gradient, v, T::ONE, now.least_square, updates);
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
    pub fn norm<T: Real>(&self, place: &Place, strip: usize, now: &Now<T>) {
        let mut sum = 0.0;
        self.updates(place, strip, now, |_, _, updates| sum += sum_of_squares(updates).to_f64());
        // SAFETY: this strip's place.
        unsafe { *place.sum(strip, Sum::Update) = sum };
    }

    /// Last pass: the update itself, and the compute copy.
    pub fn apply<T: Real>(&self, place: &Place, strip: usize, now: &Now<T>) {
        // SAFETY: nobody writes the factor now.
        let factor = T::from_f64(unsafe { *place.factor() });
        let shrink = now.before[usize::from(self.operands.member(place.idx).decays)].shrink;
        self.updates(place, strip, now, |piece, parameter, updates| {
            move_by(parameter, shrink, factor, updates);
            if let Some(copy) = self.operands.copy(place.idx) {
                // SAFETY: the piece is this task's.
                unsafe { elements::write_copy(parameter, copy, piece) };
            }
        });
    }
}

/// The gradient that the rule sees.
#[inline(never)]
fn see<T: Real>(before: &Before<T>, parameter: &[T], gradient: &[T], seen: &mut [T]) {
    let before = *before;
    simd::vectorize(
        #[inline(always)]
        || {
            for ((seen, &p), &g) in seen.iter_mut().zip(parameter).zip(gradient) {
                *seen = before.apply(p, g).1;
            }
        },
    );
}

#[inline(never)]
fn mix_squares<T: Real>(mixed_in: T, gradient: &[T], v: &mut [T]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (v, &g) in v.iter_mut().zip(gradient) {
                *v = *v + mixed_in * (g * g - *v);
            }
        },
    );
}

#[inline(never)]
fn add_squares<T: Real>(gradient: &[T], sums: &mut [f64]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (sum, &g) in sums.iter_mut().zip(gradient) {
                *sum += (g * g).to_f64();
            }
        },
    );
}

#[inline(never)]
fn move_by<T: Real>(parameter: &mut [T], shrink: T, factor: T, updates: &[T]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (p, &u) in parameter.iter_mut().zip(updates) {
                *p = *p * shrink - factor * u;
            }
        },
    );
}

#[inline(never)]
fn sum_of_squares<T: Real>(values: &[T]) -> T {
    simd::vectorize(
        #[inline(always)]
        || in_lanes(values, T::ZERO, |x, _| x * x, |a, b| a + b),
    )
}

/// The gradient over the root of the mean of squares that a row and its columns stand for.
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
