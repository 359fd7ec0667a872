//! Lanes: all elements along one axis, for kernels that look at each lane more than once.
//!
//! A kernel takes lanes by number and reads and writes them in pieces of at most a tile, in the compute type. Where a
//! lane lies contiguously and computes as itself a piece is its memory, else a copy on the stack. Tasks for threads are
//! whole lanes, cut by shape alone. What is computed from a lane is the kernel's matter, and so is the order in which
//! it joins what it learned from the pieces: first to last, for the same bits every time.

use std::mem::MaybeUninit;
use std::ops::Range;

use crate::element::Element;
use crate::map::MAX_RANK;
use crate::threads;
use crate::tile::{self, Patch, TILE_LEN};

/// The number of elements that one task visits. Fewer are not worth waking a thread for.
const TASK_LEN: usize = 16 * 1024;

/// The lanes of `N` operands of one shape.
#[derive(Clone, Copy, Debug)]
pub struct Lanes<const N: usize> {
    /// The number of lanes.
    pub n_lanes: usize,
    /// The number of elements of each lane.
    pub len: usize,
    /// For each operand, the step from one element of a lane to the next.
    pub steps: [isize; N],
    /// The other axes, outermost first; neighbours that are walked as one are merged.
    dims: [Dim<N>; MAX_RANK],
    n_dims: usize,
}

#[derive(Clone, Copy, Debug)]
struct Dim<const N: usize> {
    extent: usize,
    strides: [isize; N],
}

impl<const N: usize> Lanes<N> {
    /// The lanes along `axis`, in row-major order of the other axes; one stride per operand and axis.
    pub fn along(axis: usize, shape: &[usize], strides: [&[isize]; N]) -> Lanes<N> {
        let mut lanes = Lanes {
            n_lanes: 1,
            len: shape[axis],
            steps: strides.map(|strides| strides[axis]),
            dims: [Dim { extent: 1, strides: [0; N] }; MAX_RANK],
            n_dims: 0,
        };
        for (other, &extent) in shape.iter().enumerate().filter(|&(other, _)| other != axis) {
            lanes.n_lanes *= extent;
            if extent != 1 {
                lanes.push(Dim { extent, strides: strides.map(|strides| strides[other]) });
            }
        }
        lanes
    }

    /// Appends an axis inside the others, merged with the last of them where they are walked as one.
    fn push(&mut self, inner: Dim<N>) {
        if let Some(outer) = self.dims[..self.n_dims].last_mut() {
            let is_one_walk = (0..N).all(|i| outer.strides[i] == inner.strides[i] * inner.extent as isize);
            if is_one_walk {
                *outer = Dim { extent: outer.extent * inner.extent, ..inner };
                return;
            }
        }
        self.dims[self.n_dims] = inner;
        self.n_dims += 1;
    }

    /// For each operand, where a lane begins.
    #[inline]
    pub fn offsets(&self, lane: usize) -> [isize; N] {
        let mut offsets = [0; N];
        let mut rest = lane;
        for (idx, dim) in self.dims[..self.n_dims].iter().enumerate().rev() {
            let place = if idx == 0 { rest } else { rest % dim.extent };
            rest /= dim.extent;
            for (offset, stride) in offsets.iter_mut().zip(dim.strides) {
                *offset += place as isize * stride;
            }
        }
        offsets
    }

    /// Runs `f` on every lane's number, on many threads where there is much to do.
    pub fn for_each(&self, f: impl Fn(usize) + Sync) {
        self.in_stretches(self.lanes_per_task(), |lanes| lanes.for_each(&f));
    }

    /// Runs `f` on stretches of `per_task` lanes, each stretch as one task.
    pub fn in_stretches(&self, per_task: usize, f: impl Fn(Range<usize>) + Sync) {
        threads::parallel(self.n_lanes.div_ceil(per_task), |task| {
            f(task * per_task..self.n_lanes.min((task + 1) * per_task));
        });
    }

    /// The number of lanes that make one task.
    pub fn lanes_per_task(&self) -> usize {
        TASK_LEN.div_ceil(self.len.max(1))
    }
}

/// Room on the stack for one piece of a lane.
#[repr(C, align(64))]
pub struct Room<C>([MaybeUninit<C>; TILE_LEN]);

impl<C> Room<C> {
    /// Room whose contents are not yet anything.
    #[inline(always)]
    pub const fn new() -> Room<C> {
        Room([const { MaybeUninit::uninit() }; TILE_LEN])
    }

    /// The first values of the room, as zeros.
    ///
    /// # Panics
    /// They are more than a tile.
    #[inline]
    pub fn zeros(&mut self, n: usize) -> &mut [C]
    where
        C: Element,
    {
        assert!(n <= tile::tile_len(size_of::<C>()), "no more than a tile");
        let values: *mut C = self.0.as_mut_ptr().cast();
        // SAFETY: a room holds as many values as a tile, and zero is a value of every element type.
        unsafe {
            values.write_bytes(0, n);
            std::slice::from_raw_parts_mut(values, n)
        }
    }
}

impl<C> Default for Room<C> {
    fn default() -> Room<C> {
        Room::new()
    }
}

impl<C> std::fmt::Debug for Room<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Room")
    }
}

/// One lane of an operand.
#[derive(Clone, Copy, Debug)]
pub struct Lane<T> {
    first: *mut T,
    step: isize,
    len: usize,
    /// Whether pieces are the memory itself.
    is_direct: bool,
}

impl<T: Element> Lane<T> {
    /// The elements `first`, `first + step`, and so on, `len` of them.
    ///
    /// # Safety
    /// They are valid for reads, and for writes if the lane is written, while the lane is used; nothing else
    /// writes to them then, but for a lane over the same elements whose pieces are [`copied`](Lane::copied).
    #[inline(always)]
    pub unsafe fn new(first: *const T, step: isize, len: usize) -> Lane<T> {
        let is_direct = T::IS_COMPUTE && (step == 1 || len <= 1);
        Lane { first: first.cast_mut(), step, len, is_direct }
    }

    /// The same lane, with pieces that are always copies: for one that is written over.
    #[inline(always)]
    pub fn copied(self, copied: bool) -> Lane<T> {
        Lane { is_direct: self.is_direct && !copied, ..self }
    }

    /// The pieces of the lane: ranges of its elements, first to last.
    #[inline(always)]
    pub fn pieces(&self) -> impl Iterator<Item = Range<usize>> + use<T> {
        let (len, piece) = (self.len, tile::tile_len(size_of::<T::Compute>()));
        (0..len).step_by(piece).map(move |start| start..len.min(start + piece))
    }

    /// The values of a piece.
    ///
    /// # Panics
    /// The range is not part of the lane, or longer than a tile.
    #[inline]
    pub fn read<'a>(&'a self, piece: Range<usize>, room: &'a mut Room<T::Compute>) -> &'a [T::Compute] {
        let n = self.check(&piece);
        // SAFETY: the piece begins inside the lane, or at its end.
        let first = unsafe { self.first.offset(piece.start as isize * self.step) };
        if self.is_direct {
            // SAFETY: `n` elements of the lane, contiguous, in their compute type; nobody writes them meanwhile.
            return unsafe { std::slice::from_raw_parts(first.cast(), n) };
        }
        let patch = Patch { n_rows: 1, n_cols: n, row_stride: 0, col_stride: self.step };
        // SAFETY: `n` elements of the lane, and a room holds as many; `gather` writes all that the slice covers.
        unsafe {
            tile::gather::<T>(first.cast_const().cast(), patch, room.0.as_mut_ptr().cast());
            std::slice::from_raw_parts(room.0.as_ptr().cast(), n)
        }
    }

    /// Has `f` write every value of a piece.
    ///
    /// # Panics
    /// The range is not part of the lane, or longer than a tile.
    #[inline]
    pub fn write(&self, piece: Range<usize>, room: &mut Room<T::Compute>, f: impl FnOnce(&mut [T::Compute])) {
        let n = self.check(&piece);
        // SAFETY: the piece begins inside the lane, or at its end.
        let first = unsafe { self.first.offset(piece.start as isize * self.step) };
        if self.is_direct {
            // SAFETY: `n` elements of the lane, contiguous, in their compute type; nobody else uses them meanwhile.
            return f(unsafe { std::slice::from_raw_parts_mut(first.cast(), n) });
        }
        let values = room.zeros(n);
        f(values);
        let patch = Patch { n_rows: 1, n_cols: n, row_stride: 0, col_stride: self.step };
        // SAFETY: `n` values of the room to as many elements of the lane.
        unsafe { tile::scatter::<T>(values.as_ptr().cast(), first.cast(), patch) };
    }

    /// The length of a piece.
    #[inline(always)]
    fn check(&self, piece: &Range<usize>) -> usize {
        assert!(piece.start <= piece.end && piece.end <= self.len, "a piece of the line");
        let n = piece.end - piece.start;
        assert!(n <= tile::tile_len(size_of::<T::Compute>()), "no more than a tile");
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;
    use std::sync::Mutex;

    #[test]
    fn lanes_are_numbered_in_row_major_order() {
        let lanes = Lanes::along(1, &[2, 3, 4], [&[12, 4, 1], &[0, 1, -3]]);
        assert_eq!((lanes.n_lanes, lanes.len, lanes.steps), (8, 3, [4, 1]));
        assert_eq!(lanes.offsets(5), [13, -3]);
        let whole = Lanes::along(2, &[2, 3, 4], [&[12, 4, 1]]);
        assert_eq!((whole.n_dims, whole.offsets(5)), (1, [20]));
        let seen = Mutex::new(Vec::new());
        Lanes::along(0, &[20_000, 3], [&[3, 1]]).for_each(|lane| seen.lock().unwrap().push(lane));
        seen.lock().unwrap().sort_unstable();
        assert_eq!(*seen.lock().unwrap(), [0, 1, 2]);
        Lanes::along(1, &[0, 3], [&[3, 1]]).for_each(|_| panic!("there is no lane"));
    }

    #[test]
    fn pieces_follow_any_step() {
        let mut memory: Vec<bf16> = (0..6000).map(|i| bf16::from_f32((i % 251) as f32)).collect();
        let before = memory.clone();
        for (start, step, len) in [(0, 1, 2500), (5999, -1, 2500), (1, 2, 2500), (7, 0, 1500), (3, 5, 0)] {
            // SAFETY: these elements lie inside `memory`, which nothing else uses here.
            let lane = unsafe { Lane::new(memory.as_mut_ptr().add(start), step, len) };
            let mut room = Room::new();
            for piece in lane.pieces() {
                let expected: Vec<f32> = piece
                    .clone()
                    .map(|i| before[(start as isize + i as isize * step) as usize].to_f32())
                    .collect();
                assert_eq!(lane.read(piece, &mut room), expected);
            }
        }
        // SAFETY: as above.
        let lane = unsafe { Lane::new(memory.as_mut_ptr(), 2, 3000) };
        let mut room = Room::new();
        for piece in lane.pieces() {
            lane.write(piece.clone(), &mut room, |values| {
                for (value, idx) in values.iter_mut().zip(piece) {
                    *value = (idx % 100) as f32;
                }
            });
        }
        assert!((0..3000).all(|i| memory[2 * i].to_f32() == (i % 100) as f32));
        assert!((0..3000).all(|i| memory[2 * i + 1] == before[2 * i + 1]));
    }
}
