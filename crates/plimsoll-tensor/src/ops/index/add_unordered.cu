// Adds rows of a source to the rows that indices name by atomic additions, in whatever order threads come: no keys, no sort, and
// other bits each time where a row is named twice. Defined by cuda.rs: ENTRY, I (the type of the indices), T (a float that
// can be added so), Index, RANK. Neighbouring threads have neighbouring elements of a row.

KERNEL __launch_bounds__(256) ENTRY(
    T* y, const T* source, const I* indices, const Keys what, const Sums sums, u8* cell, u64 call
) {
    Index thread = (Index)blockIdx.x * 256 + threadIdx.x;
    if (thread >= sums.n * sums.width) return;
    Index place = thread / (Index)sums.width, rest = thread % (Index)sums.width;
    u64 key = key_of(indices, what, place, (Note*)cell, call, rest == 0);
    if (key >= sums.n_rows) return;
    Index before = rest / (Index)sums.row_len, col = rest % (Index)sums.row_len;
    T x = source[(i64)before * sums.outer + (i64)col * sums.inner + offset(sums, place)];
    atomicAdd(y + ((i64)before * sums.n_rows + (i64)key) * (i64)sums.row_len + col, x);
}
