// The gradients of attention in f32 and f64, and for operands that tensor cores do not take, used twice: with warps that own
// a query it gives the queries' gradient, and with warps that own a key (OWN_KEYS) those of keys and values. Each use forms
// the weights again, so that every sum has one owner and one order.

struct Statistics { C log_sum, dot; };

KERNEL __launch_bounds__(THREADS) ENTRY(const Matrices gradient, const Matrices q, const Matrices k, const Matrices v,
                                        const Matrices mask, const Statistics* statistics, T* result, T* of_values,
                                        float*, const Extents extents) {
    DYNAMIC_SHARED(C, shared);
    const Matrices &own0 = OWN_KEYS ? k : q, &own1 = OWN_KEYS ? v : gradient;
    const Matrices &other0 = OWN_KEYS ? q : k, &other1 = OWN_KEYS ? gradient : v;
    u32 n_own = OWN_KEYS ? extents.n_keys : extents.n_queries, n_other = OWN_KEYS ? extents.n_queries : extents.n_keys;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 depth = extents.depth, width = extents.width;
    C* row0 = shared + PIECE + warp * 2 * (depth + width);
    C *row1 = row0 + depth, *sums = row1 + width, *value_sums = sums + depth;
    u32 n_blocks = (n_own + WARPS - 1) / WARPS, head = blockIdx.x / n_blocks;
    u32 first = blockIdx.x % n_blocks * WARPS, mine = first + warp;
    bool is_there = mine < n_own;
    take_row(row0, (const T*)own0.first + head_start(own0, extents, head), own0, mine, is_there, depth);
    take_row(row1, (const T*)own1.first + head_start(own1, extents, head), own1, mine, is_there, width);
    for (u32 col = lane; col < depth + width; col += WARP) sums[col] = 0;
    const T* streamed0 = (const T*)other0.first + head_start(other0, extents, head);
    const T* streamed1 = (const T*)other1.first + head_start(other1, extents, head);
    i64 mask_start = MASK == 0 ? 0 : head_start(mask, extents, head);
    u32 n_statistics = (extents.n_queries + 63) / 64 * 64;
    const Statistics* of_head = statistics + (u64)head * n_statistics;
    u32 visible = !OWN_KEYS && CAUSAL && first + WARPS < n_other ? first + WARPS : n_other;
    C scale = (C)(extents.scale * LOG2_E);
    for (u32 start = OWN_KEYS && CAUSAL ? first / 32 * 32 : 0; start < visible; start += 32) {
        u32 its = start + lane, query = OWN_KEYS ? its : mine, key = OWN_KEYS ? mine : its;
        bool is_seen = is_there && its < n_other && (!CAUSAL || key <= query);
        C score = product(shared, row0, streamed0, other0, start, n_other, depth) * scale;
        C score_grad = product(shared, row1, streamed1, other1, start, n_other, width), weight = 0;
        if (is_seen) {
            Statistics of_query = of_head[query];
            if (MASK != 0) score += added(mask, mask_start, query, key) * (C)LOG2_E;
            weight = power_of_two(score - of_query.log_sum);
            score_grad = weight * (score_grad - of_query.dot);
        } else {
            score_grad = 0;
        }
        accumulate(shared, sums, 1, score_grad, streamed0, other0, start, n_other, depth);
        if (OWN_KEYS) accumulate(shared, value_sums, 1, weight, streamed1, other1, start, n_other, width);
    }
    // Where there was nothing to stream, lanes still read what others have set to zero.
    __syncwarp();
    if (!is_there) return;
    // The scale of the scores is the same for all gradients of scores, and comes last.
    u64 row = (u64)head * n_own + mine;
    for (u32 col = lane; col < depth; col += WARP) result[row * depth + col] = narrow<T>(sums[col] * (C)extents.scale);
    if (!OWN_KEYS) return;
    for (u32 col = lane; col < width; col += WARP) of_values[row * width + col] = narrow<T>(value_sums[col]);
}
