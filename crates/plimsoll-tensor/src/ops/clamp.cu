// One thread takes the eight elements of one byte of the mask. Defined by clamp.rs: ENTRY, T, V (how many neighbours are
// moved at a time), BACKWARD (whether the mask is read and the gradient kept where a bit is set, or the mask is written
// with the elements brought between the bounds).

typedef Vector<T, V> Some;

// The element, and the bit of whether the gradient flows there.
DEVICE T one(T x, u8& byte, int bit, double low, double high) {
    typedef Compute<T> C;
#if BACKWARD
    return byte >> bit & 1 ? x : narrow<T>((C)0);
#else
    C least = cast<C>(low), greatest = cast<C>(high), value = widen(x);
    byte |= (value >= least && value <= greatest) << bit;
    return narrow<T>(m::min(m::max(value, least), greatest));
#endif
}

// `y` may be `x`; both lie in row-major order.
KERNEL __launch_bounds__(256) ENTRY(T* y, const T* x, u8* mask, i64 stride, double low, double high, u64 n) {
    u64 number = (u64)blockIdx.x * 256 + threadIdx.x, first = number * 8;
    if (first >= n) return;
    u8 byte = BACKWARD ? mask[(i64)number * stride] : 0;
    if (first + 8 <= n) {
        Some some[8 / V];
#pragma unroll
        for (int group = 0; group < 8 / V; group++) some[group] = *(const Some*)(x + first + group * V);
#pragma unroll
        for (int bit = 0; bit < 8; bit++) {
            T& element = some[bit / V].at[bit % V];
            element = one(element, byte, bit, low, high);
        }
#pragma unroll
        for (int group = 0; group < 8 / V; group++) *(Some*)(y + first + group * V) = some[group];
    } else {
        for (int bit = 0; first + bit < n; bit++) y[first + bit] = one(x[first + bit], byte, bit, low, high);
    }
    if (!BACKWARD) mask[(i64)number * stride] = byte;
}
