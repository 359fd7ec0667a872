// What backward needs of each query: the logarithm of its sum of exponentials, in powers of two, and the product of its
// output and the output's gradient. LANES lanes of a warp share a query; each reads V neighbouring elements at a time.
// There are as many queries for each head as fill tiles of 64; those beyond the end have weights of zero.

struct Statistics { C log_sum, dot; };

KERNEL __launch_bounds__(256) ENTRY(const Matrices gradient, const Matrices output, const Matrices log_sums,
                                    Statistics* statistics, const Extents extents) {
    u32 n_padded = (extents.n_queries + 63) / 64 * 64;
    u64 place = ((u64)blockIdx.x * 256 + threadIdx.x) / LANES;
    int lane = threadIdx.x % LANES;
    // A number of queries that is a multiple of 64 fills whole warps, so that all lanes meet in the sum below.
    if (place >= (u64)extents.n_heads * n_padded) return;
    u32 head = (u32)(place / n_padded), row = (u32)(place % n_padded);
    bool is_there = row < extents.n_queries;
    C dot = 0, log_sum = INFINITE;
    if (is_there) {
        const T* lhs = (const T*)gradient.first + head_start(gradient, extents, head) + (i64)row * gradient.row;
        const T* rhs = (const T*)output.first + head_start(output, extents, head) + (i64)row * output.row;
        for (u32 col = lane * V; col < extents.width; col += LANES * V) {
            auto x = *(const Vector<T, V>*)(lhs + (i64)col * gradient.col);
            auto y = *(const Vector<T, V>*)(rhs + (i64)col * output.col);
#pragma unroll
            for (int part = 0; part < V; part++) dot = m::fma((C)widen(x.at[part]), (C)widen(y.at[part]), dot);
        }
        log_sum = ((const C*)log_sums.first)[head_start(log_sums, extents, head) + (i64)row * log_sums.row] * (C)LOG2_E;
    }
    for (int mask = LANES / 2; mask > 0; mask /= 2) dot += lane_xor(dot, mask);
    if (lane == 0) statistics[place] = {log_sum, dot};
}
