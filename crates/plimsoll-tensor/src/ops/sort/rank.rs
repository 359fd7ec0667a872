//! The kernel: the elements of each lane as keys that compare like whole numbers, ordered where their indices will lie.
//!
//! A key of 32 bits and the index make one number of 64 bits, as wide as the index that is wanted in the end: the lane
//! is ordered by sorting plain numbers, and no two are equal, so that the order is stable. Elements of 64 bits are
//! ordered by their indices, which are looked up.

use plimsoll_cpu::element::Element;
use plimsoll_cpu::lanes::Lanes;
use plimsoll_cpu::threads::SharedPtr;

use crate::eager::op::Operand;
use half::{bf16, f16};

/// A type with an order: NaN is above everything, and the two zeros are equal.
pub(super) trait Sortable: Element {
    /// The bits of a key.
    const KEY_BITS: u32;

    /// A number that compares as the element does.
    fn key(self) -> u64;
}

/// Floats of one width: negative ones compare backwards, and below the others.
macro_rules! sortable_float {
    ($type:ident, $bits:ident) => {
        impl Sortable for $type {
            const KEY_BITS: u32 = $bits::BITS;

            #[inline(always)]
            fn key(self) -> u64 {
                const SIGN: $bits = 1 << ($bits::BITS - 1);
                // Adding zero makes the negative zero a positive one.
                let bits = (self + 0.0).to_bits();
                let key = if bits & SIGN == 0 { bits | SIGN } else { !bits };
                u64::from(if self.is_nan() { $bits::MAX } else { key })
            }
        }
    };
}

sortable_float!(f32, u32);
sortable_float!(f64, u64);

/// Types whose keys are those of a wider one.
macro_rules! sortable_as {
    ($($type:ident, $bits:expr, $key:expr;)*) => {$(
        impl Sortable for $type {
            const KEY_BITS: u32 = $bits;

            #[inline(always)]
            fn key(self) -> u64 {
                $key(self)
            }
        }
    )*};
}

sortable_as! {
    f16, 32, |x: f16| x.widen().key();
    bf16, 32, |x: bf16| x.widen().key();
    u8, 32, u64::from;
    i32, 32, |x: i32| u64::from(x as u32 ^ 1 << 31);
    i64, 64, |x: i64| x as u64 ^ 1 << 63;
}

/// One lane of elements, and the direction in which it is ordered.
#[derive(Clone, Copy)]
struct Keys<T, const DESCENDING: bool> {
    first: *const T,
    step: isize,
    len: usize,
}

impl<T: Sortable, const DESCENDING: bool> Keys<T, DESCENDING> {
    /// The element at a place of the lane.
    #[inline(always)]
    fn value(self, idx: usize) -> T {
        debug_assert!(idx < self.len);
        // SAFETY: `rank_lanes` makes keys of lanes only, and asks for their places only.
        unsafe { *self.first.offset(idx as isize * self.step) }
    }

    /// The key at a place, the lower the earlier.
    #[inline(always)]
    fn key(self, idx: usize) -> u64 {
        let key = self.value(idx).key();
        if DESCENDING { key ^ (u64::MAX >> (64 - T::KEY_BITS)) } else { key }
    }

    /// Whether key and index fit into 64 bits.
    #[inline(always)]
    fn is_packed(self) -> bool {
        T::KEY_BITS == 32 && u32::try_from(self.len).is_ok()
    }

    /// Puts the first indices of the order into `entries`, as many as it has room for.
    fn rank(self, entries: &mut [u64]) {
        if self.is_packed() {
            let packed = |idx: usize| self.key(idx) << 32 | idx as u64;
            select(entries, self.len, packed, |entry| entry);
            entries.iter_mut().for_each(|entry| *entry &= u64::from(u32::MAX));
        } else {
            select(entries, self.len, |idx| idx as u64, |entry| (self.key(entry as usize), entry));
        }
    }
}

/// The least of `len` entries, in order, as many as there is room for; `rank` says how they compare.
fn select<R: Ord>(
    entries: &mut [u64],
    len: usize,
    entry: impl Fn(usize) -> u64,
    rank: impl Fn(u64) -> R + Copy,
) {
    let n_wanted = entries.len();
    for (idx, slot) in entries.iter_mut().enumerate() {
        *slot = entry(idx);
    }
    if (1..len).contains(&n_wanted) {
        // A heap whose top is the last of the entries that are kept so far; most others are turned away there.
        (0..n_wanted / 2).rev().for_each(|at| sift_down(entries, at, rank));
        for idx in n_wanted..len {
            let candidate = entry(idx);
            if rank(candidate) < rank(entries[0]) {
                entries[0] = candidate;
                sift_down(entries, 0, rank);
            }
        }
    }
    entries.sort_unstable_by_key(|&entry| rank(entry));
}

/// Restores the order of a heap, the greatest on top, below an entry that may be too small for its place.
fn sift_down<R: Ord>(heap: &mut [u64], mut at: usize, rank: impl Fn(u64) -> R) {
    loop {
        let mut child = 2 * at + 1;
        if child >= heap.len() {
            return;
        }
        if child + 1 < heap.len() && rank(heap[child]) < rank(heap[child + 1]) {
            child += 1;
        }
        if rank(heap[child]) <= rank(heap[at]) {
            return;
        }
        heap.swap(child, at);
        at = child;
    }
}

/// Ranks every lane along the last axis: the indices of the first elements in order, and the elements themselves.
pub(super) fn rank_lanes<T: Sortable, const DESCENDING: bool>(
    x: &Operand,
    values: Option<&Operand>,
    indices: &Operand,
) {
    let axis = x.shape().rank() - 1;
    let lanes = Lanes::along(axis, x.shape(), [x.meta.layout.strides()]);
    let n_wanted = indices.shape()[axis];
    let first = SharedPtr::new(x.ptr().cast::<T>());
    let indices = SharedPtr::new(indices.ptr().cast::<u64>());
    let values = values.map(|values| SharedPtr::new(values.ptr().cast::<T>()));
    if n_wanted == 0 {
        return;
    }
    lanes.for_each(|lane| {
        let [offset] = lanes.offsets(lane);
        let keys: Keys<T, DESCENDING> =
            // SAFETY: the offset is that of a lane of an operand that `execute` hands out.
            Keys { first: unsafe { first.get().offset(offset) }, step: lanes.steps[0], len: lanes.len };
        // SAFETY: this lane's part of the fresh, row-major output; an index is as wide as an entry, and zeros are one.
        let entries = unsafe {
            let start = indices.get().add(lane * n_wanted);
            start.write_bytes(0, n_wanted);
            std::slice::from_raw_parts_mut(start, n_wanted)
        };
        keys.rank(entries);
        let Some(values) = values else { return };
        for (at, &idx) in entries.iter().enumerate() {
            // SAFETY: this lane's part of the other output, which is as long.
            unsafe { *values.get().add(lane * n_wanted + at) = keys.value(idx as usize) };
        }
    });
}
