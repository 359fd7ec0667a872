// Scans of every line. T is the type of the elements; states are doubles for floats, and wrap around for whole numbers.
//   IN_GROUPS   sums, where a line's elements lie closer than the lines: a group of threads adds up GROUP elements at a time
//   otherwise   each line has one thread, which goes from place to place
// IS_LINEAR tells s = a s + x from sums. Its states are made one after the other: the products of factors that a tree would
// form may overflow where no state does.

template <class X> struct StateOf { typedef u64 type; };
template <> struct StateOf<float> { typedef double type; };
template <> struct StateOf<double> { typedef double type; };
typedef StateOf<Compute<T>>::type State;

DEVICE State state_of(T x) { return (State)widen(x); }
DEVICE T element_of(State state) { return narrow<T>((Compute<T>)state); }

#if IN_GROUPS

// The sums of `mine` over the threads of the group up to this one, and over all of them.
struct Sums { State up_to, all; };
DEVICE Sums group_sums(State mine) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
        State other = __shfl_up_sync(ALL_LANES, mine, distance);
        if (lane >= distance) mine += other;
    }
#if GROUP > 32
    __shared__ State of_warps[THREADS / WARP];
    if (lane == WARP - 1) of_warps[threadIdx.x / WARP] = mine;
    __syncthreads();
    State before = 0, all = 0;
    for (int warp = 0; warp < THREADS / WARP; warp++) {
        if (warp == threadIdx.x / WARP) before = all;
        all += of_warps[warp];
    }
    __syncthreads();
    return {before + mine, all};
#else
    return {mine, __shfl_sync(ALL_LANES, mine, WARP - 1)};
#endif
}

KERNEL __launch_bounds__(THREADS) ENTRY(const T* x, T* y, const Lines lines, u32 from_end) {
    Index number = line_number();
    bool is_there = number < lines.n;
    Offsets offsets = line_offsets(lines, is_there ? number : 0);
    x += offsets.at[0], y += offsets.at[1];
    State sum = 0;
    // The same number of rounds for all threads, which meet in each.
    for (Index first = 0; first < lines.len; first += GROUP) {
        Index at = first + threadIdx.x % GROUP;
        bool is_element = is_there && at < lines.len;
        i64 place = from_end ? (i64)(lines.len - 1) - (i64)at : (i64)at;
        Sums sums = group_sums(is_element ? state_of(x[place * lines.steps[0]]) : (State)0);
        if (is_element) y[place * lines.steps[1]] = element_of(sum + sums.up_to);
        sum += sums.all;
    }
}

#else

KERNEL __launch_bounds__(THREADS) ENTRY(const T* a, const T* x, T* y, const Lines lines, u32 from_end) {
    Index number = (Index)blockIdx.x * THREADS + threadIdx.x;
    if (number >= lines.n) return;
    Offsets offsets = line_offsets(lines, number);
    i64 a_step = lines.steps[0], x_step = lines.steps[1], y_step = lines.steps[2];
    a += offsets.at[0], x += offsets.at[1], y += offsets.at[2];
    if (from_end) {
        // A linear scan from the end has at each place the factor of the place after, the one that was just left.
        i64 last = (i64)lines.len - 1;
        a += (last + 1) * a_step, x += last * x_step, y += last * y_step;
        a_step = -a_step, x_step = -x_step, y_step = -y_step;
    }
    State state = 0;
#pragma unroll 4
    for (Index at = 0; at < lines.len; at++) {
        State value = state_of(x[(i64)at * x_step]);
        if (IS_LINEAR && at > 0) state = state_of(a[(i64)at * a_step]) * state + value;
        else state += value;
        y[(i64)at * y_step] = element_of(state);
    }
}

#endif
