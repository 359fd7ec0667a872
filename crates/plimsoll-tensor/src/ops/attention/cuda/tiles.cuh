// What the kernels for tensor cores share. A block has four warps, which own BANDS times 64 rows of one side of the scores
// (queries, or keys in the backward kernel's second use) in shared memory, and meets the other side in tiles of COLS rows,
// which are brought there one tile ahead. Defined by mod.rs: DEPTH and WIDTH (rounded up to 16), BANDS, COLS.
//
// How products are made is said in warps.cuh and group.cuh, of which one holds. Either way each warp has bands of 16 rows of
// the results, and the lanes have the fragments of m16n8k16.

#define WARPS 4
#define THREADS (WARPS * WARP)
#define ROWS (WARPS * BANDS * 16)

// A Hopper GPU multiplies whole tiles by its four warps together.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && DEPTH == 64 && WIDTH == 64 && COLS == 64 && !ADD_QUERIES
#define BY_GROUP 1
#else
#define BY_GROUP 0
#endif

// Goes through a warp's share of a tile of scores.
#define EACH_SCORE(band, tile8, part) \
    _Pragma("unroll") for (int band = 0; band < BANDS; band++) \
        _Pragma("unroll") for (int tile8 = 0; tile8 < COLS / 8; tile8++) \
            _Pragma("unroll") for (int part = 0; part < 4; part++)

// Two numbers as a pair of T's, the first in the low half.
#ifdef PLIMSOLL_EMULATED
DEVICE u32 pair(float low, float high) { return narrow<T>(low).bits | (u32)narrow<T>(high).bits << 16; }
#else
DEVICE u32 pair_of(float low, float high, f16) {
    u32 y; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low)); return y;
}
DEVICE u32 pair_of(float low, float high, bf16) {
    u32 y; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low)); return y;
}
DEVICE u32 pair(float low, float high) { return pair_of(low, high, T{}); }
#endif

