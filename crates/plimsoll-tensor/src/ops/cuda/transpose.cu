// Moves matrices whose neighbours in memory lie along one axis where they come from and along another where they go:
// tiles of 32 x 32 elements pass through shared memory, so that both sides are read and written in rows. Defined by
// moves.rs: ENTRY, T, OUTER (the number of axes over which the matrices lie).

#define TILE 32
#define LINES 8

struct Transpose {
    const T* from;
    T* to;
    // Elements along the axis that is dense at the source and along the one that is dense at the target.
    u64 n_rows, n_cols;
    // Steps along the rows' axis and the columns' axis, at the source and at the target.
    i64 from_row, from_col, to_row, to_col;
    u32 extents[8];
    i64 from_outer[8];
    i64 to_outer[8];
};

KERNEL __launch_bounds__(TILE * LINES) ENTRY(const Transpose what) {
    // One column more than is used: the threads of a warp then meet different banks in both directions.
    __shared__ T tile[TILE][TILE + 1];
    u32 x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    u32 row_tiles = (u32)((what.n_rows + TILE - 1) / TILE), col_tiles = (u32)((what.n_cols + TILE - 1) / TILE);
    u32 rest = blockIdx.x;
    u64 first_col = (u64)(rest % col_tiles) * TILE;
    rest /= col_tiles;
    u64 first_row = (u64)(rest % row_tiles) * TILE;
    rest /= row_tiles;
    const T* from = what.from;
    T* to = what.to;
#pragma unroll
    for (int axis = OUTER - 1; axis >= 0; axis--) {
        u32 at = axis == 0 ? rest : rest % what.extents[axis];
        if (axis > 0) rest /= what.extents[axis];
        from += (i64)at * what.from_outer[axis];
        to += (i64)at * what.to_outer[axis];
    }
#pragma unroll
    for (u32 line = y; line < TILE; line += LINES) {
        u64 row = first_row + x, col = first_col + line;
        if (row < what.n_rows && col < what.n_cols) {
            tile[line][x] = from[(i64)row * what.from_row + (i64)col * what.from_col];
        }
    }
    __syncthreads();
#pragma unroll
    for (u32 line = y; line < TILE; line += LINES) {
        u64 row = first_row + line, col = first_col + x;
        if (row < what.n_rows && col < what.n_cols) {
            to[(i64)row * what.to_row + (i64)col * what.to_col] = tile[x][line];
        }
    }
}
