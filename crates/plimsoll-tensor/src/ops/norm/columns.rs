//! Sums over lanes, column by column, with the same bits for any number of threads.
//!
//! Lanes are cut into at most a few stretches by their number and length alone. Each stretch adds its lanes up in order
//! into rows of its own in the workspace, and the rows are added up in order at the end.

use plimsoll_cpu::element::Element;
use plimsoll_cpu::math::Real;
use plimsoll_cpu::threads::SharedPtr;

/// The most stretches.
const MAX_STRETCHES: usize = 32;

/// The least number of elements of a stretch.
const LEAST_ELEMS: usize = 16 * 1024;

/// How the lanes are cut, for some sums of the width of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretches {
    pub per_stretch: usize,
    n_stretches: usize,
    n_sums: usize,
    width: usize,
}

impl Stretches {
    pub fn new(n_lanes: usize, width: usize, n_sums: usize) -> Stretches {
        let per_stretch = n_lanes.div_ceil(MAX_STRETCHES).max(LEAST_ELEMS.div_ceil(width.max(1)));
        Stretches { per_stretch, n_stretches: n_lanes.div_ceil(per_stretch), n_sums, width }
    }

    /// The number of values that the rows of all stretches take.
    pub fn n_values(&self) -> usize {
        self.n_stretches * self.n_sums * self.width
    }

    /// The rows of the stretch that begins with `first_lane`, as zeros.
    ///
    /// # Safety
    /// `workspace` is valid for [`n_values`](Stretches::n_values) values, and this stretch's are used nowhere else.
    pub unsafe fn rows<'a, C: Real>(&self, workspace: SharedPtr<C>, first_lane: usize) -> &'a mut [C] {
        let len = self.n_sums * self.width;
        if len == 0 {
            return &mut [];
        }
        // SAFETY: the caller's promise; zero is a value of every element type.
        unsafe {
            let first = workspace.get().add(first_lane / self.per_stretch * len);
            first.write_bytes(0, len);
            std::slice::from_raw_parts_mut(first, len)
        }
    }

    /// The rows of all stretches.
    ///
    /// # Safety
    /// Every stretch has written its rows to `workspace`, and nobody writes them now.
    pub unsafe fn all_rows<'a, C: Real>(&self, workspace: SharedPtr<C>) -> &'a [C] {
        match self.n_values() {
            0 => &[],
            // SAFETY: the caller's promise.
            n => unsafe { std::slice::from_raw_parts(workspace.get(), n) },
        }
    }

    /// The column sums number `sum`, from [`all_rows`](Stretches::all_rows).
    pub fn total<'a, C: Real>(&'a self, rows: &'a [C], sum: usize) -> impl Iterator<Item = C> + 'a {
        (0..self.width).map(move |column| {
            let of_stretch = |stretch: usize| rows[(stretch * self.n_sums + sum) * self.width + column];
            (0..self.n_stretches).map(of_stretch).fold(C::ZERO, |total, part| total + part)
        })
    }
}

/// Writes values to contiguous memory.
///
/// # Safety
/// `to` is valid for writes of as many elements as there are values.
pub(super) unsafe fn write_all<T: Element>(to: *mut T, values: impl Iterator<Item = T::Compute>) {
    for (idx, value) in values.enumerate() {
        // SAFETY: the caller's promise.
        unsafe { to.add(idx).write(T::narrow(value)) };
    }
}
