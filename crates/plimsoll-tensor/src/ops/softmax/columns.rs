//! Softmax along an axis that is not the last: lanes side by side are worked on together.
//!
//! A panel is a stretch of neighbouring lanes. It is walked row by row, so that reads are contiguous and loops vectorise
//! across lanes; what is known of each lane so far lies in a row on the stack.

use plimsoll_cpu::element::{Element, Number};
use plimsoll_cpu::lanes::{Lane, Lanes, Room};
use plimsoll_cpu::math::Real;
use plimsoll_cpu::{simd, threads};

use super::{Softmax, SoftmaxBackward};
use crate::eager::op::Operand;
use crate::ops::lanes::{LanePtr, shift};

/// The most lanes of a panel: with a few hundred elements each, a panel stays in a core's own cache.
const WIDTH: usize = 256;

/// Whether lanes along `axis` are better taken side by side: those next to each other are closer in memory than the
/// elements of each.
pub(super) fn are_better(axis: usize, x: &Operand) -> bool {
    const WORTHWHILE: usize = 8;
    let (shape, strides) = (x.shape(), x.meta.layout.strides());
    let last = shape.rank() - 1;
    axis != last && shape[last] >= WORTHWHILE && strides[last].unsigned_abs() < strides[axis].unsigned_abs()
}

/// Operands of one shape, as panels of lanes along an axis.
struct Panels<const N: usize> {
    /// Rows along the last axis.
    rows: Lanes<N>,
    /// The number of rows of a panel: the extent of the axis.
    n_rows: usize,
    /// From one row of a panel to the next, in rows: the extent of the axes between.
    row_step: usize,
}

/// One panel: its first row, and its part of each row.
#[derive(Clone)]
struct Panel {
    first_row: usize,
    columns: std::ops::Range<usize>,
}

impl<const N: usize> Panels<N> {
    fn along(axis: usize, shape: &[usize], strides: [&[isize]; N]) -> Panels<N> {
        let last = shape.len() - 1;
        let rows = Lanes::along(last, shape, strides);
        Panels { rows, n_rows: shape[axis], row_step: shape[axis + 1..last].iter().product() }
    }

    fn for_each(&self, f: impl Fn(&Panel) + Sync) {
        if self.rows.n_lanes * self.rows.len == 0 {
            return;
        }
        let n_across = self.rows.len.div_ceil(WIDTH);
        threads::parallel(self.rows.n_lanes / self.n_rows * n_across, |task| {
            let (stack, start) = (task / n_across, task % n_across * WIDTH);
            let (outer, between) = (stack / self.row_step, stack % self.row_step);
            let first_row = outer * self.n_rows * self.row_step + between;
            f(&Panel { first_row, columns: start..self.rows.len.min(start + WIDTH) });
        });
    }

    /// Row `row` of a panel, in operand `idx`.
    ///
    /// # Safety
    /// As [`Lane::new`], for that row of the operand.
    unsafe fn row<T: Element>(&self, panel: &Panel, row: usize, idx: usize, operand: &LanePtr<T>) -> Lane<T> {
        let offset = self.rows.offsets(panel.first_row + row * self.row_step)[idx];
        // SAFETY: the caller's promise.
        unsafe { operand.lane(offset, self.rows.steps[idx], self.rows.len) }
    }
}

pub(super) fn forward<T: Element<Compute: Real>>(op: Softmax, x: &Operand, y: &Operand) {
    let panels = Panels::along(op.axis, x.shape(), [x.meta.layout.strides(), y.meta.layout.strides()]);
    let is_over = x.ptr() == y.ptr();
    let (x, y) = (LanePtr::<T>::new(x), LanePtr::<T>::new(y));
    panels.for_each(|panel| {
        let n = panel.columns.len();
        let mut shifts = [T::Compute::LEAST; WIDTH];
        let mut sums = [T::Compute::ZERO; WIDTH];
        let (shifts, sums) = (&mut shifts[..n], &mut sums[..n]);
        let (mut x_room, mut y_room) = (Room::new(), Room::new());
        // SAFETY: rows of an operand that `execute` hands out; where the output is written over it, pieces are copies,
        // and only this task visits this part of a row.
        let x_row = |row: usize| unsafe { panels.row(panel, row, 0, &x) }.copied(is_over);
        for row in 0..panels.n_rows {
            max_tile(x_row(row).read(panel.columns.clone(), &mut x_room), shifts);
        }
        shifts.iter_mut().for_each(|max| *max = shift(*max));
        for row in 0..panels.n_rows {
            add_exponentials_tile(x_row(row).read(panel.columns.clone(), &mut x_room), shifts, sums);
        }
        sums.iter_mut().for_each(|sum| *sum = if op.is_log { sum.ln() } else { T::Compute::ONE / *sum });
        for row in 0..panels.n_rows {
            let x = x_row(row);
            let values = x.read(panel.columns.clone(), &mut x_room);
            // SAFETY: a row of the output; only this task visits this part of it.
            let y = unsafe { panels.row(panel, row, 1, &y) };
            y.write(panel.columns.clone(), &mut y_room, |y| match op.is_log {
                true => logarithms_tile(values, shifts, sums, y),
                false => exponentials_tile(values, shifts, sums, y),
            });
        }
    });
}

pub(super) fn backward<T: Element<Compute: Real>>(
    op: SoftmaxBackward,
    gradient: &Operand,
    y: &Operand,
    result: &Operand,
) {
    let strides = [gradient, y, result].map(|operand| operand.meta.layout.strides());
    let panels = Panels::along(op.axis, y.shape(), strides);
    let is_over = gradient.ptr() == result.ptr();
    let (gradient, y, result) =
        (LanePtr::<T>::new(gradient), LanePtr::<T>::new(y), LanePtr::<T>::new(result));
    panels.for_each(|panel| {
        let mut totals = [T::Compute::ZERO; WIDTH];
        let totals = &mut totals[..panel.columns.len()];
        let mut rooms = [const { Room::new() }; 3];
        let [g_room, y_room, result_room] = &mut rooms;
        // SAFETY: rows of operands that `execute` hands out; where the result is written over the gradient, its pieces
        // are copies, and only this task visits this part of a row.
        let rows = |row: usize| unsafe {
            (panels.row(panel, row, 0, &gradient).copied(is_over), panels.row(panel, row, 1, &y))
        };
        for row in 0..panels.n_rows {
            let (g, y) = rows(row);
            let (g, y) = (g.read(panel.columns.clone(), g_room), y.read(panel.columns.clone(), y_room));
            add_products_tile(op.is_log, g, y, totals);
        }
        for row in 0..panels.n_rows {
            let (g, y) = rows(row);
            let (g, y) = (g.read(panel.columns.clone(), g_room), y.read(panel.columns.clone(), y_room));
            // SAFETY: a row of the result; only this task visits this part of it.
            let result = unsafe { panels.row(panel, row, 2, &result) };
            result.write(panel.columns.clone(), result_room, |result| match op.is_log {
                true => log_grad_tile(g, y, totals, result),
                false => grad_tile(g, y, totals, result),
            });
        }
    });
}

/// Declares a tile function: each element of `y` from its own value and those of the inputs at the same place.
macro_rules! tile {
    ($name:ident, [$($input:ident),+], $y:ident => $value:expr) => {
        #[inline(never)]
        fn $name<C: Real>($($input: &[C],)+ y: &mut [C]) {
            simd::vectorize(
                #[inline(always)]
                || {
                    let n = y.len();
                    $(let $input = &$input[..n];)+
                    for idx in 0..n {
                        $(let $input = $input[idx];)+
                        let $y = y[idx];
                        y[idx] = $value;
                    }
                },
            );
        }
    };
}

tile!(max_tile, [x], max => Number::max(max, x));
tile!(add_exponentials_tile, [x, shift], sum => sum + (x - shift).exp());
tile!(exponentials_tile, [x, shift, scale], _y => (x - shift).exp() * scale);
tile!(logarithms_tile, [x, shift, log], _y => x - shift - log);
tile!(grad_tile, [g, v, total], _y => v * (g - total));
tile!(log_grad_tile, [g, v, total], _y => g - v.exp() * total);
tile!(add_dots_tile, [g, v], total => total + g * v);
tile!(add_tile, [g], total => total + g);

/// Adds what backward sums up along a lane: the gradient, times the output unless that is a logarithm.
fn add_products_tile<C: Real>(is_log: bool, g: &[C], y: &[C], totals: &mut [C]) {
    if is_log { add_tile(g, totals) } else { add_dots_tile(g, y, totals) }
}
