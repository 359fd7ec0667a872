// Products by each warp for itself. Rows in shared memory are 8 elements longer than needed, an odd number of 16-byte pieces,
// so that the eight rows of an 8 × 8 matrix lie in different banks.

#if !BY_GROUP

#define PADDED(length) ((length) + 8)
// From a warp's first row to the next warp's, and from one of its bands to the next.
#define WARP_STEP (BANDS * 16)
#define BAND_STEP 16

// Where a piece of a row lies in a tile.
template <int LENGTH> DEVICE int place(int row, int piece) { return row * PADDED(LENGTH) + piece * 8; }

// What was copied can be multiplied after a barrier.
DEVICE void publish() {}

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

// sums = left · tileᵀ, with the block's own rows as `left`.
template <int LENGTH> DEVICE void times_transposed(float sums[BANDS][COLS / 8][4], const T* left, const T* tile) {
    left += threadIdx.x / WARP * WARP_STEP * PADDED(LENGTH);
    EACH_SCORE(band, tile8, part) sums[band][tile8][part] = 0.0f;
#pragma unroll
    for (int k = 0; k < LENGTH; k += 16) {
        u32 a[BANDS][4];
#pragma unroll
        for (int band = 0; band < BANDS; band++) left_factor<LENGTH>(a[band], left + band * BAND_STEP * PADDED(LENGTH) + k);
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

#endif
