// Rows that come from memory and go there.

// Starts to load rows `first` to `first + N_ROWS` of a matrix to shared memory, zeros where there are none; all threads of
// the block take part. Elements of a row are neighbours, and 16 bytes can be moved at once.
template <int N_ROWS, int LENGTH> DEVICE void load_tile(T* tile, const T* matrix, i64 stride, u32 first, u32 n, u32 length) {
    const int pieces = LENGTH / 8, at_once = THREADS / pieces;
    int row = threadIdx.x / pieces, piece = threadIdx.x % pieces;
    if (row >= at_once) return;
    // One product of wide numbers for all rows of a thread.
    const T* from = matrix + (i64)(first + row) * stride + piece * 8;
    T* to = tile + place<LENGTH>(row, piece);
#pragma unroll
    for (int done = 0; done < N_ROWS; done += at_once) {
        if (N_ROWS % at_once != 0 && row + done >= N_ROWS) break;
        copy_async_16(to + done * PADDED(LENGTH), from, piece * 8 < length && first + row + done < n);
        from += at_once * stride;
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
            u32 row = first + band * BAND_STEP + half * 8 + lane / 4;
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
