// For each place of the index, the element that it names along an axis. Defined by gather.rs: ENTRY, T (as large as an
// element), I (the type of the indices), RANK, Index.

struct Places {
    u64 n;
    u32 extents[8];
    // None along the axis, where the index says how far to go.
    i64 x_strides[8];
    i64 index_strides[8];
    // The elements of the tensor along the axis, and from one to the next.
    i64 extent, step;
};

KERNEL __launch_bounds__(256) ENTRY(T* y, const T* x, const I* indices, const Places places, u8* cell, u64 call) {
    u64 element = (u64)blockIdx.x * 256 + threadIdx.x;
    if (element >= places.n) return;
    Index rest = (Index)element;
    i64 from = 0, at = 0;
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; axis--) {
        Index here = axis == 0 ? rest : rest % places.extents[axis];
        if (axis > 0) rest /= places.extents[axis];
        from += (i64)here * places.x_strides[axis];
        at += (i64)here * places.index_strides[axis];
    }
    i64 position = indices[at];
    if (position >= 0 && position < places.extent) {
        y[element] = x[from + position * places.step];
    } else {
        fault((Note*)cell, call, element, position);
        y[element] = (T)0;
    }
}
