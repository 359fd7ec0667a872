// Products by the four warps together, with tiles as they lie in shared memory: rows of 64 elements, 128 bytes, whose eight
// 16-byte pieces are swapped from row to row in the pattern that the tensor cores know, so that a column of pieces lies in
// different banks. Of each 64 rows a warp gets 16.

#if BY_GROUP

#define PADDED(length) (length)
#define WARP_STEP 16
#define BAND_STEP 64

template <int LENGTH> DEVICE int place(int row, int piece) { return row * 64 + (piece ^ row % 8) * 8; }

// What was copied can be multiplied after a barrier: tensor cores read shared memory by a way of their own.
DEVICE void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Keeps sums where they are while tensor cores write them.
template <int N> DEVICE void pin(float sums[BANDS][N][4]) {
#pragma unroll
    for (int band = 0; band < BANDS; band++)
#pragma unroll
        for (int tile = 0; tile < N; tile++)
#pragma unroll
            for (int part = 0; part < 4; part++) asm volatile("" : "+f"(sums[band][tile][part]) :: "memory");
}

// sums = left · tileᵀ, with the block's own rows as `left`.
template <int LENGTH> DEVICE void times_transposed(float sums[BANDS][COLS / 8][4], const T* left, const T* tile) {
    wgmma_fence();
#pragma unroll
    for (int band = 0; band < BANDS; band++)
#pragma unroll
        for (int k = 0; k < LENGTH; k += 16) {
            u64 a = swapped_tile(left) + step_of(band * 64 * 64 + k), b = swapped_tile(tile) + step_of(k);
            wgmma_64x64x16((float*)sums[band], a, b, k > 0, T{});
        }
    wgmma_finish();
    pin<COLS / 8>(sums);
}

// sums += weights · tile, where the weights were sums of a product and become a left factor as they lie.
template <int LENGTH> DEVICE void weighted(float sums[BANDS][LENGTH / 8][4], float weights[BANDS][COLS / 8][4], const T* tile) {
    u32 a[BANDS][COLS / 16][4];
    EACH_SCORE(band, tile8, part) {
        const float* of = weights[band][tile8] + part;
        if (part % 2 == 0) a[band][tile8 / 2][tile8 % 2 * 2 + part / 2] = pair(of[0], of[1]);
    }
    pin<LENGTH / 8>(sums);
    wgmma_fence();
#pragma unroll
    for (int band = 0; band < BANDS; band++)
#pragma unroll
        for (int k = 0; k < COLS; k += 16) {
            wgmma_64x64x16_columns((float*)sums[band], a[band][k / 16], swapped_tile(tile) + step_of(k * 64), T{});
        }
    wgmma_finish();
    pin<LENGTH / 8>(sums);
}

#endif
