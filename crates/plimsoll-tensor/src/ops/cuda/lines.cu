// Kernels that look at lines, all elements along one axis, more than once: each line has a group of GROUP threads.
//
// Defined by lines.rs: N_OPERANDS, RANK, Index, V (elements that a thread reads at a time), GROUP, and K: how many times V
// elements of a line each thread has. K is zero where that is too many to be kept in registers; a line is read again then.

struct Lines {
    u64 n, len;
    u64 extents[8];
    i64 strides[7][8];
    i64 steps[7];
};

struct Offsets { i64 at[N_OPERANDS]; };

// How often V elements are kept.
#define SLOTS (K > 0 ? K : 1)

// The number of this thread's line, which may be beyond the last.
DEVICE Index line_number() { return (Index)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP; }

DEVICE bool is_first_of_group() { return threadIdx.x % GROUP == 0; }

// Where a line begins in each operand.
DEVICE Offsets line_offsets(const Lines& lines, Index number) {
    Offsets offsets = {};
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; axis--) {
        Index here = number;
        if (axis > 0) {
            number = here / (Index)lines.extents[axis];
            here -= number * (Index)lines.extents[axis];
        }
#pragma unroll
        for (int operand = 0; operand < N_OPERANDS; operand++) offsets.at[operand] += (i64)here * lines.strides[operand][axis];
    }
    return offsets;
}

// Calls f(slot, at) for this thread's elements of a line: V from `at` on, kept in `slot`.
template <class F> DEVICE void each(Index len, F f) {
#if K > 0
#pragma unroll
    for (int slot = 0; slot < K; slot++) {
        Index at = (slot * GROUP + threadIdx.x % GROUP) * V;
        if (at < len) f(slot, at);
    }
#else
#pragma unroll 2
    for (Index at = threadIdx.x % GROUP * V; at < len; at += GROUP * V) f(0, at);
#endif
}

// V elements of a line.
template <class T> DEVICE void read_line(const T* line, i64 step, Index at, Compute<T>* to) {
    if (V > 1) read_vector<V>(line + at, to);
    else *to = widen(line[(i64)at * step]);
}
template <class T> DEVICE void write_line(T* line, i64 step, Index at, const Compute<T>* from) {
    if (V > 1) write_vector<V>(line + at, from);
    else line[(i64)at * step] = narrow<T>(*from);
}

// V elements of the first operand, read for the first time: where they are MADE, they are written to its memory, unless nobody reads
// them again. Numbers of elements count from the first line's.
#ifdef MADE
#define MADE_PARAM , const Produced produced
#define READ_FIRST(line, step, number, at, is_read_again, to) { \
        produce(produced, (u64)(number) * lines.len + (at), to); \
        if (is_read_again) write_line((T*)(line), step, at, to); \
    }
#else
#define MADE_PARAM
#define READ_FIRST(line, step, number, at, is_read_again, to) read_line(line, step, at, to);
#endif

template <class X> DEVICE X group_sum(X mine) {
    return group_merge(mine, [](X a, X b) { return a + b; });
}

// The greater of two numbers; one that is not a number is passed over, because sums find it.
DEVICE float greater(float a, float b) { return ::fmaxf(a, b); }
DEVICE double greater(double a, double b) { return ::fmax(a, b); }
template <class X> DEVICE X group_greatest(X mine) {
    return group_merge(mine, [](X a, X b) { return greater(a, b); });
}

// Exponentials of numbers that lie in memory as the first type says: those of 16 bits do not need all digits.
DEVICE float exp_of(f16, float x) { return __expf(x); }
DEVICE float exp_of(bf16, float x) { return __expf(x); }
DEVICE float exp_of(float, float x) { return m::exp(x); }
DEVICE double exp_of(double, double x) { return m::exp(x); }

// The greatest of some numbers, and the sum of the exponentials of their distances from it.
template <class T> struct Exponentials {
    typedef Compute<T> X;
    X max, sum;

    static __device__ __forceinline__ Exponentials empty() { return {least(X()), (X)0}; }

    __device__ __forceinline__ X rescaled(X to) const { return max == to ? sum : sum * exp_of(T(), max - shift_of(to)); }

    static __device__ __forceinline__ Exponentials both(Exponentials a, Exponentials b) {
        X max = greater(a.max, b.max);
        return {max, a.rescaled(max) + b.rescaled(max)};
    }

    __device__ __forceinline__ void add(const X* x) {
        X top = x[0], part = 0;
#pragma unroll
        for (int v = 1; v < V; v++) top = greater(top, x[v]);
        X shift = shift_of(top);
#pragma unroll
        for (int v = 0; v < V; v++) part += exp_of(T(), x[v] - shift);
        *this = both(*this, {top, part});
    }

    // Those of a line's group.
    __device__ __forceinline__ Exponentials of_group() const {
        return group_merge(*this, [](Exponentials a, Exponentials b) { return both(a, b); });
    }

    // The logarithm of the sum of the exponentials of the numbers themselves.
    __device__ __forceinline__ X log() const { return shift_of(max) + m::log(sum); }
};
