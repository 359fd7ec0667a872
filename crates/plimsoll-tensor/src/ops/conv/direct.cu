// Convolutions without a library, for f64 and for what the library has no way to compute. Simple rather than fast: one
// thread, or one block for the filter's gradient, computes one element of the result from all that counts for it, so that
// every sum has one order. Operands are row-major. Defined by cuda.rs: T, DIRECTION (0: forward; 1: to the input; 2: to the
// filter).

typedef Compute<T> C;

// cuda.rs has the same structure. Pairs are vertical, horizontal.
struct Geometry {
    u32 n, input[2], output[2], filter[2], padding[2], stride[2], dilation[2], c_in, c_out, groups;
};

DEVICE u64 input_at(const Geometry& of, u32 image, u32 row, u32 col, u32 channel) {
    return (((u64)image * of.input[0] + row) * of.input[1] + col) * of.c_in + channel;
}
DEVICE u64 output_at(const Geometry& of, u32 image, u32 row, u32 col, u32 channel) {
    return (((u64)image * of.output[0] + row) * of.output[1] + col) * of.c_out + channel;
}
DEVICE u64 filter_at(const Geometry& of, u32 out, u32 row, u32 col, u32 channel) {
    return (((u64)out * of.filter[0] + row) * of.filter[1] + col) * (of.c_in / of.groups) + channel;
}

// The place of the input under a tap of an output; those in the padding wrap around to numbers beyond every extent.
DEVICE u32 under(const Geometry& of, int axis, u32 place, u32 tap) {
    return place * of.stride[axis] + tap * of.dilation[axis] - of.padding[axis];
}

// The output that has a place of the input under a tap, or a number beyond every extent if there is none.
DEVICE u32 above(const Geometry& of, int axis, u32 place, u32 tap) {
    u32 padded = place + of.padding[axis], reach = tap * of.dilation[axis];
    return padded < reach || (padded - reach) % of.stride[axis] != 0 ? 0xffffffffu : (padded - reach) / of.stride[axis];
}

KERNEL __launch_bounds__(256) ENTRY(T* input, T* filter, T* output, const Geometry of, u64 n) {
    u32 in_group = of.c_in / of.groups, out_group = of.c_out / of.groups;
    C sum = 0;
#if DIRECTION == 2
    // A block for each element of the filter: its threads share the outputs.
    __shared__ C scratch[32];
    u64 index = blockIdx.x;
    u32 channel = (u32)(index % in_group), tap_col = (u32)(index / in_group % of.filter[1]);
    u32 tap_row = (u32)(index / in_group / of.filter[1] % of.filter[0]);
    u32 out = (u32)(index / in_group / of.filter[1] / of.filter[0]), from = out / out_group * in_group + channel;
    u64 n_places = (u64)of.n * of.output[0] * of.output[1];
    for (u64 place = threadIdx.x; place < n_places; place += 256) {
        u32 col = (u32)(place % of.output[1]), row = (u32)(place / of.output[1] % of.output[0]);
        u32 image = (u32)(place / of.output[1] / of.output[0]);
        u32 r = under(of, 0, row, tap_row), c = under(of, 1, col, tap_col);
        if (r >= of.input[0] || c >= of.input[1]) continue;
        sum = m::fma(widen(input[input_at(of, image, r, c, from)]), widen(output[output_at(of, image, row, col, out)]), sum);
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) filter[index] = narrow<T>(sum);
#else
    u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    if (index >= n) return;
    u32 channels = DIRECTION == 0 ? of.c_out : of.c_in, n_rows = DIRECTION == 0 ? of.output[0] : of.input[0];
    u32 n_cols = DIRECTION == 0 ? of.output[1] : of.input[1];
    u32 channel = (u32)(index % channels), col = (u32)(index / channels % n_cols);
    u32 row = (u32)(index / channels / n_cols % n_rows), image = (u32)(index / channels / n_cols / n_rows);
    for (u32 tap_row = 0; tap_row < of.filter[0]; tap_row++)
        for (u32 tap_col = 0; tap_col < of.filter[1]; tap_col++) {
#if DIRECTION == 0
            u32 r = under(of, 0, row, tap_row), c = under(of, 1, col, tap_col), first = channel / out_group * in_group;
            if (r >= of.input[0] || c >= of.input[1]) continue;
            const T* values = input + input_at(of, image, r, c, first);
            const T* weights = filter + filter_at(of, channel, tap_row, tap_col, 0);
            for (u32 from = 0; from < in_group; from++) sum = m::fma(widen(values[from]), widen(weights[from]), sum);
#else
            u32 r = above(of, 0, row, tap_row), c = above(of, 1, col, tap_col), first = channel / in_group * out_group;
            if (r >= of.output[0] || c >= of.output[1]) continue;
            for (u32 out = first; out < first + out_group; out++) {
                C weight = widen(filter[filter_at(of, out, tap_row, tap_col, channel % in_group)]);
                sum = m::fma(widen(output[output_at(of, image, r, c, out)]), weight, sum);
            }
#endif
        }
    (DIRECTION == 0 ? output : input)[index] = narrow<T>(sum);
#endif
}
