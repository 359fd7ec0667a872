// What all kernels of attention are told. Defined by mod.rs: T (the type of the operands), C (the type that is computed in),
// CAUSAL, MASK (0: none; 1: truths; 2: numbers of type T that are added). mod.rs has the same structures.

// The matrices of an operand, one for each head: the first element, and the elements from one row, one column and one
// place of each leading dimension to the next.
struct Matrices {
    u8* first;
    i64 row, col, lead[6];
};

struct Extents {
    u32 n_lead, lead[6];
    u32 n_heads, n_queries, n_keys, depth, width;
    double scale;
};

#define LOG2_E 1.4426950408889634
#define INFINITE ((C)__int_as_float(0x7f800000))

// The elements from the first matrix of an operand to that of a head.
DEVICE i64 head_start(const Matrices& of, const Extents& extents, u32 head) {
    i64 at = 0;
    // Unrolled, so that the structures stay where parameters are.
#pragma unroll
    for (int axis = 5; axis >= 0; axis--) {
        if (axis >= extents.n_lead) continue;
        at += (i64)(head % extents.lead[axis]) * of.lead[axis];
        head /= extents.lead[axis];
    }
    return at;
}

// What a mask adds to a score; `start` is its head's first element.
DEVICE C added(const Matrices& mask, i64 start, u32 query, u32 key) {
    i64 at = start + (i64)query * mask.row + (i64)key * mask.col;
    if (MASK == 1) return ((const u8*)mask.first)[at] ? (C)0 : -INFINITE;
    return widen(((const T*)mask.first)[at]);
}

// Powers of two: attention takes exponentials by the million, and this is the hardware's own.
#ifdef PLIMSOLL_EMULATED
DEVICE float power_of_two(float x) { return __builtin_exp2f(x); }
DEVICE double power_of_two(double x) { return __builtin_exp2(x); }
#else
DEVICE float power_of_two(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE double power_of_two(double x) { return ::exp2(x); }
#endif
