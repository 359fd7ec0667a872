// Rounds the gradients of queries that blocks of keys have added up, as fragments, and writes them in rows. A warp has 16
// queries of a head.

KERNEL __launch_bounds__(THREADS) ENTRY(const float* query_sums, T* result, const Extents extents) {
    u32 n_bands = query_bands(extents), band = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (band >= extents.n_heads * n_bands) return;
    u32 head = band / n_bands, first = band % n_bands * 16;
    const float* from = query_sums + (u64)band * 16 * DEPTH + threadIdx.x % WARP;
    float sums[1][DEPTH / 8][4];
#pragma unroll
    for (int tile8 = 0; tile8 < DEPTH / 8; tile8++)
#pragma unroll
        for (int part = 0; part < 4; part++) sums[0][tile8][part] = from[(tile8 * 4 + part) * WARP];
    float by = (float)extents.scale;
    T* to = result + (u64)head * extents.n_queries * extents.depth;
    write_rows<DEPTH>(to, sums, first, extents.n_queries, extents.depth, [&](int, int) { return by; });
}
