// Pooling over windows of images, channels last. One thread computes V neighbouring channels of one pixel of the result and
// visits the pixels that count for it: those of its window, or, in backward, the windows around it. Defined by cuda.rs: T, V,
// Index, KIND (one of those below).

#define MAX 0
#define MAX_BACKWARD 1
#define PICK 2
#define AVERAGE 3
#define AVERAGE_BACKWARD 4
#define IS_BACKWARD (KIND == MAX_BACKWARD || KIND == AVERAGE_BACKWARD)

typedef Compute<T> C;

// cuda.rs has the same structures.
struct Images {
    u8* first;
    i64 image, row, col, channel;
};

struct Axis { u32 extent, kernel, stride, padding, n_windows; };

struct Windows {
    Axis rows, cols;
    u32 n_rows, n_cols, channels, n_taps;
    u64 n;
};

// The address of a channel of a pixel.
template <class E> DEVICE const E* at(const Images& of, u64 image, u32 row, u32 col, u32 channel) {
    return (const E*)of.first + ((i64)image * of.image + (i64)row * of.row + (i64)col * of.col + (i64)channel * of.channel);
}

// The first place that counts for a place of the result, and the first one behind them: the positions of a window, cut at
// the ends, or the windows that contain a position.
DEVICE u32 from(const Axis& axis, u32 place) {
    if (!IS_BACKWARD) return place * axis.stride < axis.padding ? 0 : place * axis.stride - axis.padding;
    u32 padded = place + axis.padding;
    return padded < axis.kernel ? 0 : (padded - axis.kernel) / axis.stride + 1;
}
DEVICE u32 until(const Axis& axis, u32 place) {
    u32 end = IS_BACKWARD ? (place + axis.padding) / axis.stride + 1 : place * axis.stride + axis.kernel - axis.padding;
    u32 most = IS_BACKWARD ? axis.n_windows : axis.extent;
    return end < most ? end : most;
}

// The place inside a window of a position that it contains.
DEVICE u32 tap_of(const Windows& windows, u32 window_row, u32 window_col, u32 row, u32 col) {
    u32 down = row + windows.rows.padding - window_row * windows.rows.stride;
    return down * windows.cols.kernel + col + windows.cols.padding - window_col * windows.cols.stride;
}

KERNEL __launch_bounds__(256) ENTRY(const Images x, const Images positions, T* y, u8* places, const Windows windows) {
    Index index = (Index)blockIdx.x * 256 + threadIdx.x;
    if (index >= windows.n) return;
    u32 n_vectors = windows.channels / V;
    u32 channel = (u32)(index % n_vectors) * V;
    Index pixel = index / n_vectors;
    u32 col = (u32)(pixel % windows.n_cols), row = (u32)(pixel / windows.n_cols % windows.n_rows);
    u64 image = pixel / windows.n_cols / windows.n_rows;
    C results[V];
    u8 taps[V];
#if KIND == PICK
    for (int lane = 0; lane < V; lane++) {
        u32 tap = *at<u8>(positions, image, row, col, channel + lane);
        u32 tap_row = row * windows.rows.stride + tap / windows.cols.kernel - windows.rows.padding;
        u32 tap_col = col * windows.cols.stride + tap % windows.cols.kernel - windows.cols.padding;
        // A position in the padding is above or left of the images, and far beyond them when it wraps around.
        bool is_inside = tap_row < windows.rows.extent && tap_col < windows.cols.extent;
        results[lane] = is_inside ? widen(*at<T>(x, image, tap_row, tap_col, channel + lane)) : (C)0;
    }
#else
    u32 first_row = from(windows.rows, row), first_col = from(windows.cols, col);
    u32 last_row = until(windows.rows, row), last_col = until(windows.cols, col);
    for (int lane = 0; lane < V; lane++) {
        results[lane] = KIND == MAX ? (C)-__int_as_float(0x7f800000) : (C)0;
        taps[lane] = KIND == MAX ? (u8)tap_of(windows, row, col, first_row, first_col) : 0;
    }
    for (u32 r = first_row; r < last_row; r++)
        for (u32 c = first_col; c < last_col; c++) {
            auto values = *(const Vector<T, V>*)at<T>(x, image, r, c, channel);
#if KIND == MAX
            u8 tap = (u8)tap_of(windows, row, col, r, c);
#pragma unroll
            for (int lane = 0; lane < V; lane++) {
                C value = widen(values.at[lane]);
                bool is_better = value > results[lane] || m::is_nan(value);
                results[lane] = is_better ? value : results[lane];
                taps[lane] = is_better ? tap : taps[lane];
            }
#elif KIND == MAX_BACKWARD
            u8 tap = (u8)tap_of(windows, r, c, row, col);
            auto named = *(const Vector<u8, V>*)at<u8>(positions, image, r, c, channel);
#pragma unroll
            for (int lane = 0; lane < V; lane++) results[lane] += named.at[lane] == tap ? widen(values.at[lane]) : (C)0;
#else
#pragma unroll
            for (int lane = 0; lane < V; lane++) results[lane] += widen(values.at[lane]);
#endif
        }
#endif
    Vector<T, V> result;
    Vector<u8, V> place;
#pragma unroll
    for (int lane = 0; lane < V; lane++) {
        if (KIND == AVERAGE || KIND == AVERAGE_BACKWARD) results[lane] /= (C)windows.n_taps;
        result.at[lane] = narrow<T>(results[lane]);
        place.at[lane] = taps[lane];
    }
    *(Vector<T, V>*)(y + (u64)index * V) = result;
    if (KIND == MAX && places != 0) *(Vector<u8, V>*)(places + (u64)index * V) = place;
}
