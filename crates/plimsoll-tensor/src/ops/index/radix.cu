// One pass of a stable sort of keys with their places, by eight bits of the key. Defined by cuda.rs: ENTRY, Key (of keys,
// places and counts), STEP (COUNT, SUM or PLACE), IS_FIRST (whether the places are still the elements' numbers).
//
// Elements are taken in tiles. COUNT counts each tile's digits into a table, all tiles of digit 0 first; SUM turns the
// counts into where each tile's elements of each digit go; PLACE puts them there. An element's rank among those of its
// digit in a tile follows from the order of the elements alone, so the result is the same whoever comes first.

#define COUNT 0
#define SUM 1
#define PLACE 2
#define THREADS 256
#define WARPS (THREADS / WARP)
#define DIGITS 256
#define TILE 1024
#define ROUNDS (TILE / THREADS)

#define DIGIT(key) ((u32)((key) >> shift) & (DIGITS - 1))

#if STEP == COUNT
KERNEL __launch_bounds__(THREADS) ENTRY(Key* table, const Key* keys, u64 n, u32 shift) {
    __shared__ u32 counts[DIGITS];
    counts[threadIdx.x] = 0;
    __syncthreads();
    for (int round = 0; round < ROUNDS; round++) {
        u64 at = (u64)blockIdx.x * TILE + round * THREADS + threadIdx.x;
        if (at < n) atomicAdd(&counts[DIGIT(keys[at])], 1u);
    }
    __syncthreads();
    table[(u64)threadIdx.x * gridDim.x + blockIdx.x] = counts[threadIdx.x];
}
#elif STEP == SUM
// One block; each thread has a stretch of the table.
KERNEL __launch_bounds__(THREADS) ENTRY(Key* table, u64 len) {
    __shared__ Key sums[WARPS];
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u64 stretch = (len + THREADS - 1) / THREADS, first = threadIdx.x * stretch;
    u64 end = first + stretch < len ? first + stretch : len;
    Key sum = 0;
    for (u64 at = first; at < end; at++) sum += table[at];
    Key through = sum;
    for (u32 distance = 1; distance < WARP; distance *= 2) {
        Key before = __shfl_up_sync(ALL_LANES, through, distance);
        if (lane >= distance) through += before;
    }
    if (lane == WARP - 1) sums[warp] = through;
    __syncthreads();
    Key start = through - sum;
    for (u32 other = 0; other < warp; other++) start += sums[other];
    for (u64 at = first; at < end; at++) {
        Key count = table[at];
        table[at] = start;
        start += count;
    }
}
#else
KERNEL __launch_bounds__(THREADS) ENTRY(
    Key* keys_out, Key* places_out, const Key* keys, const Key* places, const Key* table, u64 n, u32 shift
) {
    // First how many elements of each digit the rounds of a warp have had, then where its first one goes.
    __shared__ Key starts[WARPS][DIGITS];
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, below = (1u << lane) - 1;
    for (int other = 0; other < WARPS; other++) starts[other][threadIdx.x] = 0;
    __syncthreads();
    // A warp has neighbouring elements, so that warps, rounds and lanes count the elements in order.
    u64 first = (u64)blockIdx.x * TILE + warp * (TILE / WARPS) + lane;
    Key mine[ROUNDS], ranks[ROUNDS];
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        bool is_there = first + round * WARP < n;
        mine[round] = is_there ? keys[first + round * WARP] : (Key)0;
        u32 digit = DIGIT(mine[round]);
        // The lanes with the same digit.
        u32 peers = __ballot_sync(ALL_LANES, is_there);
        for (int bit = 0; bit < 8; bit++) {
            u32 ones = __ballot_sync(ALL_LANES, digit >> bit & 1);
            peers &= digit >> bit & 1 ? ones : ~ones;
        }
        ranks[round] = starts[warp][digit] + __popc(peers & below);
        __syncwarp();
        if (is_there && (peers & below) == 0) starts[warp][digit] += __popc(peers);
        __syncwarp();
    }
    __syncthreads();
    Key start = table[(u64)threadIdx.x * gridDim.x + blockIdx.x];
    for (int other = 0; other < WARPS; other++) {
        Key count = starts[other][threadIdx.x];
        starts[other][threadIdx.x] = start;
        start += count;
    }
    __syncthreads();
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        u64 at = first + round * WARP;
        if (at >= n) continue;
        Key to = starts[warp][DIGIT(mine[round])] + ranks[round];
        keys_out[to] = mine[round];
        places_out[to] = IS_FIRST ? (Key)at : places[at];
    }
}
#endif
