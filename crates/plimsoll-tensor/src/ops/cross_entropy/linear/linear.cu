// One block per row of a chunk of logits, which begins with row `first` of all: the row's loss, and, if RECORDED, the gradient
// of the sum of the losses over the logits. Defined by cuda.rs: ENTRY, T (logits), A (accumulator), L (labels), V (elements
// moved at a time), RECORDED.
//
// The row is read twice, once for its maximum and sum (kept together, rescaled when the maximum grows) and once to write;
// the second read is served by the cache.

#define THREADS 512

KERNEL __launch_bounds__(THREADS) ENTRY(T* logits, const L* labels, A* losses, u64 n_classes, i64 ignored, u32 ignores,
                                        u64 first, Note* cell, u64 call) {
    __shared__ A scratch[WARP];
    u64 row = blockIdx.x;
    T* x = logits + row * n_classes;
    i64 label = labels[row];
    bool is_class = label >= 0 && (u64)label < n_classes;
    bool counts = is_class && !(ignores && label == ignored);
    if (threadIdx.x == 0 && !is_class && !(ignores && label == ignored)) fault(cell, call, first + row, label);

    A greatest = -INFINITY_OF_A, sum = 0;
    for (u64 at = threadIdx.x * V; at < n_classes; at += THREADS * V) {
        Vector<T, V> piece = *(const Vector<T, V>*)(x + at);
        A most = greatest;
#pragma unroll
        for (int lane = 0; lane < V; lane++) most = m::max(most, (A)widen(piece.at[lane]));
        A part = 0;
        A shift = most == -INFINITY_OF_A ? (A)0 : most;
#pragma unroll
        for (int lane = 0; lane < V; lane++) part += m::exp((A)widen(piece.at[lane]) - shift);
        sum = sum * m::exp(greatest - shift) + part;
        greatest = most;
    }
    A most = block_max(greatest, scratch);
    A shift = most == -INFINITY_OF_A ? (A)0 : most;
    sum = block_sum(sum == (A)0 ? (A)0 : sum * m::exp(greatest - shift), scratch);
    A log_sum_exp = shift + m::log(sum);
    if (threadIdx.x == 0) losses[row] = counts ? log_sum_exp - (A)widen(x[label]) : (A)0;
#if RECORDED
    // The logit of the label has been read by the thread that may write it.
    __syncthreads();
    A weight = counts ? (A)1 : (A)0;
    for (u64 at = threadIdx.x * V; at < n_classes; at += THREADS * V) {
        Vector<T, V> piece = *(const Vector<T, V>*)(x + at);
#pragma unroll
        for (int lane = 0; lane < V; lane++) {
            A local_grad = m::exp((A)widen(piece.at[lane]) - log_sum_exp) * weight;
            if ((i64)(at + lane) == label) local_grad -= weight;
            piece.at[lane] = narrow<T>(local_grad);
        }
        *(Vector<T, V>*)(x + at) = piece;
    }
#endif
}
