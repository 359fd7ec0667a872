// Adds rows of a source to the rows that sorted keys name, in the order of their places. Defined by cuda.rs: ENTRY, T, V
// (how many neighbours of a row a thread adds), Key, Index, RANK (the axes of the places at the source).
//
// Each place of the sorted keys has threads for its row; those of a key's first place make the whole sum, all others have
// nothing to do. So the bits do not depend on who comes first, and rows that no key names are not touched.

#define EACH 8

KERNEL __launch_bounds__(256) ENTRY(T* y, const T* source, const Key* keys, const Key* places, const Sums sums) {
    typedef Vector<T, V> Group;
    Index thread = (Index)blockIdx.x * 256 + threadIdx.x;
    if (thread >= sums.n * sums.width) return;
    Index first = thread / (Index)sums.width, rest = thread % (Index)sums.width;
    Key key = keys[first];
    if (key >= sums.n_rows || (first > 0 && keys[first - 1] == key)) return;
    Index before = rest / (Index)sums.row_len, group = rest % (Index)sums.row_len;
    const T* from = source + (i64)before * sums.outer + (i64)group * sums.inner;
    Group* to = (Group*)y + ((i64)before * sums.n_rows + (i64)key) * (i64)sums.row_len + group;
    Group old = *to;
    Compute<T> total[V];
#pragma unroll
    for (int at = 0; at < V; at++) total[at] = widen(old.at[at]);
    // Several rows are on their way at a time; they are added in order.
    for (u64 next = first;; next += EACH) {
        Group rows[EACH];
        int n_rows = 0;
#pragma unroll
        for (int each = 0; each < EACH; each++) {
            if (next + each < sums.n && keys[next + each] == key) {
                rows[each] = *(const Group*)(from + offset(sums, places[next + each]));
                n_rows = each + 1;
            }
        }
#pragma unroll
        for (int each = 0; each < EACH; each++) {
            if (each >= n_rows) break;
#pragma unroll
            for (int at = 0; at < V; at++) total[at] += widen(rows[each].at[at]);
        }
        if (n_rows < EACH) break;
    }
#pragma unroll
    for (int at = 0; at < V; at++) old.at[at] = narrow<T>(total[at]);
    *to = old;
}
