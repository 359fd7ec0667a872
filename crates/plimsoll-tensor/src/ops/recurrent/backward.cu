// A recurrent cell taken back. A thread takes one hidden unit of one example: REBUILD walks the whole sequence and writes
// down what the cell carries before each step; else it computes the gradients of one step, except what goes through the
// recurrent weights. See lstm.rs, gru.rs and simple.rs for the arithmetic.
//
// Defined by cuda.rs: ENTRY, REBUILD, T, C (the compute type), CELL, LOCAL_GRAD (of the simple cell's function, from its output v).

#define LSTM 0
#define GRU 1
#define SIMPLE 2
#define N_COLUMNS (CELL == SIMPLE ? 1 : 4)

struct Back {
    const T* saved;
    // The gradients of the sums; may lie over what was saved.
    T* d_sums;
    // The hidden state before each step. Until the step has been taken back, what the cell carries is there.
    T* previous;
    // What the cell carries after the step.
    C* after;
    C* d_hidden;
    C* d_cell;
    // The gradients of the hidden states, and the hidden state before the first step; null if there are none.
    const T* d_sequence;
    const T* initial;
    i64 saved_strides[3], d_sequence_strides[3], initial_strides[2];
    u64 batch, hidden, steps, step;
};

KERNEL __launch_bounds__(256) ENTRY(const Back back) {
    u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    if (index >= back.batch * back.hidden) return;
    i64 n = back.hidden, row = index / n, unit = index % n, by_column = n * back.saved_strides[2];
    const T* saved = back.saved + row * back.saved_strides[0] + unit * back.saved_strides[2];
    T* previous = back.previous + row * (i64)back.steps * n + unit;
    if (REBUILD) {
        C carried = back.after[index];
#pragma unroll 4
        for (u64 step = 0; step < back.steps; step++, saved += back.saved_strides[1], previous += n) {
            *previous = narrow<T>(carried);
            if (CELL == LSTM) {
                C i = widen(saved[0]), f = widen(saved[by_column]), g = widen(saved[2 * by_column]);
                carried = f * carried + i * g;
            } else if (CELL == GRU) {
                C z = widen(saved[by_column]), candidate = widen(saved[2 * by_column]);
                carried = candidate + z * (carried - candidate);
            } else {
                carried = widen(saved[0]);
            }
        }
        back.after[index] = carried;
        return;
    }
    saved += (i64)back.step * back.saved_strides[1];
    previous += (i64)back.step * n;
    C before = widen(*previous), dh = back.d_hidden[index], columns[4];
    for (int column = 0; column < N_COLUMNS; column++) columns[column] = widen(saved[column * by_column]);
    if (back.d_sequence) {
        const i64* strides = back.d_sequence_strides;
        dh += widen(back.d_sequence[row * strides[0] + (i64)back.step * strides[1] + unit * strides[2]]);
    }
    if (CELL == LSTM) {
        C i = columns[0], f = columns[1], g = columns[2], o = columns[3], t = m::tanh(back.after[index]);
        C dc = back.d_cell[index] + dh * o * ((C)1 - t * t), d_before = dc * f, hidden = o * t;
        columns[0] = dc * g * i * ((C)1 - i);
        columns[1] = d_before * before * ((C)1 - f);
        columns[2] = dc * i * ((C)1 - g * g);
        columns[3] = dh * hidden * ((C)1 - o);
        back.d_cell[index] = d_before;
        back.after[index] = before;
        if (back.step + 1 < back.steps) previous[n] = narrow<T>(hidden);
        if (back.step == 0)
            *previous = back.initial ? back.initial[row * back.initial_strides[0] + unit * back.initial_strides[1]]
                                     : narrow<T>((C)0);
    } else if (CELL == GRU) {
        C r = columns[0], z = columns[1], candidate = columns[2], q = columns[3], kept = dh * z;
        C d_candidate = (dh - kept) * ((C)1 - candidate * candidate), d_q = d_candidate * r;
        columns[0] = d_q * q * ((C)1 - r);
        columns[1] = kept * (before - candidate) * ((C)1 - z);
        columns[2] = d_candidate;
        columns[3] = d_q;
        back.d_hidden[index] = kept;
    } else {
        C v = columns[0];
        columns[0] = dh * (LOCAL_GRAD);
    }
    T* d_sums = back.d_sums + (row * (i64)back.steps + (i64)back.step) * N_COLUMNS * n + unit;
    for (int column = 0; column < N_COLUMNS; column++) d_sums[column * n] = narrow<T>(columns[column]);
}
