//! C: where tiles go, and what happens to them on the way.
//!
//! A tile whose numbers lie side by side in C is added up in place by the micro-kernel. Any other tile (an edge,
//! a strided C, a C too narrow for sums) is formed in a staging tile and written from there row by row.

use std::ops::Range;

use crate::element::{Access, Element, Real};
use crate::tile::{MAX_TILE, MAX_WIDTH, Target};

/// A function applied in place to finished stretches of C, before they are rounded.
pub type Activation<'a, T> = &'a (dyn Fn(&mut [T]) + Sync);

/// Where the rows of C lie.
#[derive(Clone, Copy)]
pub(crate) enum Rows {
    /// So many elements apart.
    Even(isize),
    /// At the points of a grid: planes of `height` times `width` rows, with elements from one plane, line and point to
    /// the next.
    Grid { height: usize, width: usize, plane_stride: isize, line_stride: isize, point_stride: isize },
}

impl Rows {
    /// Elements from one of these rows to the next, if they are equally far apart.
    fn stride_of(self, rows: &Range<usize>) -> Option<isize> {
        match self {
            Self::Even(stride) => Some(stride),
            Self::Grid { width, point_stride, .. } => {
                let is_one_line = rows.start / width == (rows.end - 1) / width;
                is_one_line.then_some(point_stride)
            }
        }
    }

    /// Elements from row 0 to row `row`.
    fn offset(self, row: usize) -> isize {
        match self {
            Self::Even(stride) => row as isize * stride,
            Self::Grid { height, width, plane_stride, line_stride, point_stride } => {
                let (line, point) = (row / width, row % width);
                (line / height) as isize * plane_stride
                    + (line % height) as isize * line_stride
                    + point as isize * point_stride
            }
        }
    }
}

/// The matrix C and its epilogue.
#[derive(Clone, Copy)]
pub(crate) struct Output<'a, T> {
    /// The element of product 0, row 0, column 0.
    pub first: *mut u8,
    pub rows: Rows,
    /// Elements from one column to the next, one product to the next.
    pub col_stride: isize,
    pub batch_stride: isize,
    /// How elements are read and written.
    pub access: Access<T>,
    /// Whether the product is added to what C holds.
    pub accumulate: bool,
    /// Elements added to every row, or null; elements from one column's to the next, one product's to the next.
    pub bias: *const u8,
    pub bias_stride: isize,
    pub bias_batch_stride: isize,
    /// Applied last.
    pub activation: Option<Activation<'a, T>>,
}

// SAFETY: tasks write disjoint parts of C, and whoever made the output promised that nobody else touches it.
unsafe impl<T> Sync for Output<'_, T> {}

/// The most numbers of a row of C that are written at once when they are not written by the micro-kernel.
const STRETCH: usize = 128;

/// The place of a tile in C, and the stage of its sum.
pub(crate) struct Place {
    pub batch: usize,
    pub rows: Range<usize>,
    pub cols: Range<usize>,
    /// Whether this is the first block of depth, and whether it is the last.
    pub first: bool,
    pub last: bool,
}

/// Sums of a chunk of C that are kept in the workspace until they are complete.
#[derive(Clone, Copy)]
pub(crate) struct Sums<T> {
    /// The sum of the chunk's first row and column.
    pub first: *mut T,
    /// Numbers from one row to the next.
    pub row_stride: usize,
    /// The chunk's first row and column in C.
    pub row: usize,
    pub col: usize,
}

/// The bias of one panel of columns, widened and padded with zeros.
pub(crate) struct PanelBias<T> {
    row: [T; MAX_WIDTH],
    present: bool,
}

impl<T: Real> PanelBias<T> {
    fn as_ptr(&self) -> *const T {
        if self.present { self.row.as_ptr() } else { std::ptr::null() }
    }
}

impl<T: Real> Output<'_, T> {
    /// A matrix with its columns side by side, and no epilogue.
    pub fn new<E: Element<Real = T>>(first: *mut E, rows: Rows, batch_stride: usize) -> Self {
        Self {
            first: first.cast(),
            rows,
            col_stride: 1,
            batch_stride: batch_stride as isize,
            access: Access::of::<E>(),
            accumulate: false,
            bias: std::ptr::null(),
            bias_stride: 1,
            bias_batch_stride: 0,
            activation: None,
        }
    }

    /// The address of one element.
    ///
    /// # Safety
    /// The element must lie within C.
    unsafe fn at(&self, batch: usize, row: usize, col: usize) -> *mut u8 {
        let elements =
            batch as isize * self.batch_stride + self.rows.offset(row) + col as isize * self.col_stride;
        // SAFETY: the caller promises that the element lies within C.
        unsafe { self.first.offset(elements * self.access.size as isize) }
    }

    /// Whether its elements are the numbers of its sums, with rows of that many columns one after the other.
    pub fn is_dense(&self, n_cols: usize) -> bool {
        let follow = matches!(self.rows, Rows::Even(stride) if stride == n_cols as isize);
        follow && self.col_stride == 1 && self.access.same
    }

    /// Applies the activation to complete rows of a dense C.
    ///
    /// # Safety
    /// C must be dense, and the rows touched by nobody else.
    pub unsafe fn activate(&self, rows: Range<usize>) {
        let (Some(activation), Rows::Even(n_cols)) = (self.activation, self.rows) else { return };
        // SAFETY: the rows of a dense matrix follow one another.
        unsafe {
            let first = self.at(0, rows.start, 0).cast::<T>();
            activation(std::slice::from_raw_parts_mut(first, rows.len() * n_cols as usize));
        }
    }

    /// The bias to add to tiles of these columns: none before the last block of depth.
    ///
    /// # Safety
    /// The columns must lie within C.
    pub unsafe fn panel_bias(&self, batch: usize, cols: Range<usize>, last: bool) -> PanelBias<T> {
        let mut bias = PanelBias { row: [T::default(); _], present: last && !self.bias.is_null() };
        if bias.present {
            // SAFETY: the caller promises the columns.
            unsafe { self.read_bias(batch, cols.start, &mut bias.row[..cols.len()]) };
        }
        bias
    }

    /// Adds one block of depth, which `multiply` writes to tiles `width` columns wide, to the tile at `place`.
    ///
    /// # Safety
    /// `place` must lie within C and be touched by nobody else; `multiply` must write such tiles of as many rows; `sums`
    /// must be given if C is narrow and there is more than one block.
    pub unsafe fn add_tile(
        &self,
        place: &Place,
        width: usize,
        multiply: impl FnOnce(Target<T>),
        bias: &PanelBias<T>,
        sums: Option<Sums<T>>,
    ) {
        let n_rows = place.rows.len();
        let bias = bias.as_ptr();
        if let Some(row_stride) = self.rows.stride_of(&place.rows)
            && self.access.same
            && self.col_stride == 1
            && width == place.cols.len()
        {
            let accumulate = self.accumulate || !place.first;
            // SAFETY: the tile lies within C, whose elements are `T`.
            unsafe {
                let tile = self.at(place.batch, place.rows.start, place.cols.start).cast::<T>();
                multiply(Target { tile, row_stride, accumulate, bias });
                if let (Some(activation), true) = (self.activation, place.last) {
                    for i in 0..n_rows {
                        let row = tile.offset(i as isize * row_stride);
                        activation(std::slice::from_raw_parts_mut(row, width));
                    }
                }
            }
            return;
        }
        let mut staging = [const { std::mem::MaybeUninit::<T>::uninit() }; MAX_TILE];
        let (tile, row_stride) = match sums {
            // SAFETY: the tile lies within the chunk whose sums these are.
            Some(sums) => unsafe {
                let idx = (place.rows.start - sums.row) * sums.row_stride + place.cols.start - sums.col;
                (sums.first.add(idx), sums.row_stride)
            },
            None => (staging.as_mut_ptr().cast::<T>(), width),
        };
        let accumulate = sums.is_some() && !place.first;
        // The staging tile has room for the widest and tallest tile, the sums for all of the chunk.
        multiply(Target { tile, row_stride: row_stride as isize, accumulate, bias });
        if sums.is_some() && !place.last {
            return;
        }
        for i in 0..n_rows {
            // SAFETY: this row has just been written.
            unsafe {
                let row = std::slice::from_raw_parts_mut(tile.add(i * row_stride), place.cols.len());
                let add = self.accumulate || (sums.is_none() && !place.first);
                self.finish_row(place.batch, place.rows.start + i, place.cols.start, add, place.last, row);
            }
        }
    }

    /// Writes sums to a stretch of a row of C: adds what is there if `add`, applies the activation if `last`.
    ///
    /// # Safety
    /// The stretch must lie within C and be touched by nobody else.
    unsafe fn finish_row(&self, batch: usize, row: usize, col: usize, add: bool, last: bool, sums: &mut [T]) {
        // SAFETY: the caller promises that the stretch lies within C.
        unsafe {
            let to = self.at(batch, row, col);
            if add {
                let mut there = [T::default(); STRETCH];
                let there = &mut there[..sums.len()];
                (self.access.read)(to, self.col_stride, there);
                for (sum, there) in sums.iter_mut().zip(there) {
                    *sum += *there;
                }
            }
            if let (Some(activation), true) = (self.activation, last) {
                activation(sums);
            }
            (self.access.write)(sums, to, self.col_stride);
        }
    }

    /// Writes complete sums without bias to a stretch of a row of C, with the whole epilogue.
    ///
    /// # Safety
    /// See [`Output::finish_row`].
    pub unsafe fn write_row(&self, batch: usize, row: usize, col: usize, sums: &mut [T]) {
        for (idx, sums) in sums.chunks_mut(STRETCH).enumerate() {
            let col = col + idx * STRETCH;
            // SAFETY: the caller promises that the stretch lies within C.
            unsafe {
                if !self.bias.is_null() {
                    let mut bias = [T::default(); STRETCH];
                    self.read_bias(batch, col, &mut bias[..sums.len()]);
                    for (sum, bias) in sums.iter_mut().zip(bias) {
                        *sum += bias;
                    }
                }
                self.finish_row(batch, row, col, self.accumulate, true, sums);
            }
        }
    }

    /// Reads the bias of some columns.
    ///
    /// # Safety
    /// There must be a bias, and the columns must lie within C.
    unsafe fn read_bias(&self, batch: usize, col: usize, to: &mut [T]) {
        let elements = batch as isize * self.bias_batch_stride + col as isize * self.bias_stride;
        // SAFETY: the bias has as many elements as C has columns.
        unsafe {
            let first = self.bias.offset(elements * self.access.size as isize);
            (self.access.read)(first, self.bias_stride, to);
        }
    }
}
