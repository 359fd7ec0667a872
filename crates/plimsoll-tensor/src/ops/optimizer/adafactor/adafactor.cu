// Adafactor in five passes over strips of rows, as pass.rs makes them: a block takes a strip; where a parameter is
// factored, a warp takes a row of it, and a thread a column. Sums of strips are joined in their order.
//
// Defined by cuda.rs: ENTRY, PASS, T, G, S, HAS_COPY, STRIDED, N_ENTRIES; shared.cuh.

#define DECAYS 1
#define FACTORED 2
#define WARPS 8

struct Entry {
    T* parameter;
    T* rows;
    T* columns;
    S* copy;
    const G* gradient;
    // A factor, two sums of squares per strip, a mean per matrix, parts of column sums.
    double* scratch;
    u64 n_matrices, n_rows, n_cols, strip_rows, strips_per_matrix, flags;
};

struct Strip {
    u64 number, matrix, first_row, end_row;
};

DEVICE Strip strip_of(const Entry& entry, u64 number) {
    u64 matrix = number / entry.strips_per_matrix, within = number % entry.strips_per_matrix;
    u64 end = (within + 1) * entry.strip_rows, base = matrix * entry.n_rows;
    return {number, matrix, base + within * entry.strip_rows, base + (end < entry.n_rows ? end : entry.n_rows)};
}

// Calls `visit` with the number of each element of a strip, its row and its place among the columns' means.
template <class F> DEVICE void for_each_element(const Entry& entry, const Strip& strip, F visit) {
    if (!(entry.flags & FACTORED)) {
        for (u64 at = strip.first_row + threadIdx.x; at < strip.end_row; at += 256) visit(at, at, 0);
        return;
    }
    for (u64 row = strip.first_row + threadIdx.x / WARP; row < strip.end_row; row += WARPS)
        for (u64 col = threadIdx.x % WARP; col < entry.n_cols; col += WARP)
            visit(row * entry.n_cols + col, row, strip.matrix * entry.n_cols + col);
}

DEVICE T gradient_at(const Entry& entry, const Before& before, const Strided& strided, u64 at) {
    T gradient = (T)widen(entry.gradient[STRIDED ? place_of(strided, at) : (i64)at]);
    return gradient_seen(before, entry.parameter[at], gradient);
}

DEVICE T mixed(T old, T mixed_in, T new_one) { return old + mixed_in * (new_one - old); }

// First pass: means of squares over rows, or of single elements; sums over columns; the parameter's squares.
DEVICE double moments(const Entry& entry, const Before& before, const Strided& strided, const Strip& strip, T mixed_in) {
    double sum = 0.0;
    if (!(entry.flags & FACTORED)) {
        for_each_element(entry, strip, [&](u64 at, u64, u64) {
            T gradient = gradient_at(entry, before, strided, at);
            sum += (double)entry.parameter[at] * (double)entry.parameter[at];
            entry.rows[at] = mixed(entry.rows[at], mixed_in, gradient * gradient);
        });
        return sum;
    }
    for (u64 row = strip.first_row + threadIdx.x / WARP; row < strip.end_row; row += WARPS) {
        T squares = 0;
        for (u64 at = row * entry.n_cols + threadIdx.x % WARP; at < (row + 1) * entry.n_cols; at += WARP) {
            T gradient = gradient_at(entry, before, strided, at);
            squares += gradient * gradient;
            sum += (double)entry.parameter[at] * (double)entry.parameter[at];
        }
        squares = warp_sum(squares);
        if (threadIdx.x % WARP == 0)
            entry.rows[row] = mixed(entry.rows[row], mixed_in, squares / (T)entry.n_cols);
    }
    double* parts = entry.scratch + 1 + 2 * entry.n_matrices * entry.strips_per_matrix + entry.n_matrices;
    for (u64 col = threadIdx.x; col < entry.n_cols; col += 256) {
        double squares = 0.0;
        for (u64 row = strip.first_row; row < strip.end_row; row++) {
            T gradient = gradient_at(entry, before, strided, row * entry.n_cols + col);
            squares += (double)(gradient * gradient);
        }
        T* mean = entry.columns + strip.matrix * entry.n_cols + col;
        if (entry.strips_per_matrix > 1) parts[strip.number * entry.n_cols + col] = squares;
        else *mean = mixed(*mean, mixed_in, (T)(squares / (double)entry.n_rows));
    }
    return sum;
}

// Second pass: what the strips of a matrix have summed.
DEVICE void join(const Entry& entry, u64 matrix, T mixed_in, double least, double* shared) {
    double sum = 0.0;
    for (u64 row = threadIdx.x; row < entry.n_rows; row += 256) sum += (double)entry.rows[matrix * entry.n_rows + row];
    sum = block_sum(sum, shared) / (double)entry.n_rows;
    double* means = entry.scratch + 1 + 2 * entry.n_matrices * entry.strips_per_matrix;
    if (threadIdx.x == 0) means[matrix] = sum > least ? sum : least;
    if (entry.strips_per_matrix <= 1) return;
    for (u64 col = threadIdx.x; col < entry.n_cols; col += 256) {
        double squares = 0.0;
        const double* part = means + entry.n_matrices + matrix * entry.strips_per_matrix * entry.n_cols + col;
        for (u64 strip = 0; strip < entry.strips_per_matrix; strip++) squares += part[strip * entry.n_cols];
        T* mean = entry.columns + matrix * entry.n_cols + col;
        *mean = mixed(*mean, mixed_in, (T)(squares / (double)entry.n_rows));
    }
}

DEVICE double greater(double x, double least) { return x > least ? x : least; }

// Fourth pass: the factor of a parameter's update, from the sums of its strips.
DEVICE void decide(const Entry& entry, const Control& control, const double* attributes, double* shared) {
    u64 n_strips = entry.n_matrices * entry.strips_per_matrix;
    double of_parameter = 0.0, of_update = 0.0, n = (double)(entry.n_matrices * entry.n_rows * entry.n_cols);
    for (u64 strip = threadIdx.x; strip < n_strips; strip += 256) {
        of_parameter += entry.scratch[1 + 2 * strip];
        of_update += entry.scratch[2 + 2 * strip];
    }
    of_parameter = ::sqrt(block_sum(of_parameter, shared) / n);
    of_update = ::sqrt(block_sum(of_update, shared) / n);
    double slow = 1.0 / ::sqrt(control.step);
    double rate = control.learning_rate < slow ? control.learning_rate : slow;
    double size = greater(of_parameter, attributes[2]) * rate;
    if (threadIdx.x == 0) entry.scratch[0] = size / greater(of_update / attributes[3], 1.0);
}

KERNEL __launch_bounds__(256) ENTRY(const Table<Entry, N_ENTRIES> table, const Control* control_buffer,
                                    const Attributes attributes, const Common common, const Strided strided) {
    __shared__ double shared[32];
    __shared__ T shared_mixed_in;
    Control control = *control_buffer;
    if (control.overflow != 0.0) return;
    u32 idx = entry_of(table, blockIdx.x);
    Entry entry = table.entries[idx];
    u64 number = blockIdx.x - table.starts[idx];
    if (threadIdx.x == 0) shared_mixed_in = (T)::pow(control.step, attributes.at[0]);
    __syncthreads();
    T mixed_in = shared_mixed_in, least = (T)(attributes.at[1] * attributes.at[1]);
    Before before = before_of(control, common, entry.flags & DECAYS);
    if (PASS == 1) return join(entry, number, mixed_in, attributes.at[1], shared);
    if (PASS == 3) return decide(entry, control, attributes.at, shared);
    Strip strip = strip_of(entry, number);
    if (PASS == 0) {
        double sum = block_sum(moments(entry, before, strided, strip, mixed_in), shared);
        if (threadIdx.x == 0) entry.scratch[1 + 2 * number] = sum;
        return;
    }
    bool is_factored = entry.flags & FACTORED;
    double* means = entry.scratch + 1 + 2 * entry.n_matrices * entry.strips_per_matrix;
    T mean = is_factored ? (T)means[strip.matrix] : (T)1;
    auto update_at = [&](u64 at, u64 row, u64 col) {
        T square = is_factored ? entry.rows[row] / mean * entry.columns[col] : entry.rows[at];
        return gradient_at(entry, before, strided, at) / m::sqrt(m::max(square, least));
    };
    if (PASS == 2) {
        double sum = 0.0;
        for_each_element(entry, strip, [&](u64 at, u64 row, u64 col) {
            T update = update_at(at, row, col);
            sum += (double)update * (double)update;
        });
        sum = block_sum(sum, shared);
        if (threadIdx.x == 0) entry.scratch[2 + 2 * number] = sum;
        return;
    }
    T factor = (T)entry.scratch[0];
    for_each_element(entry, strip, [&](u64 at, u64 row, u64 col) {
        T parameter = entry.parameter[at] * before.shrink - factor * update_at(at, row, col);
        entry.parameter[at] = parameter;
        if (HAS_COPY) entry.copy[at] = narrow<S>((float)parameter);
    });
}
