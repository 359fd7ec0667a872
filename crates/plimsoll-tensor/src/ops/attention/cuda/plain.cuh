// What the kernels without tensor cores share. A warp owns a row of one side of the scores and meets the other side 32 rows
// at a time, one for each lane. Those rows pass through shared memory in pieces of 32 columns, which all warps of the block
// use, so that rows may have any length and any strides.

#define WARPS 8
#define THREADS (WARPS * WARP)
// Elements of a piece: its rows are one longer, so that lanes that read one column meet different banks.
#define PIECE (32 * 33)

// Brings rows and columns from `row` and `col` on of a matrix to shared memory, zeros where there are none. All threads of
// the block take part.
DEVICE void load_tile(C* piece, const T* matrix, const Matrices& of, u32 row, u32 n, u32 col, u32 length) {
    __syncthreads();
    for (int task = threadIdx.x; task < 32 * 32; task += THREADS) {
        u32 r = task / 32, c = task % 32;
        bool is_there = row + r < n && col + c < length;
        piece[r * 33 + c] = is_there ? (C)widen(matrix[(i64)(row + r) * of.row + (i64)(col + c) * of.col]) : (C)0;
    }
    __syncthreads();
}

// The product of the warp's own row with each lane's row, from `row` on.
DEVICE C product(C* piece, const C* own, const T* matrix, const Matrices& of, u32 row, u32 n, u32 length) {
    int lane = threadIdx.x % WARP;
    C sum = 0;
    for (u32 col = 0; col < length; col += 32) {
        load_tile(piece, matrix, of, row, n, col, length);
        u32 len = length - col < 32 ? length - col : 32;
        for (u32 c = 0; c < len; c++) sum = m::fma(own[col + c], piece[lane * 33 + c], sum);
    }
    return sum;
}

// sums = fade · sums + the lanes' weights times their rows.
DEVICE void accumulate(C* piece, C* sums, C fade, C weight, const T* matrix, const Matrices& of, u32 row, u32 n, u32 length) {
    int lane = threadIdx.x % WARP;
    for (u32 col = 0; col < length; col += 32) {
        load_tile(piece, matrix, of, row, n, col, length);
        C sum = 0;
        for (int other = 0; other < 32; other++) sum = m::fma(__shfl_sync(ALL_LANES, weight, other), piece[other * 33 + lane], sum);
        if (col + lane < length) sums[col + lane] = m::fma(sums[col + lane], fade, sum);
    }
}

// A row of an operand, for the warp that owns it; zeros where there is none.
DEVICE void take_row(C* own, const T* matrix, const Matrices& of, u32 row, bool is_there, u32 length) {
    for (u32 col = threadIdx.x % WARP; col < length; col += WARP) {
        own[col] = is_there ? (C)widen(matrix[(i64)row * of.row + (i64)col * of.col]) : (C)0;
    }
}
