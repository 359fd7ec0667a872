// Whole rows by their ids. Defined by select.rs: ENTRY, T (what is moved at a time: an element, or up to 16 bytes of
// neighbours), I (the type of the ids), Index.
//
// A thread moves EACH units that lie a block's width apart, so that its chains of an id and what it names overlap.

#define THREADS 256
#define EACH 4

struct Rows {
    // All units, those of a row, and the ids.
    u64 n, row_len, n_ids;
    // Steps of the tensor: from one set of rows to the next, from row to row, from unit to unit.
    i64 outer, step, inner;
    i64 id_stride;
    // The rows of a set.
    i64 extent;
};

KERNEL __launch_bounds__(THREADS) ENTRY(T* y, const T* x, const I* ids, const Rows rows, u8* cell, u64 call) {
    u64 first = (u64)blockIdx.x * (THREADS * EACH) + threadIdx.x;
    T values[EACH] = {};
#pragma unroll
    for (int each = 0; each < EACH; each++) {
        u64 unit = first + each * THREADS;
        if (unit >= rows.n) continue;
        Index row = (Index)unit / (Index)rows.row_len, col = (Index)unit % (Index)rows.row_len;
        Index before = row / (Index)rows.n_ids, place = row % (Index)rows.n_ids;
        i64 id = ids[(i64)place * rows.id_stride];
        if (id >= 0 && id < rows.extent) {
            values[each] = x[(i64)before * rows.outer + id * rows.step + (i64)col * rows.inner];
        } else if (col == 0) {
            fault((Note*)cell, call, place, id);
        }
    }
#pragma unroll
    for (int each = 0; each < EACH; each++) {
        if (first + each * THREADS < rows.n) y[first + each * THREADS] = values[each];
    }
}
