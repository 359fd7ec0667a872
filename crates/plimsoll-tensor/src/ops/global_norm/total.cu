// The root of the sum of all chunks' sums, in a fixed order, and the first tensor that is bad, or -1. One block. Norm is
// the type of the result.

struct Partial {
    double sum;
    double bad;
};

KERNEL __launch_bounds__(1024) ENTRY(const Partial* partials, u64 n, double nothing, Norm* norm, i64* first_bad) {
    __shared__ double scratch[32];
    double sum = 0.0, bad = nothing;
    for (u64 at = threadIdx.x; at < n; at += 1024) {
        sum += partials[at].sum;
        bad = m::max(bad, partials[at].bad);
    }
    sum = block_sum(sum, scratch);
    bad = block_max(bad, scratch);
    if (threadIdx.x != 0) return;
    *norm = (Norm)::sqrt(sum);
    *first_bad = bad == nothing ? -1 : (i64)-bad;
}
