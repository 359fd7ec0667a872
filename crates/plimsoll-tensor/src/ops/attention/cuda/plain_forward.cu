// Attention in f32 and f64, and for operands that tensor cores do not take: a warp for each query.

KERNEL __launch_bounds__(THREADS) ENTRY(const Matrices q, const Matrices k, const Matrices v, const Matrices mask, T* output,
                                        C* log_sums, const Extents extents) {
    DYNAMIC_SHARED(C, shared);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 depth = extents.depth, width = extents.width;
    C* own = shared + PIECE + warp * (depth + width);
    C* sums = own + depth;
    u32 n_blocks = (extents.n_queries + WARPS - 1) / WARPS, head = blockIdx.x / n_blocks;
    u32 first = blockIdx.x % n_blocks * WARPS, query = first + warp;
    bool is_there = query < extents.n_queries;
    take_row(own, (const T*)q.first + head_start(q, extents, head), q, query, is_there, depth);
    for (u32 col = lane; col < width; col += WARP) sums[col] = 0;
    const T* keys = (const T*)k.first + head_start(k, extents, head);
    const T* values = (const T*)v.first + head_start(v, extents, head);
    i64 mask_start = MASK == 0 ? 0 : head_start(mask, extents, head);
    u32 visible = CAUSAL && first + WARPS < extents.n_keys ? first + WARPS : extents.n_keys;
    C greatest = -INFINITE, total = 0, scale = (C)(extents.scale * LOG2_E);
    for (u32 start = 0; start < visible; start += 32) {
        u32 key = start + lane;
        C score = product(shared, own, keys, k, start, extents.n_keys, depth) * scale;
        bool is_seen = is_there && key < extents.n_keys && (!CAUSAL || key <= query);
        if (MASK != 0 && is_seen) score += added(mask, mask_start, query, key) * (C)LOG2_E;
        if (!is_seen) score = -INFINITE;
        C high = m::max(greatest, warp_max(score));
        // A row that has seen nothing yet has no finite score to compare with.
        C reference = high == -INFINITE ? (C)0 : high;
        C weight = power_of_two(score - reference), fade = power_of_two(greatest - reference);
        total = total * fade + warp_sum(weight);
        greatest = high;
        accumulate(shared, sums, fade, weight, values, v, start, extents.n_keys, width);
    }
    if (!is_there) return;
    u64 row = (u64)head * extents.n_queries + query;
    C factor = total == (C)0 ? (C)0 : (C)1 / total;
    for (u32 col = lane; col < width; col += WARP) output[row * width + col] = narrow<T>(sums[col] * factor);
    // A query that sees no key has an infinite logarithm, so that backward finds weights of zero.
    C log_sum = (greatest + m::log2(total)) * (C)(1 / LOG2_E);
    if (log_sums != 0 && lane == 0) log_sums[row] = total == (C)0 ? INFINITE : log_sum;
}
