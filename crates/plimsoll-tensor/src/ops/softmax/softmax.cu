// Softmax of every line, or its logarithm (IS_LOG), and the gradients of both (BACKWARD). T is the type of the elements.

typedef Compute<T> C;

#if !BACKWARD

KERNEL __launch_bounds__(THREADS) ENTRY(const T* x, T* y, const Lines lines MADE_PARAM) {
    Index number = line_number();
    bool is_there = number < lines.n;
    Index len = is_there ? (Index)lines.len : 0;
    Offsets offsets = line_offsets(lines, is_there ? number : 0);
    const bool is_kept = x != y;
    x += offsets.at[0], y += offsets.at[1];
    C values[SLOTS][V];
#if K > 0
    // The line stays in registers, and each exponential is taken once.
    C max = least(C()), sum = 0;
    each(len, [&](int slot, Index at) {
        READ_FIRST(x, lines.steps[0], number, at, is_kept, values[slot])
#pragma unroll
        for (int v = 0; v < V; v++) max = greater(max, values[slot][v]);
    });
    C shift = shift_of(group_greatest(max));
    each(len, [&](int slot, Index) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            C exponential = exp_of(T(), values[slot][v] - shift);
            sum += exponential;
            if (!IS_LOG) values[slot][v] = exponential;
        }
    });
    sum = group_sum(sum);
#else
    Exponentials<T> known = Exponentials<T>::empty();
    each(len, [&](int, Index at) {
        READ_FIRST(x, lines.steps[0], number, at, true, values[0])
        known.add(values[0]);
    });
    known = known.of_group();
    C shift = shift_of(known.max), sum = known.sum;
#endif
    C scale = (C)1 / sum, log = m::log(sum);
    each(len, [&](int slot, Index at) {
        if (K == 0) read_line(x, lines.steps[0], at, values[0]);
#pragma unroll
        for (int v = 0; v < V; v++) {
            C value = values[slot][v];
            if (IS_LOG) value = value - shift - log;
            else value = (K > 0 ? value : exp_of(T(), value - shift)) * scale;
            values[slot][v] = value;
        }
        write_line(y, lines.steps[1], at, values[slot]);
    });
}

#else

// The result may be written over the gradient: each thread writes what it alone has read.
KERNEL __launch_bounds__(THREADS) ENTRY(const T* gradient, const T* y, T* result, const Lines lines MADE_PARAM) {
    Index number = line_number();
    bool is_there = number < lines.n;
    Index len = is_there ? (Index)lines.len : 0;
    Offsets offsets = line_offsets(lines, is_there ? number : 0);
    const bool is_kept = gradient != result;
    gradient += offsets.at[0], y += offsets.at[1], result += offsets.at[2];
    C local_grads[SLOTS][V], values[SLOTS][V], total = 0;
    each(len, [&](int slot, Index at) {
        READ_FIRST(gradient, lines.steps[0], number, at, K == 0 || is_kept, local_grads[slot])
        read_line(y, lines.steps[1], at, values[slot]);
#pragma unroll
        for (int v = 0; v < V; v++) total += IS_LOG ? local_grads[slot][v] : local_grads[slot][v] * values[slot][v];
    });
    total = group_sum(total);
    each(len, [&](int slot, Index at) {
        if (K == 0) {
            read_line(gradient, lines.steps[0], at, local_grads[0]);
            read_line(y, lines.steps[1], at, values[0]);
        }
#pragma unroll
        for (int v = 0; v < V; v++) {
            C g = local_grads[slot][v], value = values[slot][v];
            local_grads[slot][v] = IS_LOG ? g - exp_of(T(), value) * total : value * (g - total);
        }
        write_line(result, lines.steps[2], at, local_grads[slot]);
    });
}

#endif
