// Sorting lines by bitonic merges: exchanges of pairs of entries in a fixed pattern.
//
// An entry is the key of an element above its index (IS_PACKED), or the index alone, whose key is looked up. No two entries are
// equal, so the order is stable. All exchanges put the lesser entry first, so that what would lie beyond the end of a line, greater
// than everything, never moves: lines need not be filled up. T is the type of the elements. A tile is what a block sorts in shared
// memory. The stages of a line, with PAIRS exchanging what is too far apart for a tile:
//   WHOLE    lines of up to a tile, from elements to results
//   TILES    makes entries, and sorts each tile
//   FLIP     merges sorted stretches of `distance / 2` entries pairwise: the first exchange, of entries in opposite places
//   STEP     the exchanges of entries `distance` apart
//   MERGE    all exchanges within a tile
//   FINISH   from entries to results

#define TILE 2048
#define THREADS 256

struct Lines {
    u64 n, len, n_wanted;
    u64 extents[8];
    i64 strides[8];
    i64 step;
};

DEVICE u32 key_of(float x) {
    // Adding zero makes the negative zero a positive one.
    u32 bits = __float_as_uint(x + 0.0f);
    return x != x ? ~0u : bits >> 31 ? ~bits : bits | 1u << 31;
}
DEVICE u64 key_of(double x) {
    u64 bits = (u64)__double_as_longlong(x + 0.0);
    return x != x ? ~0ull : bits >> 63 ? ~bits : bits | 1ull << 63;
}
DEVICE u32 key_of(f16 x) { return key_of(widen(x)); }
DEVICE u32 key_of(bf16 x) { return key_of(widen(x)); }
DEVICE u32 key_of(u8 x) { return x; }
DEVICE u32 key_of(i32 x) { return (u32)x ^ 1u << 31; }
DEVICE u64 key_of(i64 x) { return (u64)x ^ 1ull << 63; }

// One line of elements.
struct Keys {
    const T* first;
    i64 step;
    __device__ __forceinline__ u64 key(u64 at) const {
        auto key = key_of(first[(i64)at * step]);
        return DESCENDING ? (decltype(key))~key : key;
    }
    __device__ __forceinline__ u64 entry(u64 at) const { return IS_PACKED ? key(at) << 32 | at : at; }
    __device__ __forceinline__ bool is_less(u64 a, u64 b) const {
        if (IS_PACKED) return a < b;
        u64 key_a = key(a), key_b = key(b);
        return key_a < key_b || (key_a == key_b && a < b);
    }
    __device__ __forceinline__ void exchange(u64* entries, u64 low, u64 high) const {
        u64 a = entries[low], b = entries[high];
        if (is_less(b, a)) entries[low] = b, entries[high] = a;
    }
};

DEVICE Keys keys_of(const T* x, const Lines& lines, u64 number) {
    i64 offset = 0;
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; axis--) {
        offset += (i64)(axis > 0 ? number % lines.extents[axis] : number) * lines.strides[axis];
        if (axis > 0) number /= lines.extents[axis];
    }
    return {x + offset, lines.step};
}

// Exchanges entries of a tile that are `distance` apart, and half of it, and so on.
DEVICE void merge_tile(const Keys& keys, u64* tile, u32 len, u32 distance) {
    for (; distance > 0; distance /= 2) {
        for (u32 pair = threadIdx.x; pair < TILE / 2; pair += THREADS) {
            u32 low = 2 * distance * (pair / distance) + pair % distance;
            if (low + distance < len) keys.exchange(tile, low, low + distance);
        }
        __syncthreads();
    }
}

DEVICE void sort_tile(const Keys& keys, u64* tile, u32 len) {
    for (u32 size = 2; size < 2 * len; size *= 2) {
        for (u32 pair = threadIdx.x; pair < TILE / 2; pair += THREADS) {
            u32 start = size * (pair / (size / 2)), within = pair % (size / 2), high = start + size - 1 - within;
            if (high < len) keys.exchange(tile, start + within, high);
        }
        __syncthreads();
        merge_tile(keys, tile, len, size / 4);
    }
}

// Writes the result at a place of a line.
DEVICE void write_result(const Keys& keys, u64 entry, i64* index, T* value) {
    u64 at = IS_PACKED ? entry & 0xffffffffull : entry;
    *index = (i64)at;
    if (HAS_VALUES) *value = keys.first[(i64)at * keys.step];
}

// Lines have `n_parts` blocks each; `values` is none for indices alone. Entries may lie where the indices will be.
KERNEL __launch_bounds__(THREADS)
ENTRY(const T* x, u64* entries, i64* indices, T* values, const Lines lines, u64 n_parts, u64 distance) {
    u64 number = blockIdx.x / n_parts, part = blockIdx.x % n_parts;
    Keys keys = keys_of(x, lines, number);
    entries += number * lines.len, indices += number * lines.n_wanted, values += HAS_VALUES ? number * lines.n_wanted : 0;
#if defined(PAIRS)
    u64 pair = part * THREADS + threadIdx.x;
#ifdef FLIP
    u64 start = distance * (pair / (distance / 2)), within = pair % (distance / 2), low = start + within;
    u64 high = start + distance - 1 - within;
#else
    u64 low = 2 * distance * (pair / distance) + pair % distance, high = low + distance;
#endif
    if (high < lines.len) keys.exchange(entries, low, high);
#elif defined(FINISH)
    u64 at = part * THREADS + threadIdx.x;
    if (at < lines.n_wanted) write_result(keys, entries[at], indices + at, values + at);
#else
    __shared__ u64 tile[TILE];
    u64 first = part * TILE;
    u32 len = (u32)(lines.len - first < TILE ? lines.len - first : TILE);
    for (u32 at = threadIdx.x; at < len; at += THREADS) {
#ifdef MERGE
        tile[at] = entries[first + at];
#else
        tile[at] = keys.entry(first + at);
#endif
    }
    __syncthreads();
#ifdef MERGE
    merge_tile(keys, tile, len, TILE / 2);
#else
    sort_tile(keys, tile, len);
#endif
    for (u32 at = threadIdx.x; at < len; at += THREADS) {
#ifdef WHOLE
        if (at < lines.n_wanted) write_result(keys, tile[at], indices + at, values + at);
#else
        entries[first + at] = tile[at];
#endif
    }
#endif
}
