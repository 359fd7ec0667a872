// What indices name, and where the rows lie that are added there. Defined by cuda.rs: I (the type of the indices), T, Key,
// RANK (the axes of the indices, or of the places at the source).

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

struct Sums {
    // The keys, the threads for each, the groups of V neighbours of a row, and the rows of a set.
    u64 n, width, row_len, n_rows;
    // Steps of the source: from set to set, from group to group.
    i64 outer, inner;
    // How the places lie at the source.
    u32 extents[8];
    i64 strides[8];
};

// The key of an index: the number of the sum that it names. One that is out of range is a fault, noted if `notes`, and gets a
// key beyond all sums, which nobody adds to.
template <class I> DEVICE u64 key_of(const I* indices, const Keys& what, u64 element, Note* cell, u64 call, bool notes) {
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
    if (!is_good && notes) fault(cell, call, element, index);
    return is_good ? (u64)(key + index * what.step) : what.beyond;
}

// Where the row of a place begins at the source.
template <class Place> DEVICE i64 offset(const Sums& sums, Place place) {
    i64 offset = 0;
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; axis--) {
        Place here = axis == 0 ? place : place % sums.extents[axis];
        if (axis > 0) place /= sums.extents[axis];
        offset += (i64)here * sums.strides[axis];
    }
    return offset;
}
