// The cross entropy of rows of logits against a number for every class, and its gradient (BACKWARD). T is the type of both.

typedef Compute<T> C;

#if !BACKWARD

// `kept` takes the log-sum-exp of each row; there is none if the op is not recorded.
KERNEL __launch_bounds__(THREADS) ENTRY(const T* x, const T* labels, T* loss, C* kept, const Lines lines MADE_PARAM) {
    Index number = line_number();
    bool is_there = number < lines.n;
    Index len = is_there ? (Index)lines.len : 0;
    Offsets offsets = line_offsets(lines, is_there ? number : 0);
    x += offsets.at[0], labels += offsets.at[1];
    C values[SLOTS][V], sum = 0;
    Exponentials<T> known = Exponentials<T>::empty();
    each(len, [&](int slot, Index at) {
        READ_FIRST(x, lines.steps[0], number, at, true, values[slot])
        known.add(values[slot]);
    });
    C log = known.of_group().log();
    each(len, [&](int slot, Index at) {
        C wanted[V];
        if (K == 0) read_line(x, lines.steps[0], at, values[0]);
        read_line(labels, lines.steps[1], at, wanted);
#pragma unroll
        for (int v = 0; v < V; v++) sum += wanted[v] * (log - values[slot][v]);
    });
    sum = group_sum(sum);
    if (!is_there || !is_first_of_group()) return;
    loss[number] = narrow<T>(sum);
    if (kept) kept[number] = log;
}

#else

// The result may be written over the logits: each thread writes what it alone has read.
KERNEL __launch_bounds__(THREADS)
ENTRY(const T* x, const T* labels, const T* gradients, const C* kept, T* result, const Lines lines) {
    Index number = line_number();
    bool is_there = number < lines.n;
    Index len = is_there ? (Index)lines.len : 0;
    Offsets offsets = line_offsets(lines, is_there ? number : 0);
    x += offsets.at[0], labels += offsets.at[1], result += offsets.at[4];
    C wanted[SLOTS][V], total = 0;
    each(len, [&](int slot, Index at) {
        read_line(labels, lines.steps[1], at, wanted[slot]);
#pragma unroll
        for (int v = 0; v < V; v++) total += wanted[slot][v];
    });
    total = group_sum(total);
    C gradient = is_there ? widen(gradients[offsets.at[2]]) : (C)0, log = is_there ? kept[offsets.at[3]] : (C)0;
    each(len, [&](int slot, Index at) {
        C values[V];
        read_line(x, lines.steps[0], at, values);
        if (K == 0) read_line(labels, lines.steps[1], at, wanted[0]);
#pragma unroll
        for (int v = 0; v < V; v++)
            values[v] = (exp_of(T(), values[v] - log) * total - wanted[slot][v]) * gradient;
        write_line(result, lines.steps[4], at, values);
    });
}

#endif
