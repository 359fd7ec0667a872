// Attention by tensor cores: a block computes ROWS queries of a head against all keys that they may see, with a running
// maximum and sum for each query. Scores never leave registers.

#define STAGE (COLS * (PADDED(DEPTH) + PADDED(WIDTH)))

// What scores are to be multiplied with. Where a tile is cut by the diagonal, the end of the keys or a mask, that is one: they
// are scaled and masked here.
DEVICE float score(float scores[BANDS][COLS / 8][4], float scale, u32 row, u32 col, const Extents& extents, const Matrices& mask,
                   i64 mask_start) {
    bool is_whole = MASK == 0 && col + COLS <= extents.n_keys && (!CAUSAL || col + COLS <= row + 1);
    // The greatest score is the greatest product.
    if (is_whole && scale > 0.0f) return scale;
    int lane = threadIdx.x % WARP;
    EACH_SCORE(band, tile8, part) {
        float& at = scores[band][tile8][part];
        u32 query = row + band * BAND_STEP + part / 2 * 8 + lane / 4, key = col + tile8 * 8 + lane % 4 * 2 + part % 2;
        bool is_seen = key < extents.n_keys && (!CAUSAL || key <= query);
        at *= scale;
        if (MASK != 0 && is_seen && query < extents.n_queries) at += added(mask, mask_start, query, key) * (float)LOG2_E;
        if (!is_seen) at = -INFINITE;
    }
    return 1.0f;
}

// Turns scores, which are to be multiplied with `by`, into exponentials below the rows' greatest scores so far, and fades what was summed up before to the same
// reference. Totals are of each thread's own columns.
DEVICE void absorb(float by, float scores[BANDS][COLS / 8][4], float greatest[BANDS][2], float totals[BANDS][2],
                   float sums[BANDS][WIDTH / 8][4]) {
#pragma unroll
    for (int band = 0; band < BANDS; band++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float high = -INFINITE;
#pragma unroll
            for (int tile = 0; tile < COLS / 8; tile++)
#pragma unroll
                for (int part = 0; part < 2; part++) high = ::fmaxf(high, scores[band][tile][half * 2 + part]);
            high = ::fmaxf(high, lane_xor(high, 1));
            high = ::fmaxf(high, lane_xor(high, 2));
            high = ::fmaxf(greatest[band][half], high * by);
            // A row that has seen nothing yet has no finite score to compare with.
            float reference = high == -INFINITE ? 0.0f : high;
            float fade = power_of_two(greatest[band][half] - reference), total = 0.0f;
            greatest[band][half] = high;
#pragma unroll
            for (int tile = 0; tile < COLS / 8; tile++)
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    float& at = scores[band][tile][half * 2 + part];
                    at = power_of_two(m::fma(at, by, -reference));
                    total += at;
                }
            totals[band][half] = totals[band][half] * fade + total;
#pragma unroll
            for (int tile = 0; tile < WIDTH / 8; tile++)
#pragma unroll
                for (int part = 0; part < 2; part++) sums[band][tile][half * 2 + part] *= fade;
        }
}

KERNEL __launch_bounds__(THREADS) ENTRY(const Matrices q, const Matrices k, const Matrices v, const Matrices mask, T* output,
                                        float* log_sums, const Extents extents) {
    DYNAMIC_SHARED(T, shared);
    T* stages = shared + ROWS * PADDED(DEPTH);
    // The queries' last blocks come first: with a diagonal they have the most to do.
    u32 n_blocks = (extents.n_queries + ROWS - 1) / ROWS, head = blockIdx.x / n_blocks;
    u32 first = (n_blocks - 1 - blockIdx.x % n_blocks) * ROWS;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 own = first + warp * WARP_STEP;
    const T* keys = (const T*)k.first + head_start(k, extents, head);
    const T* values = (const T*)v.first + head_start(v, extents, head);
    i64 mask_start = MASK == 0 ? 0 : head_start(mask, extents, head);
    u32 end = first + ROWS < extents.n_queries ? first + ROWS : extents.n_queries;
    u32 visible = CAUSAL && end < extents.n_keys ? end : extents.n_keys;
    int n_tiles = (visible + COLS - 1) / COLS;
    auto load = [&](int tile) {
        T* to = stages + tile % 2 * STAGE;
        load_tile<COLS, DEPTH>(to, keys, k.row, tile * COLS, extents.n_keys, extents.depth);
        load_tile<COLS, WIDTH>(to + COLS * PADDED(DEPTH), values, v.row, tile * COLS, extents.n_keys, extents.width);
    };

    load_tile<ROWS, DEPTH>(shared, (const T*)q.first + head_start(q, extents, head), q.row, first, extents.n_queries,
                       extents.depth);
    if (n_tiles > 0) load(0);
    copy_async_commit();

    float sums[BANDS][WIDTH / 8][4] = {}, totals[BANDS][2] = {}, greatest[BANDS][2];
#pragma unroll
    for (int band = 0; band < BANDS; band++) greatest[band][0] = greatest[band][1] = -INFINITE;
    float scale = (float)(extents.scale * LOG2_E);
    for (int tile = 0; tile < n_tiles; tile++) {
        if (tile + 1 < n_tiles) load(tile + 1);
        copy_async_commit();
        copy_async_wait<1>();
        publish();
        __syncthreads();
        const T* k_tile = stages + tile % 2 * STAGE;
        // A warp whose queries all lie before the tile has nothing to do with it, unless the others need it.
        if (BY_GROUP || !CAUSAL || (u32)tile * COLS < own + BANDS * 16) {
            float scores[BANDS][COLS / 8][4];
            times_transposed<DEPTH>(scores, shared, k_tile);
            float by = score(scores, scale, own, tile * COLS, extents, mask, mask_start);
            absorb(by, scores, greatest, totals, sums);
            weighted<WIDTH>(sums, scores, k_tile + COLS * PADDED(DEPTH));
        }
        __syncthreads();
    }

#pragma unroll
    for (int band = 0; band < BANDS; band++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = totals[band][half];
            total += lane_xor(total, 1);
            total += lane_xor(total, 2);
            totals[band][half] = total;
            u32 row = own + band * BAND_STEP + half * 8 + lane / 4;
            if (log_sums != 0 && lane % 4 == 0 && row < extents.n_queries) {
                // A query that sees no key has an infinite logarithm, so that backward finds weights of zero.
                float log_sum = (greatest[band][half] + m::log2(total)) * (float)(1 / LOG2_E);
                log_sums[(u64)head * extents.n_queries + row] = total == 0.0f ? INFINITE : log_sum;
            }
        }
    auto factor = [&](int band, int half) { return totals[band][half] == 0.0f ? 0.0f : 1.0f / totals[band][half]; };
    write_rows<WIDTH>(output + (u64)head * extents.n_queries * extents.width, sums, own, extents.n_queries, extents.width, factor);
}
