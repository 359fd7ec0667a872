// One step of a recurrent cell, after its products: a thread takes one hidden unit of one example, from the sums to the
// gates and states. See lstm.rs, gru.rs and simple.rs for the arithmetic; what is carried from step to step is kept in C.
//
// Defined by cuda.rs: ENTRY, T, C (the compute type), CELL, ACTIVATED (the simple cell's function of x0).

#define LSTM 0
#define GRU 1
#define SIMPLE 2

struct Step {
    // The sums of inputs and hidden states of this step, in columns of `hidden`.
    const C* sums;
    // An LSTM's cell state, a GRU's hidden state.
    C* carried;
    // The hidden state that the next product reads.
    T* state;
    // What is wanted of the rest; null if it is not.
    T* saved;
    T* sequence;
    T* final_hidden;
    T* final_cell;
    const T* biases[2];
    i64 bias_strides[2];
    u64 batch, hidden, steps, step, n_columns;
};

DEVICE C bias(const Step& step, int which, u64 column) {
    const T* from = step.biases[which];
    return from ? (C)widen(from[(i64)column * step.bias_strides[which]]) : (C)0;
}

KERNEL __launch_bounds__(256) ENTRY(const Step step) {
    u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    if (index >= step.batch * step.hidden) return;
    u64 n = step.hidden, row = index / n, unit = index % n;
    const C* sums = step.sums + row * step.n_columns * n + unit;
    C columns[4], hidden;
    if (CELL == LSTM) {
        C i = m::sigmoid(sums[0] + bias(step, 0, unit)), f = m::sigmoid(sums[n] + bias(step, 0, n + unit));
        C g = m::tanh(sums[2 * n] + bias(step, 0, 2 * n + unit)), o = m::sigmoid(sums[3 * n] + bias(step, 0, 3 * n + unit));
        C cell = f * step.carried[index] + i * g;
        step.carried[index] = cell;
        if (step.final_cell) step.final_cell[index] = narrow<T>(cell);
        hidden = o * m::tanh(cell);
        columns[0] = i, columns[1] = f, columns[2] = g, columns[3] = o;
    } else if (CELL == GRU) {
        C r = m::sigmoid(sums[0] + bias(step, 0, unit) + bias(step, 1, unit));
        C z = m::sigmoid(sums[n] + bias(step, 0, n + unit) + bias(step, 1, n + unit));
        C q = sums[3 * n] + bias(step, 1, 2 * n + unit);
        C candidate = m::tanh(sums[2 * n] + bias(step, 0, 2 * n + unit) + r * q);
        hidden = candidate + z * (step.carried[index] - candidate);
        step.carried[index] = hidden;
        columns[0] = r, columns[1] = z, columns[2] = candidate, columns[3] = q;
    } else {
        C x0 = sums[0] + bias(step, 0, unit);
        hidden = columns[0] = ACTIVATED;
    }
    T rounded = narrow<T>(hidden);
    u64 place = row * step.steps + step.step;
    step.state[index] = rounded;
    if (step.sequence) step.sequence[place * n + unit] = rounded;
    if (step.final_hidden) step.final_hidden[index] = rounded;
    if (step.saved)
        for (int column = 0; column < (CELL == SIMPLE ? 1 : 4); column++)
            step.saved[(place * step.n_columns + column) * n + unit] = narrow<T>(columns[column]);
}
