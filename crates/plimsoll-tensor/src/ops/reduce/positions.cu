// The elements at one position per result (IS_PICK), or results put there: one thread per result.

struct Places {
    u64 n, extent;
    u64 few[8], reduced[8];
    i64 few_strides[8], position_strides[8], many_strides[8], reduced_strides[8];
    u32 few_rank, reduced_rank;
};

DEVICE i64 offset(u64 flat, u32 rank, const u64* extents, const i64* strides) {
    i64 offset = 0;
    for (u32 axis = rank; axis-- > 0;) {
        offset += (i64)(flat % extents[axis]) * strides[axis];
        flat /= extents[axis];
    }
    return offset;
}

KERNEL __launch_bounds__(256) ENTRY(T* few, T* many, const i64* positions, const Places places, Note* cell, u64 call) {
    u64 number = (u64)blockIdx.x * 256 + threadIdx.x;
    if (number >= places.n) return;
    i64 position = positions[offset(number, places.few_rank, places.few, places.position_strides)];
    if (position < 0 || (u64)position >= places.extent) {
        fault(cell, call, number, position);
        return;
    }
    i64 at_few = offset(number, places.few_rank, places.few, places.few_strides);
    i64 at_many = offset(number, places.few_rank, places.few, places.many_strides) +
                  offset((u64)position, places.reduced_rank, places.reduced, places.reduced_strides);
    if (IS_PICK) few[at_few] = many[at_many];
    else many[at_many] = few[at_few];
}
