// Groups: GROUP neighbouring threads that work on one result, a power of two up to a warp, or a whole block of THREADS.

#define THREADS 256

// What another lane has: any structure of whole words.
template <class T> DEVICE T other_lane(T mine, int mask) {
    static_assert(sizeof(T) % 4 == 0, "lanes exchange words");
    union Words {
        T value;
        u32 at[sizeof(T) / 4];
    };
    Words here = {mine}, there;
#pragma unroll
    for (int word = 0; word < (int)(sizeof(T) / 4); word++) there.at[word] = lane_xor(here.at[word], mask);
    return there.value;
}

// What `merge(first, second)` makes of what the threads of each group have, in the order of the threads; all get it. Every
// thread of the block must come here.
template <class T, class Merge> DEVICE T group_merge(T mine, Merge merge) {
#pragma unroll
    for (int mask = 1; mask < (GROUP < WARP ? GROUP : WARP); mask *= 2) {
        T other = other_lane(mine, mask);
        bool is_first = (threadIdx.x & mask) == 0;
        mine = merge(is_first ? mine : other, is_first ? other : mine);
    }
#if GROUP > 32
    __shared__ T of_warps[THREADS / WARP];
    if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = mine;
    __syncthreads();
    mine = of_warps[0];
#pragma unroll
    for (int warp = 1; warp < THREADS / WARP; warp++) mine = merge(mine, of_warps[warp]);
    __syncthreads();
#endif
    return mine;
}

// Reads N neighbouring elements, 16 bytes at a time.
template <int N, class T> DEVICE void read_vector(const T* from, Compute<T>* to) {
    constexpr int PART = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
#pragma unroll
    for (int first = 0; first < N; first += PART) {
        auto part = *(const Vector<T, PART>*)(from + first);
#pragma unroll
        for (int i = 0; i < PART; i++) to[first + i] = widen(part.at[i]);
    }
}

// Writes N neighbouring elements, 16 bytes at a time.
template <int N, class T> DEVICE void write_vector(T* to, const Compute<T>* from) {
    constexpr int PART = N * sizeof(T) > 16 ? 16 / sizeof(T) : N;
#pragma unroll
    for (int first = 0; first < N; first += PART) {
        Vector<T, PART> part;
#pragma unroll
        for (int i = 0; i < PART; i++) part.at[i] = narrow<T>(from[first + i]);
        *(Vector<T, PART>*)(to + first) = part;
    }
}

// The ends of a type, infinite for floats; the argument only tells the type.
DEVICE float least(float) { return __int_as_float(0xff800000); }
DEVICE double least(double) { return __longlong_as_double(0xfff0000000000000ll); }
DEVICE i64 least(i64) { return (i64)(1ull << 63); }
DEVICE i32 least(i32) { return (i32)(1u << 31); }
DEVICE u8 least(u8) { return 0; }
DEVICE float greatest(float) { return __int_as_float(0x7f800000); }
DEVICE double greatest(double) { return __longlong_as_double(0x7ff0000000000000ll); }
DEVICE i64 greatest(i64) { return (i64)~(1ull << 63); }
DEVICE i32 greatest(i32) { return (i32)~(1u << 31); }
DEVICE u8 greatest(u8) { return 255; }

// What is taken from numbers before their exponentials are taken, given the greatest: an infinite one takes away nothing.
template <class C> DEVICE C shift_of(C max) { return m::abs(max) == greatest(C()) ? (C)0 : max; }
