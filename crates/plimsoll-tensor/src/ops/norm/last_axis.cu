// Layer norm and RMS norm of every line. IS_CENTRED tells them apart; T is the type of the elements.
//   FORWARD   finds the statistics of each line, keeps them where that is wanted, and applies them
//   ADD       the same for the sum of two lines, which is a result, too; HAS_DROPOUT says whether the second is dropped
//   APPLY     applies given ones: the same numbers to the bit, by the same expression
//   BACKWARD  the gradient of the input; IS_JOINED says whether one from elsewhere is added to it, HAS_DROPOUT whether the
//             gradient of what was dropped before a sum is a result, too

typedef Compute<T> C;

struct Given {
    const T *x, *gamma, *beta;
    T* y;
    i64 x_step, gamma_step, beta_step, y_step;
};

// Normalises a line; `values` are its elements where lines are kept.
DEVICE void apply(Index len, const Given& of, C mean, C rstd, C (&values)[SLOTS][V], bool is_read) {
    each(len, [&](int slot, Index at) {
        C scales[V], shifts[V];
        if (K == 0 || !is_read) read_line(of.x, of.x_step, at, values[slot]);
        read_line(of.gamma, of.gamma_step, at, scales);
        if (IS_CENTRED) read_line(of.beta, of.beta_step, at, shifts);
#pragma unroll
        for (int v = 0; v < V; v++) {
            C normal = IS_CENTRED ? (values[slot][v] - mean) * rstd : values[slot][v] * rstd;
            values[slot][v] = IS_CENTRED ? m::fma(normal, scales[v], shifts[v]) : normal * scales[v];
        }
        write_line(of.y, of.y_step, at, values[slot]);
    });
}

// Drops some of V neighbouring elements, of which the first has the number `first`, and rounds as if they were stored.
struct Drop {
    u64 seed, number;
    double scale;
    u64 threshold;
};
DEVICE void drop_some(const Drop& drop, u64 first, C* values) {
    // Four neighbours share a block of random words.
    Words drawn[V / 4 + 1];
#pragma unroll
    for (int block = 0; block < V / 4; block++) drawn[block] = philox(drop.seed, drop.number, first / 4 + block);
#pragma unroll
    for (int v = 0; v < V; v++) {
        u32 random = V % 4 == 0 ? drawn[v / 4].at[v % 4] : random_word(drop.seed, drop.number, first + v);
        C kept = values[v] * cast<C>(drop.scale);
        values[v] = random < (u32)drop.threshold ? widen(narrow<T>(kept)) : (C)0;
    }
}

#if defined(FORWARD) || defined(ADD)

KERNEL __launch_bounds__(THREADS) ENTRY(
    const T* x, const T* gamma, const T* beta, T* y,
#if defined(ADD)
    const T* branch, T* sum,
#endif
    C* kept_mean, C* kept_rstd, const Lines lines, double eps
#if defined(ADD)
    , const Drop drop
#else
    MADE_PARAM
#endif
) {
    Index number = line_number();
    bool is_there = number < lines.n;
    Index len = is_there ? (Index)lines.len : 0;
    Offsets offsets = line_offsets(lines, is_there ? number : 0);
    Given of = {x + offsets.at[0], gamma + offsets.at[1], beta + offsets.at[2], y + offsets.at[3],
                lines.steps[0], lines.steps[1], lines.steps[2], lines.steps[3]};
    C values[SLOTS][V], mean = 0, squares = 0;
#if defined(ADD)
    // The sum takes the place of x; where lines are not kept, each thread reads what it has written.
    branch += offsets.at[4], sum += offsets.at[5];
    each(len, [&](int slot, Index at) {
        C added[V];
        read_line(of.x, of.x_step, at, values[slot]);
        read_line(branch, lines.steps[4], at, added);
        if (HAS_DROPOUT) drop_some(drop, (u64)number * lines.len + at, added);
#pragma unroll
        for (int v = 0; v < V; v++) values[slot][v] = widen(narrow<T>(values[slot][v] + added[v]));
        write_line(sum, lines.steps[5], at, values[slot]);
    });
    of.x = sum, of.x_step = lines.steps[5];
#else
#if K > 0 || defined(MADE)
    const bool is_kept = x != y;
    each(len, [&](int slot, Index at) { READ_FIRST(of.x, of.x_step, number, at, K == 0 || is_kept, values[slot]) });
#endif
#endif
    if (IS_CENTRED) {
        each(len, [&](int slot, Index at) {
            if (K == 0) read_line(of.x, of.x_step, at, values[slot]);
#pragma unroll
            for (int v = 0; v < V; v++) mean += values[slot][v];
        });
        mean = group_sum(mean) / (C)lines.len;
    }
    each(len, [&](int slot, Index at) {
        if (K == 0) read_line(of.x, of.x_step, at, values[slot]);
#pragma unroll
        for (int v = 0; v < V; v++) squares += (values[slot][v] - mean) * (values[slot][v] - mean);
    });
    C rstd = m::rsqrt(group_sum(squares) / (C)lines.len + (C)eps);
    if (is_there && is_first_of_group()) {
        if (kept_mean) kept_mean[number] = mean;
        if (kept_rstd) kept_rstd[number] = rstd;
    }
    apply(len, of, mean, rstd, values, true);
}

#elif defined(APPLY)

KERNEL __launch_bounds__(THREADS) ENTRY(
    const T* x, const T* gamma, const T* beta, T* y, const C* mean, const C* rstd, const Lines lines
) {
    Index number = line_number();
    if (number >= lines.n) return;
    Offsets offsets = line_offsets(lines, number);
    Given of = {x + offsets.at[0], gamma + offsets.at[1], beta + offsets.at[2], y + offsets.at[3],
                lines.steps[0], lines.steps[1], lines.steps[2], lines.steps[3]};
    C values[SLOTS][V];
    apply((Index)lines.len, of, IS_CENTRED ? mean[offsets.at[4]] : (C)0, rstd[offsets.at[5]], values, false);
}

#else

// The result may be written over the gradient: each thread writes what it alone has read.
KERNEL __launch_bounds__(THREADS) ENTRY(
    const T* g, const T* x, const T* gamma, const C* means, const C* rstds, T* dx, const T* joined, T* dropped,
    const Lines lines, const Drop drop
) {
    Index number = line_number();
    bool is_there = number < lines.n;
    Index len = is_there ? (Index)lines.len : 0;
    Offsets offsets = line_offsets(lines, is_there ? number : 0);
    g += offsets.at[0], x += offsets.at[1], gamma += offsets.at[2], dx += offsets.at[5];
    C mean = is_there && IS_CENTRED ? means[offsets.at[3]] : (C)0, rstd = is_there ? rstds[offsets.at[4]] : (C)0;
    // The gradient of the normalised line, and the line itself, normalised.
    C local_grads[SLOTS][V], normals[SLOTS][V], shared = 0, along = 0;
    auto read = [&](int slot, Index at) {
        C scales[V];
        read_line(g, lines.steps[0], at, local_grads[slot]);
        read_line(x, lines.steps[1], at, normals[slot]);
        read_line(gamma, lines.steps[2], at, scales);
#pragma unroll
        for (int v = 0; v < V; v++) {
            local_grads[slot][v] *= scales[v];
            normals[slot][v] = (normals[slot][v] - mean) * rstd;
        }
    };
    each(len, [&](int slot, Index at) {
        read(slot, at);
#pragma unroll
        for (int v = 0; v < V; v++) {
            shared += local_grads[slot][v];
            along += local_grads[slot][v] * normals[slot][v];
        }
    });
    shared = IS_CENTRED ? group_sum(shared) / (C)lines.len : (C)0;
    along = group_sum(along) / (C)lines.len;
    each(len, [&](int slot, Index at) {
        if (K == 0) read(0, at);
#pragma unroll
        for (int v = 0; v < V; v++) local_grads[slot][v] = (local_grads[slot][v] - shared - normals[slot][v] * along) * rstd;
        if (IS_JOINED) {
            C others[V];
            read_line(joined + offsets.at[6], lines.steps[6], at, others);
#pragma unroll
            for (int v = 0; v < V; v++) local_grads[slot][v] = widen(narrow<T>(local_grads[slot][v])) + others[v];
        }
        write_line(dx, lines.steps[5], at, local_grads[slot]);
        if (HAS_DROPOUT) {
            u64 first = (u64)number * lines.len + at;
#pragma unroll
            for (int v = 0; v < V; v++) local_grads[slot][v] = widen(narrow<T>(local_grads[slot][v]));
            drop_some(drop, first, local_grads[slot]);
            write_line(dropped + (u64)number * lines.len, 1, at, local_grads[slot]);
        }
    });
}

#endif
