// Reductions of some axes of inputs that are broadcast to one shape; outputs are row-major over the axes that are kept.
//
// Defined by reduce.rs: N_INPUTS with T0, T1, ...; V (elements that a thread reads at a time), KEPT_RANK, REDUCED_RANK,
// Index; PARAMS; FIELDS(N), READ_FIXED, READ(u), PICK(v); FINISH, WRITE(output); and one of
//   ROWS     GROUP threads fold one result, neighbours along the reduced axes;
//   COLUMNS  BX threads side by side along the kept axes, and THREADS / BX of them take every so many-th element;
//   PARTIALS the last step where the elements of a result were split among blocks: like COLUMNS over what these left.
// With IS_SPLIT, ROWS and COLUMNS leave what they know of their part of the elements in `partials`.
//
// The op brings Acc, what is known of some elements: empty(); leaf(x), of N elements at once; merge(a, n_a, b, n_b), of two
// stretches of n_a and n_b elements.

struct Places {
    u64 n_kept, n_reduced, per_split, n_splits;
    u64 kept[8], reduced[8];
    i64 kept_strides[6][8], reduced_strides[6][8];
};

struct Numbers { double at[4]; };

#define NUMBER(i) ((C)numbers.at[i])
// The number of elements less the first attribute, but not less than nothing: what the squares of a variance are divided by.
#define DIVISOR ((C)m::max((double)places.n_reduced - numbers.at[0], 0.0))

// What whole numbers are summed up in wraps around, which signed ones must not.
template <class C> struct WideOf { typedef u64 type; };
template <> struct WideOf<float> { typedef float type; };
template <> struct WideOf<double> { typedef double type; };

typedef Compute<T0> C;
typedef WideOf<C>::type Wide;
template <class X> struct CountOf { typedef float type; };
template <> struct CountOf<double> { typedef double type; };
// The number of elements, as what it is multiplied with.
typedef CountOf<C>::type Count;

// N elements of each input; `at(i)` is the number of an element along the reduced axes.
template <int N> struct Values {
    FIELDS(N)
    Index first, jump;
#if defined(ROWS)
    __device__ __forceinline__ u64 at(int i) const { return first + (u64)(i / V) * jump + i % V; }
#else
    __device__ __forceinline__ u64 at(int i) const { return first + (u64)i * jump; }
#endif
};

FOLD

static_assert(sizeof(Acc) == ACC_BYTES, "the workspace is made for this size");

struct Known { Acc acc; Count n; };
DEVICE Known join(Known a, Known b) {
    if (b.n == (Count)0) return a;
    if (a.n == (Count)0) return b;
    return {merge(a.acc, a.n, b.acc, b.n), a.n + b.n};
}

// Adds to the offsets of all inputs where element `flat` of some axes lies.
#define WALK(offsets, flat, RANK, extents, strides) { \
    Index rest = flat; \
    _Pragma("unroll") for (int axis = RANK - 1; axis >= 0; axis--) { \
        Index here = rest; \
        if (axis > 0) { \
            rest = here / (Index)places.extents[axis]; \
            here -= rest * (Index)places.extents[axis]; \
        } \
        _Pragma("unroll") for (int input = 0; input < N_INPUTS; input++) \
            offsets[input] += (i64)here * places.strides[input][axis]; \
    } \
}

#ifdef IS_SPLIT
#define GIVE(output, known) partials[(u64)blockIdx.y * places.n_kept + (output)] = (known).acc;
#else
#define GIVE(output, known) { \
    Acc acc = (known).acc; \
    C n = (C)places.n_reduced; \
    FINISH \
    WRITE(output) \
}
#endif

#if defined(ROWS)

KERNEL __launch_bounds__(THREADS) ENTRY(PARAMS const Places places, const Numbers numbers) {
    Index output = (Index)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
    bool is_there = output < places.n_kept;
    Index begin = (Index)blockIdx.y * (Index)places.per_split, end = begin + (Index)places.per_split;
    if (end > places.n_reduced) end = (Index)places.n_reduced;
    if (!is_there) end = begin;
    i64 base[N_INPUTS] = {};
    WALK(base, is_there ? output : 0, KEPT_RANK, kept, kept_strides)
    Known known = {empty(), 0};
    const Index STEP = GROUP * V;
    Index at = begin + threadIdx.x % GROUP * V;
#define READ_AT(u, place) { \
        i64 offset[N_INPUTS]; \
        _Pragma("unroll") for (int input = 0; input < N_INPUTS; input++) offset[input] = base[input]; \
        WALK(offset, place, REDUCED_RANK, reduced, reduced_strides) \
        READ(u) \
    }
    for (; at + (UNROLL - 1) * STEP < end; at += UNROLL * STEP) {
        Values<UNROLL * V> x;
        x.first = at, x.jump = STEP;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) READ_AT(u, at + u * STEP)
        known = join(known, {leaf(x), UNROLL * V});
    }
    for (; at < end; at += STEP) {
        Values<V> x;
        x.first = at, x.jump = STEP;
        READ_AT(0, at)
        known = join(known, {leaf(x), V});
    }
    known = group_merge(known, join);
    if (is_there && threadIdx.x % GROUP == 0) GIVE(output, known)
}

#else

// Joins what the threads of each column know, THREADS / BX of them; those of the first row get it.
DEVICE void join_columns(Acc (&acc)[V], Count& n) {
    const int BY = THREADS / BX;
    __shared__ Acc accs[V][THREADS];
    __shared__ Count counts[THREADS];
    for (int half = BY / 2; half > 0; half /= 2) {
        int row = threadIdx.x / BX;
        if (row >= half && row < 2 * half) {
#pragma unroll
            for (int v = 0; v < V; v++) accs[v][threadIdx.x] = acc[v];
            counts[threadIdx.x] = n;
        }
        __syncthreads();
        if (row < half) {
            int other = threadIdx.x + half * BX;
            Count n_other = counts[other];
#pragma unroll
            for (int v = 0; v < V; v++) acc[v] = join({acc[v], n}, {accs[v][other], n_other}).acc;
            n += n_other;
        }
        __syncthreads();
    }
}

KERNEL __launch_bounds__(THREADS) ENTRY(PARAMS const Places places, const Numbers numbers) {
    const int BY = THREADS / BX;
    Index output = ((Index)blockIdx.x * BX + threadIdx.x % BX) * V;
    bool is_there = output < places.n_kept;
    Acc parts[V];
#pragma unroll
    for (int v = 0; v < V; v++) parts[v] = empty();
    Count count = 0;
#if defined(COLUMNS)
    Index begin = (Index)blockIdx.y * (Index)places.per_split, end = begin + (Index)places.per_split;
    if (end > places.n_reduced) end = (Index)places.n_reduced;
    if (!is_there) end = begin;
    i64 base[N_INPUTS] = {};
    WALK(base, is_there ? output : 0, KEPT_RANK, kept, kept_strides)
    // Inputs that do not change along the reduced axes are read once.
    Values<V> fixed;
    if (is_there) { READ_FIXED }
#define READ_AT(u, place) { \
        i64 offset[N_INPUTS]; \
        _Pragma("unroll") for (int input = 0; input < N_INPUTS; input++) offset[input] = base[input]; \
        WALK(offset, place, REDUCED_RANK, reduced, reduced_strides) \
        READ(u) \
    }
#define FOLD_ROWS(N) { \
        Values<N * V> x; \
        _Pragma("unroll") for (int u = 0; u < N; u++) READ_AT(u, at + u * BY) \
        _Pragma("unroll") for (int v = 0; v < V; v++) { \
            Values<N> column; \
            column.first = at, column.jump = BY; \
            _Pragma("unroll") for (int u = 0; u < N; u++) { PICK(v) } \
            parts[v] = join({parts[v], count}, {leaf(column), N}).acc; \
        } \
        count += N; \
    }
    Index at = begin + threadIdx.x / BX;
    for (; at + (UNROLL - 1) * BY < end; at += UNROLL * BY) FOLD_ROWS(UNROLL)
    for (; at < end; at += BY) FOLD_ROWS(1)
#else
    for (u64 split = threadIdx.x / BX; is_there && split < places.n_splits; split += BY) {
        u64 begin = split * places.per_split, rest = places.n_reduced - begin;
        Known part = {partials[split * places.n_kept + output], (Count)(rest < places.per_split ? rest : places.per_split)};
        Known both = join({parts[0], count}, part);
        parts[0] = both.acc, count = both.n;
    }
#endif
    join_columns(parts, count);
    if (is_there && threadIdx.x < BX) {
#pragma unroll
        for (int v = 0; v < V; v++) GIVE(output + v, (Known{parts[v], count}))
    }
}

#endif
