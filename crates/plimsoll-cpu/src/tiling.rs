//! How an elementwise kernel goes through its operands: which tile comes when.
//!
//! Strides and broadcasting are settled here once per call, so that nothing else needs to know about them. Dimensions of
//! one element are dropped, the rest ordered by the output's strides and merged where every operand allows it. Two
//! dimensions become the columns and rows of the tiles, the others go around them. Where all operands run along
//! the columns, a tile is as many whole rows as fit; where one runs along another dimension (a transposed operand),
//! that dimension becomes the rows and tiles are tall, so that every cache line that is touched is used up at once.

use crate::tile::Patch;

/// The most dimensions that a kernel takes.
pub const MAX_RANK: usize = 8;

/// The most operands, the output included.
pub(crate) const MAX_OPERANDS: usize = 4;

/// The columns of the tall tiles that a transposed operand is gone through in: a cache line of f32 for the others, long
/// stretches for it.
const TALL_COLS: usize = 16;

/// One dimension: its extent, and each operand's stride in elements. Operand 0 is the output.
#[derive(Clone, Copy, Debug)]
struct Dim {
    extent: usize,
    strides: [isize; MAX_OPERANDS],
}

const UNIT: Dim = Dim { extent: 1, strides: [0; MAX_OPERANDS] };

/// The dimensions of the operands, and how they are cut into tiles.
#[derive(Debug)]
pub(crate) struct Tiling {
    outer: [Dim; MAX_RANK],
    n_outer: usize,
    rows: Dim,
    cols: Dim,
    tile_rows: usize,
    tile_cols: usize,
    n_row_tiles: usize,
    n_col_tiles: usize,
    /// The number of tiles of the whole tiling.
    pub(crate) n_tiles: usize,
}

impl Tiling {
    /// The tiles of `shape`; `strides` are those of the output and of each input, `tile_len` the most elements of a tile.
    pub(crate) fn new(shape: &[usize], strides: &[&[isize]], tile_len: usize) -> Tiling {
        let mut dims = [UNIT; MAX_RANK];
        let mut n_dims = collect(shape, strides, &mut dims);
        order(&mut dims[..n_dims]);
        n_dims = merge(&mut dims[..n_dims]);
        let cols = take_last(&dims, &mut n_dims);
        let rows_idx = rows_dim(&dims[..n_dims], &cols);
        let is_tall = rows_idx.is_some();
        if let Some(idx) = rows_idx {
            dims[idx..n_dims].rotate_left(1);
        }
        let rows = take_last(&dims, &mut n_dims);
        let (tile_rows, tile_cols) = tile_extents(rows.extent, cols.extent, is_tall, tile_len);
        let n_row_tiles = rows.extent.div_ceil(tile_rows);
        let n_col_tiles = cols.extent.div_ceil(tile_cols);
        let n_outer_steps: usize = dims[..n_dims].iter().map(|dim| dim.extent).product();
        Tiling {
            outer: dims,
            n_outer: n_dims,
            rows,
            cols,
            tile_rows,
            tile_cols,
            n_row_tiles,
            n_col_tiles,
            n_tiles: n_outer_steps * n_row_tiles * n_col_tiles,
        }
    }

    /// The number of elements of a tile that is not at an edge.
    pub(crate) fn tile_len(&self) -> usize {
        self.tile_rows * self.tile_cols
    }

    /// The place of that tile in the tiling.
    pub(crate) fn seek(&self, tile: usize) -> Cursor<'_> {
        let mut place = [0; MAX_RANK];
        let mut base = [0; MAX_OPERANDS];
        let mut rest = tile / self.n_col_tiles / self.n_row_tiles;
        for axis in (0..self.n_outer).rev() {
            let dim = &self.outer[axis];
            place[axis] = rest % dim.extent;
            rest /= dim.extent;
            step(&mut base, dim, place[axis] as isize);
        }
        Cursor {
            tiling: self,
            place,
            base,
            row: tile / self.n_col_tiles % self.n_row_tiles * self.tile_rows,
            col: tile % self.n_col_tiles * self.tile_cols,
        }
    }
}

/// Fills `dims` with the dimensions that have more than one element (or none) and returns their number.
fn collect(shape: &[usize], strides: &[&[isize]], dims: &mut [Dim; MAX_RANK]) -> usize {
    let mut n_dims = 0;
    for (axis, &extent) in shape.iter().enumerate() {
        if extent != 1 {
            let mut dim = Dim { extent, ..UNIT };
            for (operand, strides) in strides.iter().enumerate() {
                dim.strides[operand] = strides[axis];
            }
            dims[n_dims] = dim;
            n_dims += 1;
        }
    }
    n_dims
}

/// Sorts dimensions by the output's strides, greatest first; equal ones keep their order.
fn order(dims: &mut [Dim]) {
    for end in 1..dims.len() {
        let mut idx = end;
        while idx > 0 && dims[idx - 1].strides[0].unsigned_abs() < dims[idx].strides[0].unsigned_abs() {
            dims.swap(idx - 1, idx);
            idx -= 1;
        }
    }
}

/// Merges neighbours that every operand walks as if they were one dimension, and returns how many are left.
fn merge(dims: &mut [Dim]) -> usize {
    let mut n_kept = 0;
    for idx in 0..dims.len() {
        let inner = dims[idx];
        if n_kept > 0 {
            let outer = &mut dims[n_kept - 1];
            if (0..MAX_OPERANDS).all(|k| outer.strides[k] == inner.strides[k] * inner.extent as isize) {
                *outer = Dim { extent: outer.extent * inner.extent, strides: inner.strides };
                continue;
            }
        }
        dims[n_kept] = inner;
        n_kept += 1;
    }
    n_kept
}

/// Takes the innermost dimension, or one of a single element where none is left.
fn take_last(dims: &[Dim; MAX_RANK], n_dims: &mut usize) -> Dim {
    if *n_dims == 0 {
        return UNIT;
    }
    *n_dims -= 1;
    dims[*n_dims]
}

/// The dimension that some input runs along, if it does not run along the columns.
fn rows_dim(dims: &[Dim], cols: &Dim) -> Option<usize> {
    let input = (1..MAX_OPERANDS).find(|&k| cols.strides[k].unsigned_abs() > 1)?;
    let stride = |idx: &usize| dims[*idx].strides[input].unsigned_abs();
    let candidate = (0..dims.len()).filter(|idx| stride(idx) != 0).min_by_key(stride)?;
    (stride(&candidate) < cols.strides[input].unsigned_abs()).then_some(candidate)
}

/// The rows and columns of a tile.
fn tile_extents(n_rows: usize, n_cols: usize, is_tall: bool, tile_len: usize) -> (usize, usize) {
    let most_cols = if is_tall { TALL_COLS.max(tile_len / n_rows.max(1)).min(tile_len) } else { tile_len };
    let tile_cols = n_cols.clamp(1, most_cols);
    let tile_rows = n_rows.clamp(1, tile_len / tile_cols);
    (tile_rows, tile_cols)
}

/// Moves every operand's offset by `count` steps along a dimension.
#[inline(always)]
fn step(base: &mut [isize; MAX_OPERANDS], dim: &Dim, count: isize) {
    for (offset, stride) in base.iter_mut().zip(dim.strides) {
        *offset += count * stride;
    }
}

/// A place in a tiling.
pub(crate) struct Cursor<'a> {
    tiling: &'a Tiling,
    /// The index along each outer dimension.
    place: [usize; MAX_RANK],
    /// Each operand's offset, in elements, at the first row and column of this place.
    base: [isize; MAX_OPERANDS],
    row: usize,
    col: usize,
}

impl Cursor<'_> {
    /// The rows and columns of the tile here.
    #[inline]
    pub(crate) fn extents(&self) -> (usize, usize) {
        let tiling = self.tiling;
        (
            tiling.tile_rows.min(tiling.rows.extent - self.row),
            tiling.tile_cols.min(tiling.cols.extent - self.col),
        )
    }

    /// An operand's offset in elements, and the form of its patch, for the tile here.
    #[inline]
    pub(crate) fn patch(&self, operand: usize, (n_rows, n_cols): (usize, usize)) -> (isize, Patch) {
        let row_stride = self.tiling.rows.strides[operand];
        let col_stride = self.tiling.cols.strides[operand];
        let offset = self.base[operand] + self.row as isize * row_stride + self.col as isize * col_stride;
        (offset, Patch { n_rows, n_cols, row_stride, col_stride })
    }

    /// Goes on to the next tile; after the last one the place means nothing.
    #[inline]
    pub(crate) fn advance(&mut self) {
        let tiling = self.tiling;
        self.col += tiling.tile_cols;
        if self.col < tiling.cols.extent {
            return;
        }
        self.col = 0;
        self.row += tiling.tile_rows;
        if self.row < tiling.rows.extent {
            return;
        }
        self.row = 0;
        for axis in (0..tiling.n_outer).rev() {
            let dim = &tiling.outer[axis];
            self.place[axis] += 1;
            step(&mut self.base, dim, 1);
            if self.place[axis] < dim.extent {
                return;
            }
            self.place[axis] = 0;
            step(&mut self.base, dim, -(dim.extent as isize));
        }
    }
}
