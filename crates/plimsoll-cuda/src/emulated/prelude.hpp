// What the emulated GPU puts before a kernel's text: the words of CUDA, as C++ for the host. No header is included, because
// most of the time that a small kernel takes to be compiled would go there.
//
// One thread of a block runs at a time. Where it has to wait for others it calls back into the machine (machine.rs), which
// goes on with another one. An operation of a warp is a meeting: each lane brings a request that lies in its own frame, and
// the last one to come answers all of them.

#define PLIMSOLL_EMULATED 1

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// C++ wants this before other specifiers, CUDA takes it after `__shared__`, too.
#define alignas(n) __align__(n)
// One block runs at a time, so that its shared memory can be static. It has a section of its own, for the machine to find it
// (g++ before 13 leaves that out in function templates; then the machine does not spoil it).
#define __shared__ static __attribute__((section("emulated_shared")))

typedef decltype(sizeof(0)) size_t;

// ---- Vectors of CUDA ----

struct int2 { int x, y; };
struct uint2 { unsigned x, y; };
struct uint3 { unsigned x, y, z; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) double2 { double x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline double2 make_double2(double x, double y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// ---- The machine; machine.rs has the same structure ----

struct Emulated {
    uint3 thread, block, threads, blocks;
    unsigned char* dynamic_shared;
    unsigned long long run;
    void* machine;
    void (*barrier)(void* machine, unsigned line);
    void (*refuse)(void* machine, const char* what, unsigned line);
    void (*meet)(void* machine, const char* name, bool (*answer)(void** requests), unsigned lanes, void* request);
};
static Emulated emulated;

#define threadIdx emulated.thread
#define blockIdx emulated.block
#define blockDim emulated.threads
#define gridDim emulated.blocks
static const int warpSize = 32;

#define __syncthreads() emulated.barrier(emulated.machine, __LINE__)

static inline unsigned emulated_thread() { return threadIdx.x + blockDim.x * threadIdx.y; }
static inline unsigned emulated_lane() { return emulated_thread() % 32; }
template <class R> static inline void emulated_meet(const char* name, bool (*answer)(void**), unsigned lanes, R* request) {
    emulated.meet(emulated.machine, name, answer, lanes, request);
}

// What the compiler puts before accesses (-fsanitize) calls these when an address or an index is wrong. Neither returns.
struct EmulatedPlace { const char* file; unsigned line, column; };
extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1(EmulatedPlace* place, size_t address) {
    emulated.refuse(emulated.machine, address ? "uses an address that its type is not aligned to" : "uses a null pointer", place->line);
}
extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_out_of_bounds(EmulatedPlace* place, size_t) {
    emulated.refuse(emulated.machine, "uses an index beyond its array", place->line);
}

static inline void __threadfence() {}
static inline void __threadfence_block() {}

// ---- Operations of a warp. A request is null where the lane takes no part or has ended; false means that it must ----

static inline bool emulated_whole(void** requests) {
    for (int lane = 0; lane < 32; lane++)
        if (!requests[lane]) return false;
    return true;
}

static bool emulated_nothing(void**) { return true; }
static inline void __syncwarp(unsigned lanes = 0xffffffffu) {
    int nothing;
    emulated_meet("__syncwarp", emulated_nothing, lanes, &nothing);
}

template <class T> struct EmulatedShuffle { T mine, got; int from; };
template <class T> static bool emulated_shuffle(void** requests) {
    for (int lane = 0; lane < 32; lane++) {
        auto request = (EmulatedShuffle<T>*)requests[lane];
        if (!request) continue;
        auto giver = (EmulatedShuffle<T>*)requests[request->from];
        // What a lane that is not there would give is undefined; all bits set shows that it was used.
        if (giver) request->got = giver->mine;
        else __builtin_memset(&request->got, 0xff, sizeof(T));
    }
    return true;
}
template <class T> static inline T emulated_shuffled(const char* name, unsigned lanes, T x, int from) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    EmulatedShuffle<T> request = {x, x, from};
    emulated_meet(name, emulated_shuffle<T>, lanes, &request);
    return request.got;
}
// Groups of `width` lanes exchange among themselves; whoever would reach beyond gets what it gave.
template <class T> static inline T __shfl_sync(unsigned lanes, T x, int from, int width = 32) {
    int lane = emulated_lane();
    return emulated_shuffled("__shfl_sync", lanes, x, lane / width * width + (from & (width - 1)));
}
template <class T> static inline T __shfl_xor_sync(unsigned lanes, T x, int mask, int width = 32) {
    int lane = emulated_lane(), from = lane ^ mask;
    return emulated_shuffled("__shfl_xor_sync", lanes, x, from < (lane / width + 1) * width ? from : lane);
}
template <class T> static inline T __shfl_down_sync(unsigned lanes, T x, unsigned delta, int width = 32) {
    int lane = emulated_lane(), from = lane + delta;
    return emulated_shuffled("__shfl_down_sync", lanes, x, from < (lane / width + 1) * width ? from : lane);
}
template <class T> static inline T __shfl_up_sync(unsigned lanes, T x, unsigned delta, int width = 32) {
    int lane = emulated_lane(), from = lane - (int)delta;
    return emulated_shuffled("__shfl_up_sync", lanes, x, from >= lane / width * width ? from : lane);
}

struct EmulatedVote { bool mine; unsigned yes, voters; };
static bool emulated_count(void** requests) {
    unsigned yes = 0, voters = 0;
    for (int lane = 0; lane < 32; lane++) {
        auto vote = (EmulatedVote*)requests[lane];
        if (vote) voters |= 1u << lane;
        if (vote && vote->mine) yes |= 1u << lane;
    }
    for (int lane = 0; lane < 32; lane++) {
        auto vote = (EmulatedVote*)requests[lane];
        if (vote) vote->yes = yes, vote->voters = voters;
    }
    return true;
}
static inline EmulatedVote emulated_vote(const char* name, unsigned lanes, bool mine) {
    EmulatedVote vote = {mine, 0, 0};
    emulated_meet(name, emulated_count, lanes, &vote);
    return vote;
}
static inline unsigned __ballot_sync(unsigned lanes, int mine) { return emulated_vote("__ballot_sync", lanes, mine).yes; }
static inline int __any_sync(unsigned lanes, int mine) { return emulated_vote("__any_sync", lanes, mine).yes != 0; }
static inline int __all_sync(unsigned lanes, int mine) {
    EmulatedVote vote = emulated_vote("__all_sync", lanes, mine);
    return vote.yes == vote.voters;
}

// ---- Atomic operations: nobody else runs meanwhile ----

template <class T> struct EmulatedSame { typedef T type; };
#define EMULATED_ATOMIC(name, combined) \
    template <class T> static inline T name(T* at, typename EmulatedSame<T>::type x) { \
        T old = *at; \
        *at = combined; \
        return old; \
    }
EMULATED_ATOMIC(atomicAdd, old + x)
EMULATED_ATOMIC(atomicSub, old - x)
EMULATED_ATOMIC(atomicMax, old < x ? x : old)
EMULATED_ATOMIC(atomicMin, x < old ? x : old)
EMULATED_ATOMIC(atomicExch, x)
EMULATED_ATOMIC(atomicOr, old | x)
EMULATED_ATOMIC(atomicAnd, old & x)
EMULATED_ATOMIC(atomicXor, old ^ x)
template <class T> static inline T atomicCAS(T* at, typename EmulatedSame<T>::type old, typename EmulatedSame<T>::type x) {
    T found = *at;
    if (found == old) *at = x;
    return found;
}

// ---- Bits ----

template <class T> static inline T __ldg(const T* at) { return *at; }
template <class To, class From> static inline To emulated_bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To y;
    __builtin_memcpy(&y, &x, sizeof(y));
    return y;
}
static inline float __int_as_float(int x) { return emulated_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }
static inline int __float_as_int(float x) { return emulated_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
static inline double __longlong_as_double(long long x) { return emulated_bits<double>(x); }
static inline long long __double_as_longlong(double x) { return emulated_bits<long long>(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int bit = 0; bit < 32; bit++) y |= (x >> bit & 1) << (31 - bit);
    return y;
}
static inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned)((unsigned long long)x * y >> 32); }
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}

// Bits of f16 to a float: the exponent's bias differs by 112, and multiplying settles subnormal numbers, too.
static inline float emulated_from_f16(unsigned short bits) {
    unsigned sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
    if (rest >= 0x7c00) return __uint_as_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    return __uint_as_float(sign | __float_as_uint(__uint_as_float(rest << 13) * 0x1p112f));
}
// A float to the nearest f16, the even one of two; what is not a number stays so.
static inline unsigned short emulated_to_f16(float x) {
    unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return sign | 0x7e00u | (rest >> 13 & 0x3ffu);
    if (rest >= 0x477ff000u) return sign | 0x7c00u;
    // One half has the least subnormal f16 as the unit of its last place, so that adding it rounds.
    if (rest < 0x38800000u) return sign | (__float_as_uint(__uint_as_float(rest) + 0.5f) - 0x3f000000u);
    return sign | (rest + 0xfffu + (rest >> 13 & 1) - 0x38000000u) >> 13;
}
static inline unsigned short emulated_to_bf16(float x) {
    unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return bits >> 16 | 0x40u;
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

// ---- What prelude.cuh has in PTX: shared memory of a launch, tensor cores, copies that go on by themselves ----

#define DYNAMIC_SHARED(type, name) type* name = (type*)emulated.dynamic_shared

struct EmulatedProduct { float* d; const unsigned* a; const unsigned* b; };
template <class T> static inline float emulated_half(unsigned pair, int which) {
    return widen(T{(unsigned short)(pair >> 16 * which)});
}
template <class T> static bool emulated_mma(void** requests) {
    if (!emulated_whole(requests)) return false;
    auto lanes = (EmulatedProduct**)requests;
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8; column++) {
            float sum = 0;
            for (int k = 0; k < 16; k++) {
                unsigned a = lanes[row % 8 * 4 + k % 8 / 2]->a[row / 8 + k / 8 * 2], b = lanes[column * 4 + k % 8 / 2]->b[k / 8];
                sum += emulated_half<T>(a, k % 2) * emulated_half<T>(b, k % 2);
            }
            lanes[row % 8 * 4 + column / 2]->d[row / 8 * 2 + column % 2] += sum;
        }
    return true;
}
template <class T> static inline void mma_16x8x16(float d[4], const unsigned a[4], const unsigned b[2], T) {
    EmulatedProduct product = {d, a, b};
    emulated_meet("mma_16x8x16", emulated_mma<T>, 0xffffffffu, &product);
}

struct EmulatedRows { unsigned* d; const unsigned short* row; };
template <bool TRANSPOSED> static bool emulated_ldmatrix(void** requests) {
    if (!emulated_whole(requests)) return false;
    auto lanes = (EmulatedRows**)requests;
    for (int lane = 0; lane < 32; lane++)
        for (int matrix = 0; matrix < 4; matrix++) {
            int g = lane / 4, t = lane % 4;
            unsigned short low = TRANSPOSED ? lanes[matrix * 8 + 2 * t]->row[g] : lanes[matrix * 8 + g]->row[2 * t];
            unsigned short high = TRANSPOSED ? lanes[matrix * 8 + 2 * t + 1]->row[g] : lanes[matrix * 8 + g]->row[2 * t + 1];
            lanes[lane]->d[matrix] = (unsigned)high << 16 | low;
        }
    return true;
}
static inline void ldmatrix_x4(unsigned d[4], const void* row) {
    EmulatedRows rows = {d, (const unsigned short*)row};
    emulated_meet("ldmatrix_x4", emulated_ldmatrix<false>, 0xffffffffu, &rows);
}
static inline void ldmatrix_x4_transposed(unsigned d[4], const void* row) {
    EmulatedRows rows = {d, (const unsigned short*)row};
    emulated_meet("ldmatrix_x4_transposed", emulated_ldmatrix<true>, 0xffffffffu, &rows);
}

// A copy is done when it is waited for, and what it will write is spoilt until then, so that a missing wait shows.
struct EmulatedCopy { void* to; const void* from; int group; };
struct EmulatedCopies { unsigned long long run; int n, group; EmulatedCopy at[128]; };
static EmulatedCopies emulated_copies[1024];

static inline EmulatedCopies& emulated_own_copies() {
    EmulatedCopies& copies = emulated_copies[emulated_thread()];
    if (copies.run != emulated.run) copies.run = emulated.run, copies.n = copies.group = 0;
    return copies;
}
// Does the copies of groups before that one.
static void emulated_copy(EmulatedCopies& copies, int group) {
    int n = 0;
    for (int i = 0; i < copies.n; i++) {
        EmulatedCopy copy = copies.at[i];
        if (copy.group >= group) copies.at[n++] = copy;
        else if (copy.from) __builtin_memcpy(copy.to, copy.from, 16);
        else __builtin_memset(copy.to, 0, 16);
    }
    copies.n = n;
}
static inline void copy_async_16(void* shared, const void* global, bool wanted = true) {
    if (((size_t)shared | (size_t)global) % 16)
        emulated.refuse(emulated.machine, "gives copy_async_16 an address that is not a multiple of 16", __LINE__);
    EmulatedCopies& copies = emulated_own_copies();
    // Copies may be done early.
    if (copies.n == 128) emulated_copy(copies, copies.group + 1);
    __builtin_memset(shared, 0xff, 16);
    copies.at[copies.n++] = {shared, wanted ? global : nullptr, copies.group};
}
static inline void copy_async_commit() { emulated_own_copies().group++; }
template <int N> static inline void copy_async_wait() {
    EmulatedCopies& copies = emulated_own_copies();
    emulated_copy(copies, copies.group - N);
}

// ---- Functions of numbers ----

#define EMULATED_BOTH(name) \
    extern "C" float name##f(float); \
    extern "C" double name(double);
#define EMULATED_BOTH2(name) \
    extern "C" float name##f(float, float); \
    extern "C" double name(double, double);
EMULATED_BOTH(fabs) EMULATED_BOTH(exp) EMULATED_BOTH(exp2) EMULATED_BOTH(expm1) EMULATED_BOTH(log) EMULATED_BOTH(log1p)
EMULATED_BOTH(log2) EMULATED_BOTH(log10) EMULATED_BOTH(sqrt) EMULATED_BOTH(cbrt) EMULATED_BOTH(sin) EMULATED_BOTH(cos)
EMULATED_BOTH(tan) EMULATED_BOTH(asin) EMULATED_BOTH(acos) EMULATED_BOTH(atan) EMULATED_BOTH(sinh) EMULATED_BOTH(cosh)
EMULATED_BOTH(tanh) EMULATED_BOTH(asinh) EMULATED_BOTH(acosh) EMULATED_BOTH(atanh) EMULATED_BOTH(erf) EMULATED_BOTH(erfc)
EMULATED_BOTH(lgamma) EMULATED_BOTH(floor) EMULATED_BOTH(ceil) EMULATED_BOTH(trunc) EMULATED_BOTH(rint)
EMULATED_BOTH(round) EMULATED_BOTH2(pow) EMULATED_BOTH2(fmod) EMULATED_BOTH2(atan2) EMULATED_BOTH2(copysign)
EMULATED_BOTH2(fmin) EMULATED_BOTH2(fmax) EMULATED_BOTH2(hypot)
#undef EMULATED_BOTH
#undef EMULATED_BOTH2
extern "C" float fmaf(float, float, float);
extern "C" double fma(double, double, double);
extern "C" float ldexpf(float, int);
extern "C" double ldexp(double, int);
extern "C" float frexpf(float, int*);
extern "C" double frexp(double, int*);

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float __expf(float x) { return expf(x); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline float __powf(float x, float y) { return powf(x, y); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline double __dmul_rn(double x, double y) { return x * y; }
static inline double __dadd_rn(double x, double y) { return x + y; }

#define EMULATED_EXTREMES(type) \
    static inline type min(type x, type y) { return y < x ? y : x; } \
    static inline type max(type x, type y) { return x < y ? y : x; }
EMULATED_EXTREMES(int) EMULATED_EXTREMES(unsigned) EMULATED_EXTREMES(long long) EMULATED_EXTREMES(unsigned long long)
EMULATED_EXTREMES(long) EMULATED_EXTREMES(unsigned long)
#undef EMULATED_EXTREMES
static inline float min(float x, float y) { return fminf(x, y); }
static inline float max(float x, float y) { return fmaxf(x, y); }
static inline double min(double x, double y) { return fmin(x, y); }
static inline double max(double x, double y) { return fmax(x, y); }
extern "C" int abs(int);
extern "C" long long llabs(long long);

// ---- How the machine comes in ----

template <int... I> struct EmulatedIndices {};
template <int N, int... I> struct EmulatedUpTo : EmulatedUpTo<N - 1, N - 1, I...> {};
template <int... I> struct EmulatedUpTo<0, I...> { typedef EmulatedIndices<I...> type; };
template <class... A, int... I> static inline void emulated_call(void (*kernel)(A...), void** params, EmulatedIndices<I...>) {
    kernel(*(A*)params[I]...);
}
template <class... A> static inline void emulated_start(void (*kernel)(A...), void** params) {
    emulated_call(kernel, params, typename EmulatedUpTo<sizeof...(A)>::type());
}

extern "C" __attribute__((weak, visibility("hidden"))) unsigned char __start_emulated_shared[], __stop_emulated_shared[];

#define EMULATED_EXPORT extern "C" __attribute__((visibility("default")))
#define EMULATED_EXPORTS(kernel) \
    EMULATED_EXPORT void emulated_run(void** params) { emulated_start(kernel, params); } \
    EMULATED_EXPORT Emulated* emulated_state() { return &emulated; } \
    EMULATED_EXPORT unsigned char* emulated_shared_start() { return __start_emulated_shared; } \
    EMULATED_EXPORT unsigned char* emulated_shared_end() { return __stop_emulated_shared; }
