// What the kernels for tensor cores share. A block has four warps; each owns BANDS bands of 16 rows of one side of the
// scores (queries, or keys in the backward kernel's second use) and meets the other side in tiles of COLS rows, which are
// brought to shared memory one tile ahead. Defined by mod.rs: DEPTH and WIDTH (rounded up to 16), BANDS, COLS.
//
// Rows in shared memory are 8 elements longer than needed, an odd number of 16-byte pieces, so that the eight rows of an
// 8 × 8 matrix lie in different banks.

#define WARPS 4
#define THREADS (WARPS * WARP)
#define ROWS (WARPS * BANDS * 16)
#define PADDED(length) ((length) + 8)

// Two numbers as a pair of T's, the first in the low half.
#ifdef PLIMSOLL_EMULATED
DEVICE u32 pair(float low, float high) { return narrow<T>(low).bits | (u32)narrow<T>(high).bits << 16; }
#else
DEVICE u32 pair_of(float low, float high, f16) {
    u32 y; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low)); return y;
}
DEVICE u32 pair_of(float low, float high, bf16) {
    u32 y; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low)); return y;
}
DEVICE u32 pair(float low, float high) { return pair_of(low, high, T{}); }
#endif

// Starts to bring rows `first` to `first + N_ROWS` of a matrix to shared memory, zeros where there are none; all threads of
// the block take part. Elements of a row are neighbours, and 16 bytes can be moved at once.
template <int N_ROWS, int LENGTH> DEVICE void bring(T* tile, const T* matrix, i64 stride, u32 first, u32 n, u32 length) {
    const int pieces = LENGTH / 8;
#pragma unroll
    for (int task = threadIdx.x; task < N_ROWS * pieces; task += THREADS) {
        int row = task / pieces, col = task % pieces * 8;
        bool is_there = first + row < n && col < length;
        const T* from = is_there ? matrix + (i64)(first + row) * stride + col : matrix;
        copy_async_16(tile + row * PADDED(LENGTH) + col, from, is_there);
    }
}

// 16 × 16 elements as a left factor; `tile` is the corner.
template <int LENGTH> DEVICE void left_factor(u32 a[4], const T* tile) {
    int lane = threadIdx.x % WARP;
    ldmatrix_x4(a, tile + (lane % 16) * PADDED(LENGTH) + lane / 16 * 8);
}

// 16 rows and 16 columns as two right factors, which are the rows: for products with the tile's transpose.
template <int LENGTH> DEVICE void right_rows(u32 b[4], const T* tile) {
    int lane = threadIdx.x % WARP;
    ldmatrix_x4(b, tile + (lane / 16 * 8 + lane % 8) * PADDED(LENGTH) + lane / 8 % 2 * 8);
}

// 16 rows and 16 columns as two right factors, which are the columns: for products with the tile itself.
template <int LENGTH> DEVICE void right_cols(u32 b[4], const T* tile) {
    int lane = threadIdx.x % WARP;
    ldmatrix_x4_transposed(b, tile + (lane % 16) * PADDED(LENGTH) + lane / 16 * 8);
}

// sums += left · tileᵀ, with BANDS bands of rows of `left` in shared memory.
template <int LENGTH> DEVICE void times_transposed(float sums[BANDS][COLS / 8][4], const T* left, const T* tile) {
#pragma unroll
    for (int k = 0; k < LENGTH; k += 16) {
        u32 a[BANDS][4];
#pragma unroll
        for (int band = 0; band < BANDS; band++) left_factor<LENGTH>(a[band], left + band * 16 * PADDED(LENGTH) + k);
#pragma unroll
        for (int n = 0; n < COLS; n += 16) {
            u32 b[4];
            right_rows<LENGTH>(b, tile + n * PADDED(LENGTH) + k);
#pragma unroll
            for (int band = 0; band < BANDS; band++) {
                mma_16x8x16(sums[band][n / 8], a[band], b, T{});
                mma_16x8x16(sums[band][n / 8 + 1], a[band], b + 2, T{});
            }
        }
    }
}

// sums += weights · tile, where the weights were sums of a product and become a left factor as they lie.
template <int LENGTH> DEVICE void weighted(float sums[BANDS][LENGTH / 8][4], float weights[BANDS][COLS / 8][4], const T* tile) {
#pragma unroll
    for (int k = 0; k < COLS; k += 16) {
        u32 a[BANDS][4];
#pragma unroll
        for (int band = 0; band < BANDS; band++)
#pragma unroll
            for (int part = 0; part < 4; part++) {
                const float* of = weights[band][k / 8 + part / 2] + part % 2 * 2;
                a[band][part] = pair(of[0], of[1]);
            }
#pragma unroll
        for (int n = 0; n < LENGTH; n += 16) {
            u32 b[4];
            right_cols<LENGTH>(b, tile + k * PADDED(LENGTH) + n);
#pragma unroll
            for (int band = 0; band < BANDS; band++) {
                mma_16x8x16(sums[band][n / 8], a[band], b, T{});
                mma_16x8x16(sums[band][n / 8 + 1], a[band], b + 2, T{});
            }
        }
    }
}

// The gradients of queries, where blocks of keys add them up: bands of 16 queries, in each the fragments of 16 × 8 sums one
// after the other, so that the lanes of a warp add to neighbours. Each head has bands for a multiple of 64 queries.
DEVICE u32 query_bands(const Extents& extents) { return (extents.n_queries + 63) / 64 * 4; }

// Writes a warp's sums, each row times a factor, as rows from `first` on of a row-major matrix of `n` rows.
template <int LENGTH, class F>
DEVICE void write_rows(T* matrix, const float sums[BANDS][LENGTH / 8][4], u32 first, u32 n, u32 length, F factor) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int band = 0; band < BANDS; band++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 row = first + band * 16 + half * 8 + lane / 4;
            if (row >= n) continue;
            float by = factor(band, half);
#pragma unroll
            for (int tile = 0; tile < LENGTH / 8; tile++) {
                u32 col = tile * 8 + lane % 4 * 2;
                const float* of = sums[band][tile] + half * 2;
                if (col < length) *(u32*)(matrix + (u64)row * length + col) = pair(of[0] * by, of[1] * by);
            }
        }
}
