// One thread computes V neighbouring elements of every output, which are row-major. Defined by elementwise.rs: ENTRY, V,
// RANK, Index, C (the compute type), N_INPUTS; PARAMS (a pointer per output and input), and per element or vector
// LOAD_VECTORS, READ(lane), BODY, WRITE(lane), STORE_VECTORS, READ_ONE, WRITE_ONE.

struct Places {
    u64 n;
    u32 extents[8];
    i64 strides[7][8];
};

struct Numbers {
    double numbers[16];
    u64 words[8];
};

#define NUMBER(i) (cast<C>(numbers.numbers[i]))
#define WORD(i) (numbers.words[i])

KERNEL __launch_bounds__(256) ENTRY(PARAMS const Places places, const Numbers numbers) {
    Index first = ((Index)blockIdx.x * 256 + threadIdx.x) * V;
    if (first >= places.n) return;
    i64 offset[N_INPUTS + 1] = {};
    Index rest = first;
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; axis--) {
        Index at = axis == 0 ? rest : rest % places.extents[axis];
        if (axis > 0) rest /= places.extents[axis];
#pragma unroll
        for (int input = 0; input < N_INPUTS; input++) offset[input] += (i64)at * places.strides[input][axis];
    }
    if (V == 1 || first + V <= places.n) {
        LOAD_VECTORS
        // Four neighbours share a block of random words. A body that reads none leaves no trace of this.
        Words drawn[V / 4 + 1];
#pragma unroll
        for (int block = 0; block < V / 4; block++) drawn[block] = philox(WORD(0), WORD(1), first / 4 + block);
#pragma unroll
        for (int lane = 0; lane < V; lane++) {
            u64 index = first + lane;
            u32 random = V % 4 == 0 ? drawn[lane / 4].at[lane % 4] : random_word(WORD(0), WORD(1), index);
            READ(lane)
            BODY
            WRITE(lane)
        }
        STORE_VECTORS
    } else {
        // The last elements of a tensor whose length is no multiple of V; only tensors of one axis have them.
        for (int lane = 0; first + lane < places.n; lane++) {
            u64 index = first + lane;
            u32 random = random_word(WORD(0), WORD(1), index);
            READ_ONE
            BODY
            WRITE_ONE
        }
    }
}
