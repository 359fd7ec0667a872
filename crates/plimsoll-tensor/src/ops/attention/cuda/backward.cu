// The gradients of attention by tensor cores, used twice: with blocks that own queries it gives their gradient, and with
// blocks that own keys (OWN_KEYS) those of keys and values. Each use forms the weights again, from the logarithms of the
// rows' sums, and every sum has one order: nothing is added up between blocks.
//
// Where the order does not matter (ADD_QUERIES), the use with owned keys does all: the gradients of scores of a tile meet in shared memory,
// the warps share their product with the owned keys, and add it to what other blocks have found for these queries.
//
// A block owns ROWS rows of two operands (queries and the output's gradient, or keys and values) in shared memory, and
// streams the two others. With owned keys the scores are transposed: rows are keys, columns are queries.

#define OWNED (ROWS * (PADDED(DEPTH) + PADDED(WIDTH)))
#define STAGE (COLS * (PADDED(DEPTH) + PADDED(WIDTH)))
#define STATISTICS (2 * COLS * sizeof(Statistics) / sizeof(T))

struct Statistics { float log_sum, dot; };

// The weight of a product of which the tile is cut by the diagonal, the end of the keys or a mask; `log_sum` is in powers of
// two.
DEVICE float masked_weight(float product, float scale, float log_sum, u32 query, u32 key, const Extents& extents,
                           const Matrices& mask, i64 mask_start) {
    if (key >= extents.n_keys || (CAUSAL && key > query)) return 0.0f;
    float score = product * scale;
    if (MASK != 0 && query < extents.n_queries) score += added(mask, mask_start, query, key) * (float)LOG2_E;
    return power_of_two(score - log_sum);
}

#if ADD_QUERIES
// Leaves gradients of scores in shared memory, a row for each of the block's keys, a column for each query of the tile.
DEVICE void share(T* tile, const float score_grads[BANDS][COLS / 8][4]) {
    int lane = threadIdx.x % WARP, row = threadIdx.x / WARP * BANDS * 16 + lane / 4;
#pragma unroll
    for (int band = 0; band < BANDS; band++)
#pragma unroll
        for (int tile8 = 0; tile8 < COLS / 8; tile8++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float* of = score_grads[band][tile8] + half * 2;
                T* to = tile + (row + band * 16 + half * 8) * PADDED(COLS) + tile8 * 8 + lane % 4 * 2;
                *(u32*)to = pair(of[0], of[1]);
            }
}

// Adds (gradients of scores)ᵀ · keys to the sums of the tile's queries, which begin at a band. Warps share the result, 16 × 16 of it at a
// time; the gradients of scores of keys from `n_keys` on are zero.
DEVICE void add_queries(float* of_tile, const T* score_grads, const T* keys, u32 n_keys) {
    const int QUERY_BANDS = COLS / 16, STEP = WARPS / QUERY_BANDS;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, band = warp % QUERY_BANDS;
#pragma unroll
    for (int part16 = warp / QUERY_BANDS; part16 < DEPTH / 16; part16 += STEP) {
        float sums[2][4] = {};
#pragma unroll
        for (int k = 0; k < ROWS; k += 16) {
            if ((u32)k >= n_keys) break;
            u32 a[4], b[4];
            ldmatrix_x4_transposed(a, score_grads + (k + lane / 16 * 8 + lane % 8) * PADDED(COLS) + band * 16 + lane / 8 % 2 * 8);
            right_cols<DEPTH>(b, keys + k * PADDED(DEPTH) + part16 * 16);
            mma_16x8x16(sums[0], a, b, T{});
            mma_16x8x16(sums[1], a, b + 2, T{});
        }
        float* to = of_tile + band * 16 * DEPTH + part16 * 16 * 16 + lane;
#pragma unroll
        for (int part = 0; part < 8; part++) atomicAdd(to + part * WARP, sums[part / 4][part % 4]);
    }
}
#endif

KERNEL __launch_bounds__(THREADS) ENTRY(const Matrices gradient, const Matrices q, const Matrices k, const Matrices v,
                                        const Matrices mask, const Statistics* statistics, T* result, T* of_values,
                                        float* query_sums, const Extents extents) {
    DYNAMIC_SHARED(T, shared);
    const Matrices &own0 = OWN_KEYS ? k : q, &own1 = OWN_KEYS ? v : gradient;
    const Matrices &other0 = OWN_KEYS ? q : k, &other1 = OWN_KEYS ? gradient : v;
    u32 n_own = OWN_KEYS ? extents.n_keys : extents.n_queries, n_other = OWN_KEYS ? extents.n_queries : extents.n_keys;
    u32 n_blocks = (n_own + ROWS - 1) / ROWS, head = blockIdx.x / n_blocks, block = blockIdx.x % n_blocks;
    // With a diagonal the last queries and the first keys have the most to do; they come first.
    u32 first = (OWN_KEYS ? block : n_blocks - 1 - block) * ROWS;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 own = first + warp * WARP_STEP, own_end = own + (BANDS - 1) * BAND_STEP + 16;
    const T* streamed0 = (const T*)other0.first + head_start(other0, extents, head);
    const T* streamed1 = (const T*)other1.first + head_start(other1, extents, head);
    i64 mask_start = MASK == 0 ? 0 : head_start(mask, extents, head);
    u32 end = first + ROWS;
    u32 visible = !OWN_KEYS && CAUSAL && end < n_other ? end : n_other;
    int from_tile = OWN_KEYS && CAUSAL ? first / COLS : 0, n_tiles = (visible + COLS - 1) / COLS;
    // There are statistics for whole tiles of queries.
    u32 n_statistics = (extents.n_queries + 63) / 64 * 64;
    const Statistics* of_head = statistics + (u64)head * n_statistics;
    Statistics* tile_statistics = (Statistics*)(shared + OWNED + 2 * STAGE);
    auto load = [&](int tile) {
        T* to = shared + OWNED + tile % 2 * STAGE;
        load_tile<COLS, DEPTH>(to, streamed0, other0.row, tile * COLS, n_other, extents.depth);
        load_tile<COLS, WIDTH>(to + COLS * PADDED(DEPTH), streamed1, other1.row, tile * COLS, n_other, extents.width);
        if (OWN_KEYS && threadIdx.x < COLS / 2) {
            copy_async_16(tile_statistics + tile % 2 * COLS + threadIdx.x * 2, of_head + tile * COLS + threadIdx.x * 2);
        }
    };

    load_tile<ROWS, DEPTH>(shared, (const T*)own0.first + head_start(own0, extents, head), own0.row, first, n_own, extents.depth);
    load_tile<ROWS, WIDTH>(shared + ROWS * PADDED(DEPTH), (const T*)own1.first + head_start(own1, extents, head), own1.row, first,
                       n_own, extents.width);
    if (from_tile < n_tiles) load(from_tile);
    copy_async_commit();
    Statistics own_statistics[BANDS][2];
#pragma unroll
    for (int band = 0; band < BANDS; band++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 row = own + band * BAND_STEP + half * 8 + lane / 4;
            own_statistics[band][half] = {INFINITE, 0.0f};
            if (!OWN_KEYS && row < extents.n_queries) own_statistics[band][half] = of_head[row];
        }

    float sums[BANDS][DEPTH / 8][4] = {}, value_sums[BANDS][WIDTH / 8][4] = {};
    float scale = (float)(extents.scale * LOG2_E);
    for (int tile = from_tile; tile < n_tiles; tile++) {
        if (tile + 1 < n_tiles) load(tile + 1);
        copy_async_commit();
        copy_async_wait<1>();
        publish();
        __syncthreads();
        const T* depth_tile = shared + OWNED + tile % 2 * STAGE;
        const T* width_tile = depth_tile + COLS * PADDED(DEPTH);
        u32 col = tile * COLS;
        // A warp on the wrong side of the diagonal has nothing to do with the tile, unless the others need it.
        bool is_seen = BY_GROUP || !CAUSAL || (OWN_KEYS ? col + COLS > own : col < own_end);
        if (is_seen) {
            bool is_inside = OWN_KEYS ? own_end <= extents.n_keys : col + COLS <= extents.n_keys;
            bool is_below = OWN_KEYS ? own_end <= col + 1 : col + COLS <= own + 1;
            bool is_whole = MASK == 0 && is_inside && (!CAUSAL || is_below);
            auto statistics_at = [&](int band, int tile8, int part) {
                return OWN_KEYS ? tile_statistics[tile % 2 * COLS + tile8 * 8 + lane % 4 * 2 + part % 2]
                                : own_statistics[band][part / 2];
            };
            float weights[BANDS][COLS / 8][4];
            times_transposed<DEPTH>(weights, shared, depth_tile);
            if (is_whole) {
                EACH_SCORE(band, tile8, part) {
                    float& at = weights[band][tile8][part];
                    at = power_of_two(m::fma(at, scale, -statistics_at(band, tile8, part).log_sum));
                }
            } else {
                EACH_SCORE(band, tile8, part) {
                    u32 mine = own + band * BAND_STEP + part / 2 * 8 + lane / 4, its = col + tile8 * 8 + lane % 4 * 2 + part % 2;
                    float& at = weights[band][tile8][part];
                    at = masked_weight(at, scale, statistics_at(band, tile8, part).log_sum, OWN_KEYS ? its : mine,
                                       OWN_KEYS ? mine : its, extents, mask, mask_start);
                }
            }
            if (OWN_KEYS) weighted<WIDTH>(value_sums, weights, width_tile);
            float score_grads[BANDS][COLS / 8][4];
            times_transposed<WIDTH>(score_grads, shared + ROWS * PADDED(DEPTH), width_tile);
            EACH_SCORE(band, tile8, part) {
                float& at = score_grads[band][tile8][part];
                at = weights[band][tile8][part] * (at - statistics_at(band, tile8, part).dot);
            }
            weighted<DEPTH>(sums, score_grads, depth_tile);
#if ADD_QUERIES
            share(shared + OWNED + 2 * STAGE + STATISTICS, score_grads);
#endif
        }
        __syncthreads();
#if ADD_QUERIES
        // Behind the diagonal there is nothing to add, and nothing was left there. The next tile's gradients of scores come after a barrier.
        u32 n_keys = CAUSAL && col + COLS < end ? col + COLS - first : ROWS;
        float* of_tile = query_sums + ((u64)head * query_bands(extents) + col / 16) * 16 * DEPTH;
        add_queries(of_tile, shared + OWNED + 2 * STAGE + STATISTICS, shared, n_keys);
#endif
    }

    // The scale of the scores is the same for all gradients of scores, and comes last.
    float by = (float)extents.scale;
    write_rows<DEPTH>(result + (u64)head * n_own * extents.depth, sums, own, n_own, extents.depth, [&](int, int) { return by; });
    if (OWN_KEYS) {
        T* to = of_values + (u64)head * n_own * extents.width;
        write_rows<WIDTH>(to, value_sums, own, n_own, extents.width, [&](int, int) { return 1.0f; });
    }
}
