// Moves elements from strided places to strided places, several tensors in one launch. Defined by moves.rs: ENTRY, T (what
// is moved at a time: an element, or up to 16 bytes of neighbours), Index, RANK, MOVES.
//
// Each move has blocks of its own. A thread moves EACH units that lie a block's width apart: neighbours in a warp touch
// neighbours in memory, and all loads of a thread are on their way before the first store.

#define THREADS 256
#define EACH 4

struct Move {
    const T* from;
    T* to;
    u64 n;
    u64 first_block;
    u32 extents[8];
    i64 from_strides[8];
    i64 to_strides[8];
};

struct Moves { Move at[MOVES]; };

KERNEL __launch_bounds__(THREADS) ENTRY(const Moves moves) {
    int number = 0;
    while (number + 1 < MOVES && blockIdx.x >= moves.at[number + 1].first_block) number++;
    const Move& move = moves.at[number];
    u64 first = (blockIdx.x - move.first_block) * (THREADS * EACH) + threadIdx.x;
    T values[EACH];
    i64 places[EACH];
#pragma unroll
    for (int each = 0; each < EACH; each++) {
        u64 unit = first + each * THREADS;
        if (unit >= move.n) continue;
        Index rest = (Index)unit;
        i64 from = 0, to = 0;
#pragma unroll
        for (int axis = RANK - 1; axis >= 0; axis--) {
            Index at = axis == 0 ? rest : rest % move.extents[axis];
            if (axis > 0) rest /= move.extents[axis];
            from += (i64)at * move.from_strides[axis];
            to += (i64)at * move.to_strides[axis];
        }
        values[each] = move.from[from];
        places[each] = to;
    }
#pragma unroll
    for (int each = 0; each < EACH; each++) {
        if (first + each * THREADS < move.n) move.to[places[each]] = values[each];
    }
}
