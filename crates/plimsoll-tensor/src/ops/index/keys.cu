// For each index its key: the number of the sum that it names. One that is out of range gets a key beyond all sums, which
// nobody adds to. Defined by cuda.rs: ENTRY, I (the type of the indices), Key, RANK.

struct Keys {
    u64 n;
    u32 extents[8];
    i64 index_strides[8];
    // How the keys grow along the axes of the index, and by the index itself.
    i64 key_strides[8];
    i64 step;
    i64 extent;
    u64 beyond;
};

KERNEL __launch_bounds__(256) ENTRY(Key* keys, const I* indices, const Keys what, u8* cell, u64 kind) {
    u64 element = (u64)blockIdx.x * 256 + threadIdx.x;
    if (element >= what.n) return;
    u64 rest = element;
    i64 at = 0, key = 0;
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; axis--) {
        u64 here = axis == 0 ? rest : rest % what.extents[axis];
        if (axis > 0) rest /= what.extents[axis];
        at += (i64)here * what.index_strides[axis];
        key += (i64)here * what.key_strides[axis];
    }
    i64 index = indices[at];
    bool is_good = index >= 0 && index < what.extent;
    if (!is_good) fault((Note*)cell, kind, index, what.extent);
    keys[element] = is_good ? (Key)(key + index * what.step) : (Key)what.beyond;
}
