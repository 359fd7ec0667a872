// Sums of squares, one per chunk of elements: a block takes a chunk of one tensor. Squares are added up in double, where
// those of finite 32-bit floats cannot overflow, so a sum that is finite needs no second look. Beside the sum stands minus
// the tensor's number if the chunk holds a value that is not finite, else minus infinity.
//
// Defined by cuda.rs: ENTRY, T, STRIDED, N_ENTRIES, CHUNK.

#define V (16 / (int)sizeof(T))

struct Entry {
    const T* x;
    u64 n;
    u64 first_chunk;
    double number;
    u64 is_aligned;
};

struct Partial {
    double sum;
    double bad;
};

KERNEL __launch_bounds__(256) ENTRY(const Table<Entry, N_ENTRIES> table, Partial* partials, double nothing,
                                    const Strided strided) {
    __shared__ double scratch[32];
    u32 idx = entry_of(table, blockIdx.x);
    Entry entry = table.entries[idx];
    u64 chunk = blockIdx.x - table.starts[idx], first = chunk * CHUNK;
    u64 end = first + CHUNK < entry.n ? first + CHUNK : entry.n;
    bool in_vectors = !STRIDED && entry.is_aligned;
    double sum = 0.0;
    bool is_bad = false;
    // A stray infinity makes the sum infinite or no number; in double, so does a large finite value.
#define TAKE(value) \
    { \
        auto x = widen(value); \
        is_bad |= !m::is_finite(x); \
        sum += (double)x * (double)x; \
    }
#pragma unroll 4
    for (u64 at = first + threadIdx.x * V; at < end; at += 256 * V) {
        if (in_vectors && at + V <= end) {
            Vector<T, V> values = *(const Vector<T, V>*)(entry.x + at);
#pragma unroll
            for (int lane = 0; lane < V; lane++) TAKE(values.at[lane])
        } else {
            for (u64 one = at; one < end && one < at + V; one++) TAKE(entry.x[STRIDED ? place_of(strided, one) : (i64)one])
        }
    }
    sum = block_sum(sum, scratch);
    double bad = block_max(is_bad ? -entry.number : nothing, scratch);
    if (threadIdx.x == 0) partials[entry.first_chunk + chunk] = {sum, bad};
}
