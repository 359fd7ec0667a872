// The cross entropy of rows of logits against class indices, and its gradient (BACKWARD). T is the type of the logits, L that
// of the labels.

typedef Compute<T> C;

#if !BACKWARD

// `kept` takes the log-sum-exp of each row; there is none if the op is not recorded.
KERNEL __launch_bounds__(THREADS)
ENTRY(
    const T* x, const L* labels, T* loss, C* kept, const Lines lines, i64 ignored, u32 has_ignored, Note* cell, u64 call MADE_PARAM
) {
    Index number = line_number();
    bool is_there = number < lines.n;
    Offsets offsets = line_offsets(lines, is_there ? number : 0);
    x += offsets.at[0];
    Exponentials<T> known = Exponentials<T>::empty();
    each(is_there ? (Index)lines.len : 0, [&](int, Index at) {
        C values[V];
        READ_FIRST(x, lines.steps[0], number, at, true, values)
        known.add(values);
    });
    C log = known.of_group().log();
#ifdef MADE
    // Another thread of the group may have written the label's logit.
    __syncwarp();
#endif
    if (!is_there || !is_first_of_group()) return;
    i64 label = labels[offsets.at[1]];
    C value = 0;
    if (!(has_ignored && label == ignored)) {
        if (label >= 0 && (u64)label < lines.len) value = log - widen(x[label * lines.steps[0]]);
        else fault(cell, call, number, label);
    }
    loss[number] = narrow<T>(value);
    if (kept) kept[number] = log;
}

#else

// The result may be written over the logits: each thread writes what it alone has read.
KERNEL __launch_bounds__(THREADS) ENTRY(
    const T* x, const L* labels, const T* gradients, const C* kept, T* result, const Lines lines, i64 ignored, u32 has_ignored
) {
    Index number = line_number();
    if (number >= lines.n) return;
    Offsets offsets = line_offsets(lines, number);
    x += offsets.at[0], result += offsets.at[4];
    i64 label = labels[offsets.at[1]];
    C gradient = has_ignored && label == ignored ? (C)0 : widen(gradients[offsets.at[2]]);
    C log = kept[offsets.at[3]];
    each((Index)lines.len, [&](int, Index at) {
        C values[V];
        read_line(x, lines.steps[0], at, values);
#pragma unroll
        for (int v = 0; v < V; v++) {
            C local_grad = exp_of(T(), values[v] - log) * gradient;
            values[v] = (i64)(at + v) == label ? local_grad - gradient : local_grad;
        }
        write_line(result, lines.steps[4], at, values);
    });
}

#endif
