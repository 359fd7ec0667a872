// One block: the mean of the losses of the rows that count, in a fixed order, and the factor that makes gradients of their
// sum, which were multiplied by `scale`, those of the mean. Defined by cuda.rs: ENTRY, A (accumulator), L (labels).

#define THREADS 1024

KERNEL __launch_bounds__(THREADS) ENTRY(const A* losses, const L* labels, u64 n_rows, i64 ignored, u32 ignores, double scale,
                                        A* mean, A* factor) {
    __shared__ A scratch[WARP];
    A sum = 0, count = 0;
    for (u64 row = threadIdx.x; row < n_rows; row += THREADS) {
        sum += losses[row];
        count += !(ignores && (i64)labels[row] == ignored);
    }
    sum = block_sum(sum, scratch);
    count = block_sum(count, scratch);
    if (threadIdx.x == 0) {
        *mean = sum / count;
        if (factor) *factor = (A)(1.0 / ((double)count * scale));
    }
}
