// What every kernel begins with: names of types, 16-bit floats, vectors, functions of floats, warps, random bits, faults.
//
// Kernels include no header: users have a driver and libraries, not always a toolkit. The same text is compiled by NVRTC
// for a GPU and, with PLIMSOLL_EMULATED, by a C++ compiler for the emulated one, whose own prelude stands before it.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

#define DEVICE static __device__ __forceinline__
#define KERNEL extern "C" __global__ void

// ---- Floats of 16 bits ----

struct f16 { u16 bits; };
struct bf16 { u16 bits; };

#ifdef PLIMSOLL_EMULATED
DEVICE float widen(f16 x) { return emulated_from_f16(x.bits); }
DEVICE u16 f16_bits(float x) { return emulated_to_f16(x); }
DEVICE u16 bf16_bits(float x) { return emulated_to_bf16(x); }
#else
DEVICE float widen(f16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
DEVICE u16 f16_bits(float x) { u16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
DEVICE u16 bf16_bits(float x) { u16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
#endif
DEVICE float widen(bf16 x) { return __int_as_float((int)x.bits << 16); }
DEVICE float widen(float x) { return x; }
DEVICE double widen(double x) { return x; }
DEVICE i64 widen(i64 x) { return x; }
DEVICE i32 widen(i32 x) { return x; }
DEVICE u8 widen(u8 x) { return x; }
DEVICE bool widen(bool x) { return x; }

// narrow<T>(x) rounds a number of T's compute type to T.
template <class T> struct Narrow { template <class C> static __device__ __forceinline__ T from(C x) { return (T)x; } };
template <> struct Narrow<f16> { static __device__ __forceinline__ f16 from(float x) { return {f16_bits(x)}; } };
template <> struct Narrow<bf16> { static __device__ __forceinline__ bf16 from(float x) { return {bf16_bits(x)}; } };
template <class T, class C> DEVICE T narrow(C x) { return Narrow<T>::from(x); }

// cast<T>(x) turns a number of one compute type into another by the rules of Rust's `as`: floats are rounded to the nearest,
// whole numbers wrap, floats become whole numbers by truncation, between the ends of the type and with zero for what is
// not a number. What is not zero is true.
template <class T> struct Cast {
    template <class F> static __device__ __forceinline__ T from(F x) { return (T)x; }
};
template <> struct Cast<bool> {
    template <class F> static __device__ __forceinline__ bool from(F x) { return x != (F)0; }
};
#define CAST_WHOLE(T, LEAST, GREATEST) \
    template <> struct Cast<T> { \
        template <class F> static __device__ __forceinline__ T from(F x) { return (T)x; } \
        template <class F> static __device__ __forceinline__ T within(F x) { \
            return x != x ? (T)0 : x <= (F)(LEAST) ? (T)(LEAST) : x >= (F)(GREATEST) ? (T)(GREATEST) : (T)x; \
        } \
        static __device__ __forceinline__ T from(float x) { return within(x); } \
        static __device__ __forceinline__ T from(double x) { return within(x); } \
    };
CAST_WHOLE(u8, 0, 255)
CAST_WHOLE(i32, -2147483647 - 1, 2147483647)
CAST_WHOLE(i64, -9223372036854775807ll - 1, 9223372036854775807ll)
#undef CAST_WHOLE
template <class T, class F> DEVICE T cast(F x) { return Cast<T>::from(x); }

// The type that numbers of a type are computed in.
template <class T> struct ComputeOf { typedef T type; };
template <> struct ComputeOf<f16> { typedef float type; };
template <> struct ComputeOf<bf16> { typedef float type; };
template <class T> using Compute = typename ComputeOf<T>::type;

// N neighbouring elements that are moved at once; as many bytes as N elements must be a power of two up to 16.
template <class T, int N> struct alignas(sizeof(T) * N) Vector { T at[N]; };

// ---- Functions of floats, one name for both widths ----

#define BOTH(name, single, wide) \
    DEVICE float name(float x) { return single(x); } \
    DEVICE double name(double x) { return wide(x); }
#define BOTH2(name, single, wide) \
    DEVICE float name(float x, float y) { return single(x, y); } \
    DEVICE double name(double x, double y) { return wide(x, y); }
namespace m {
BOTH(abs, ::fabsf, ::fabs) BOTH(exp, ::expf, ::exp) BOTH(expm1, ::expm1f, ::expm1) BOTH(log, ::logf, ::log)
BOTH(log1p, ::log1pf, ::log1p) BOTH(log2, ::log2f, ::log2) BOTH(log10, ::log10f, ::log10) BOTH(sqrt, ::sqrtf, ::sqrt)
BOTH(sin, ::sinf, ::sin) BOTH(cos, ::cosf, ::cos) BOTH(tan, ::tanf, ::tan) BOTH(asin, ::asinf, ::asin)
BOTH(acos, ::acosf, ::acos) BOTH(atan, ::atanf, ::atan) BOTH(sinh, ::sinhf, ::sinh) BOTH(cosh, ::coshf, ::cosh)
BOTH(tanh, ::tanhf, ::tanh) BOTH(erf, ::erff, ::erf) BOTH(floor, ::floorf, ::floor) BOTH(ceil, ::ceilf, ::ceil)
BOTH(trunc, ::truncf, ::trunc) BOTH(rint, ::rintf, ::rint)
BOTH2(pow, ::powf, ::pow) BOTH2(fmod, ::fmodf, ::fmod) BOTH2(atan2, ::atan2f, ::atan2) BOTH2(copysign, ::copysignf, ::copysign)
DEVICE float rsqrt(float x) { return 1.0f / ::sqrtf(x); }
DEVICE double rsqrt(double x) { return 1.0 / ::sqrt(x); }
DEVICE float fma(float x, float y, float z) { return ::fmaf(x, y, z); }
DEVICE double fma(double x, double y, double z) { return ::fma(x, y, z); }
template <class T> DEVICE bool is_nan(T x) { return x != x; }
template <class T> DEVICE bool is_finite(T x) { return x - x == (T)0; }
// The larger and the smaller of two numbers; one that is not a number wins.
template <class T> DEVICE T max(T x, T y) { return x > y || x != x ? x : y; }
template <class T> DEVICE T min(T x, T y) { return x < y || x != x ? x : y; }
template <class T> DEVICE T square(T x) { return x * x; }
// Minus one, zero or one; zero for what is not a number.
template <class T> DEVICE T sign(T x) { return (T)((x > (T)0) - (x < (T)0)); }
// 1 / (1 + exp(-x)). The quick division is wrong by one unit in the last place at most; zero for huge divisors is right.
DEVICE float sigmoid(float x) { return __fdividef(1.0f, 1.0f + ::expf(-x)); }
DEVICE double sigmoid(double x) { return 1.0 / (1.0 + ::exp(-x)); }
// Quotients; those of integers by zero are zero. `rem` is what a floored division leaves, with the sign of the divisor.
template <class T> DEVICE T div(T x, T y) { return y == (T)0 ? (T)0 : (T)(x / y); }
DEVICE float div(float x, float y) { return x / y; }
DEVICE double div(double x, double y) { return x / y; }
template <class T> DEVICE T floor_div(T x, T y) {
    T quotient = div(x, y), rest = (T)(x - quotient * y);
    return (T)(quotient - (y != (T)0 && rest != (T)0 && (rest < (T)0) != (y < (T)0)));
}
template <class T> DEVICE T rem(T x, T y) { return (T)(x - floor_div(x, y) * y); }
template <class T> DEVICE T float_rem(T x, T y) {
    T rest = fmod(x, y);
    return rest != (T)0 && (rest < (T)0) != (y < (T)0) ? rest + y : rest;
}
DEVICE float rem(float x, float y) { return float_rem(x, y); }
DEVICE double rem(double x, double y) { return float_rem(x, y); }
DEVICE float floor_div(float x, float y) { return y == 0.0f ? x / y : rint((x - rem(x, y)) / y); }
DEVICE double floor_div(double x, double y) { return y == 0.0 ? x / y : rint((x - rem(x, y)) / y); }
}
#undef BOTH
#undef BOTH2

// ---- Warps and blocks ----

#define WARP 32
#define ALL_LANES 0xffffffffu

template <class T> DEVICE T lane_xor(T x, int mask) { return __shfl_xor_sync(ALL_LANES, x, mask); }

// The sum or the extreme over the lanes of a warp, in a fixed order; every lane gets it.
template <class T> DEVICE T warp_sum(T x) {
    for (int mask = WARP / 2; mask > 0; mask /= 2) x += lane_xor(x, mask);
    return x;
}
template <class T> DEVICE T warp_max(T x) {
    for (int mask = WARP / 2; mask > 0; mask /= 2) x = m::max(x, lane_xor(x, mask));
    return x;
}
template <class T> DEVICE T warp_min(T x) {
    for (int mask = WARP / 2; mask > 0; mask /= 2) x = m::min(x, lane_xor(x, mask));
    return x;
}

// The sum over the threads of a block of up to 1024 threads in a row, in a fixed order; every thread gets it. `scratch`
// has room for 32 numbers in shared memory; the number of threads is a multiple of 32. Ends with a barrier.
template <class T> DEVICE T block_sum(T x, T* scratch) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_sum(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = warp_sum(lane < warps ? scratch[lane] : (T)0);
    __syncthreads();
    return x;
}
template <class T> DEVICE T block_max(T x, T* scratch) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_max(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = warp_max(scratch[lane < warps ? lane : 0]);
    __syncthreads();
    return x;
}

// ---- Shared memory that is asked for at the launch ----

// Declares `name` as a pointer to it, aligned to 1024 bytes.
#ifndef PLIMSOLL_EMULATED
#define DYNAMIC_SHARED(type, name) \
    extern __shared__ __align__(1024) u8 dynamic_shared[]; \
    type* name = reinterpret_cast<type*>(dynamic_shared)
#endif

// ---- Tensor cores, and copies from global to shared memory that go on by themselves ----
//
// All lanes of a warp call these together, but for the copies. Fragments are those of the PTX ISA for m16n8k16: with
// g = lane / 4 and t = lane % 4, `a` holds of a's rows g, g + 8, g, g + 8 the columns 2t and 2t + 1, 8 further on in the last
// two; `b` of column g the rows 2t and 2t + 1, then 8 further on; `d` of row g, then g + 8, the columns 2t and 2t + 1.

#ifndef PLIMSOLL_EMULATED

DEVICE u32 shared_address(const void* at) {
    u32 address;
    asm("{ .reg .u64 a; cvta.to.shared.u64 a, %1; cvt.u32.u64 %0, a; }" : "=r"(address) : "l"(at));
    return address;
}

// d += a · b with a of 16 × 16 and b of 16 × 8 in a type of 16 bits, of which the last argument is any value.
#define MMA(type, name) \
    DEVICE void mma_16x8x16(float d[4], const u32 a[4], const u32 b[2], type) { \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 " \
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    }
MMA(f16, "f16") MMA(bf16, "bf16")
#undef MMA

// Four matrices of 8 × 8 elements of 16 bits. Lane 8i + r names row r of matrix i, 16 bytes in shared memory; of matrix i
// each lane gets in d[i] the elements 2t and 2t + 1 of row g; transposed, those of column g.
DEVICE void ldmatrix_x4(u32 d[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void ldmatrix_x4_transposed(u32 d[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(shared_address(row)) : "memory");
}

// Starts to copy 16 bytes, or to write as many zeros where they are not wanted. What a thread has started since its last
// commit is a group; it waits until all but the last N groups are done, and others see them after a barrier.
DEVICE void copy_async_16(void* shared, const void* global, bool wanted = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(shared)), "l"(global), "r"(wanted ? 16 : 0) : "memory");
}
DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEVICE void copy_async_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }

#endif

// ---- Tensor cores by four warps together, on Hopper GPUs ----

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Names 64 rows of 64 elements of 16 bits in shared memory, of which an address that is a multiple of 1024 bytes begins the
// first; the 16-byte pieces of a row are swapped: piece p of row r lies where p ^ r % 8 would. Of the first row of eight, the
// address may be that of another 16 elements.
template <class T> DEVICE u64 swapped_tile(const T* at) {
    // Eight rows, 1024 bytes, from one group of rows to the next; pieces swapped in groups of eight.
    return (u64)((shared_address(at) & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
// What is added to such a name for what lies so many elements further on.
DEVICE u64 step_of(int n_elements) { return n_elements * 2 / 16; }

// Before the first product, and whenever its operands in registers were written; then products, which go on by themselves
// until they are finished.
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_finish() {
    asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#define SUMS_32 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define SUMS_8(from) \
    "+f"(d[from]), "+f"(d[from + 1]), "+f"(d[from + 2]), "+f"(d[from + 3]), "+f"(d[from + 4]), "+f"(d[from + 5]), \
    "+f"(d[from + 6]), "+f"(d[from + 7])

// The first: d = a · bᵀ with a and b of 64 × 16 elements in shared memory, or d += a · bᵀ. The second: d += a · b with a of
// 64 × 16 in registers, 16 rows for each warp, and b of 16 × 64 in shared memory. Of each 16 × 8 elements of d and 16 × 16 of
// a, a lane has the same as for m16n8k16. The last argument is any value of the elements' type.
#define WGMMA(type, name) \
    DEVICE void wgmma_64x64x16(float d[32], u64 a, u64 b, int adds, type) { \
        asm volatile("{ .reg .pred adds; setp.ne.b32 adds, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " " \
                     SUMS_32 ", %32, %33, adds, 1, 1, 0, 0; }" \
                     : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24) : "l"(a), "l"(b), "r"(adds)); \
    } \
    DEVICE void wgmma_64x64x16_columns(float d[32], const u32 a[4], u64 b, type) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " " \
                     SUMS_32 ", {%32, %33, %34, %35}, %36, 1, 1, 1, 1;" \
                     : SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
    }
WGMMA(f16, "f16") WGMMA(bf16, "bf16")
#undef WGMMA
#undef SUMS_8
#undef SUMS_32

#endif

// ---- Many tensors in one launch, and tensors whose elements lie anyhow. See the ops' tables.rs ----

// Entry i has the blocks from starts[i] on.
template <class E, int N> struct Table {
    u64 n;
    u32 starts[N];
    E entries[N];
};

// The entry that a block works on.
template <class E, int N> DEVICE u32 entry_of(const Table<E, N>& table, u32 block) {
    u32 low = 0, high = (u32)table.n;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (table.starts[middle] <= block) low = middle;
        else high = middle;
    }
    return low;
}

struct Strided {
    u64 rank;
    u64 extents[8];
    i64 strides[8];
};

// Where an element lies, given its number in row-major order.
DEVICE i64 place_of(const Strided& strided, u64 index) {
    i64 offset = 0;
    for (int axis = (int)strided.rank - 1; axis >= 0; axis--) {
        offset += (i64)(index % strided.extents[axis]) * strided.strides[axis];
        index /= strided.extents[axis];
    }
    return offset;
}

// ---- Faults: values that a kernel refuses. See fault.rs ----

struct Note { u64 words[4]; };

// Notes that element `position` of what a call was given is refused, unless an earlier call or a lower position is noted. Each
// word begins with both and ends with a part of the value, so that the least of each is a part of the same fault.
DEVICE void fault(Note* cell, u64 call, u64 position, i64 value) {
    const u64 last = (1ull << 36) - 1;
    u64 key = call << 36 | (position < last ? position : last);
    for (int part = 0; part < 4; part++) {
        u64 mine = key << 16 | ((u64)value >> (16 * part) & 0xffff);
        u64 seen = ((volatile u64*)cell->words)[part];
        while (seen == 0 || mine < seen) {
            u64 found = atomicCAS(&cell->words[part], seen, mine);
            if (found == seen) break;
            seen = found;
        }
    }
}

// Whether a kernel before has noted a fault; there may be no cell. Cells are memory of the host, so they are read through the
// cache: once for many threads, and not at all again in a loop.
DEVICE bool is_noted(const Note* cell) { return cell && cell->words[0] != 0; }

// ---- Random bits by counting: Philox4x32-10, the same bits as on the host ----

struct Words { u32 at[4]; };

// All 64 bits of a product, by one instruction: left to itself the compiler multiplies wide numbers.
#ifdef PLIMSOLL_EMULATED
DEVICE u64 wide_product(u32 x, u32 y) { return (u64)x * y; }
#else
DEVICE u64 wide_product(u32 x, u32 y) { u64 z; asm("mul.wide.u32 %0, %1, %2;" : "=l"(z) : "r"(x), "r"(y)); return z; }
#endif

DEVICE Words philox(u64 seed, u64 draw, u64 block) {
    u32 c0 = (u32)block, c1 = (u32)(block >> 32), c2 = (u32)draw, c3 = (u32)(draw >> 32);
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        u64 p0 = wide_product(0xd2511f53u, c0), p1 = wide_product(0xcd9e8d57u, c2);
        c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
        c1 = (u32)p1;
        c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
        c3 = (u32)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return {{c0, c1, c2, c3}};
}

// The word of an element of a draw.
DEVICE u32 random_word(u64 seed, u64 draw, u64 element) { return philox(seed, draw, element / 4).at[element % 4]; }
