// Batch norm with given statistics, and the gradient of its input (BACKWARD). A line is the channels of one place: V of them
// belong to a thread, which takes every so many-th line, so that what belongs to its channels stays in registers. T is the type
// of the elements, BX the number of threads side by side. With RELU what is negative becomes zero, and backward finds out where
// from the input, by the same arithmetic. With ADD something is added before, and both are rounded as if they had been stored.

typedef Compute<T> C;

// Lines that a thread has on the way at a time.
#define ROWS 4

DEVICE Vector<T, V> read_raw(const T* line, i64 step, Index at) {
    if (V > 1) return *(const Vector<T, V>*)(line + at);
    return {{line[(i64)at * step]}};
}

#if !BACKWARD

KERNEL __launch_bounds__(THREADS) ENTRY(
    const T* x, const T* gamma, const T* beta, const C* mean, const C* rstd, T* y,
#if ADD
    const T* added,
#endif
    const Lines lines, u64 per_block
) {
    Index channel = ((Index)blockIdx.x * BX + threadIdx.x % BX) * V;
    if (channel >= lines.len) return;
    C means[V], scales[V], shifts[V], rstds[V];
    read_line(mean, lines.steps[3], channel, means);
    read_line(rstd, lines.steps[4], channel, rstds);
    read_line(gamma, lines.steps[1], channel, scales);
    read_line(beta, lines.steps[2], channel, shifts);
#pragma unroll
    for (int v = 0; v < V; v++) scales[v] *= rstds[v];
    u64 end = (blockIdx.y + 1) * per_block;
    if (end > lines.n) end = lines.n;
    for (u64 row = blockIdx.y * per_block + threadIdx.x / BX; row < end; row += ROWS * (THREADS / BX)) {
        Vector<T, V> raw[ROWS];
#if ADD
        Vector<T, V> raw_added[ROWS];
#endif
        i64 to[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            u64 here = row + r * (THREADS / BX);
            if (here < end) {
                Offsets offsets = line_offsets(lines, (Index)here);
                raw[r] = read_raw(x + offsets.at[0], lines.steps[0], channel);
#if ADD
                raw_added[r] = read_raw(added + offsets.at[6], lines.steps[6], channel);
#endif
                to[r] = offsets.at[5];
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (row + r * (THREADS / BX) >= end) continue;
            C values[V];
#pragma unroll
            for (int v = 0; v < V; v++) {
                values[v] = m::fma(widen(raw[r].at[v]) - means[v], scales[v], shifts[v]);
#if ADD
                values[v] = widen(narrow<T>(widen(narrow<T>(values[v])) + widen(raw_added[r].at[v])));
#endif
#if RELU
                values[v] = m::max(values[v], (C)0);
#endif
            }
            write_line(y + to[r], lines.steps[5], channel, values);
        }
    }
}

#else

// `totals` are the sums for gamma, and then those for beta. The result may be written over the gradient: each thread writes what
// it alone has read. Beta is there for RELU alone.
KERNEL __launch_bounds__(THREADS) ENTRY(
    const T* g, const T* x, const T* gamma, const C* mean, const C* rstd, T* dx, const T* beta, const C* totals,
    const Lines lines, u64 per_block
) {
    Index channel = ((Index)blockIdx.x * BX + threadIdx.x % BX) * V;
    if (channel >= lines.len) return;
    C means[V], factors[V], shifts[V], x_factors[V], rstds[V];
    read_line(mean, lines.steps[3], channel, means);
    read_line(rstd, lines.steps[4], channel, rstds);
    read_line(gamma, lines.steps[2], channel, factors);
#if RELU
    C betas[V];
    read_line(beta, lines.steps[6], channel, betas);
#endif
    C share = (C)1 / (C)lines.n;
#pragma unroll
    for (int v = 0; v < V; v++) {
        factors[v] *= rstds[v];
        x_factors[v] = totals[channel + v] * share * rstds[v];
        shifts[v] = totals[lines.len + channel + v] * share;
    }
    u64 end = (blockIdx.y + 1) * per_block;
    if (end > lines.n) end = lines.n;
    for (u64 row = blockIdx.y * per_block + threadIdx.x / BX; row < end; row += ROWS * (THREADS / BX)) {
        Vector<T, V> raw_g[ROWS], raw_x[ROWS];
        i64 to[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            u64 here = row + r * (THREADS / BX);
            if (here < end) {
                Offsets offsets = line_offsets(lines, (Index)here);
                raw_g[r] = read_raw(g + offsets.at[0], lines.steps[0], channel);
                raw_x[r] = read_raw(x + offsets.at[1], lines.steps[1], channel);
                to[r] = offsets.at[5];
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (row + r * (THREADS / BX) >= end) continue;
            C values[V];
#pragma unroll
            for (int v = 0; v < V; v++) {
                C distance = widen(raw_x[r].at[v]) - means[v], gradient = widen(raw_g[r].at[v]);
#if RELU
                gradient *= m::fma(distance, factors[v], betas[v]) > (C)0 ? (C)1 : (C)0;
#endif
                values[v] = (gradient - shifts[v] - distance * x_factors[v]) * factors[v];
            }
            write_line(dx + to[r], lines.steps[5], channel, values);
        }
    }
}

#endif
