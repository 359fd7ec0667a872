// Updates many parameters by one elementwise rule. A block takes a tile of one parameter; a thread moves 16 bytes of the
// parameter and of each state at a time. The numbers of the step are made from the control buffer by one thread of each
// block: powers in double are slow, and the other blocks of the multiprocessor hide them.
//
// Defined by cuda.rs: ENTRY, T, G (the gradient's type), S (the copy's type), HAS_COPY, N_STATES, STRIDED (whether the
// gradient is), N_ENTRIES, TILE; the rule's `Now`, `now_of` and `element`; shared.cuh.

#define DECAYS 1
#define ALIGNED 2
#define V (16 / (int)sizeof(T))

struct Entry {
    T* parameter;
    T* states[3];
    S* copy;
    const G* gradient;
    u64 n;
    u64 flags;
};

DEVICE T updated(const Now& now, const Before& before, T parameter, T gradient, T* states) {
    gradient = gradient_seen(before, parameter, gradient);
    return element(now, parameter * before.shrink, gradient, states);
}

DEVICE void update_one(const Now& now, const Before& before, const Entry& entry, const Strided& strided, u64 at) {
    T states[3] = {};
    for (int k = 0; k < N_STATES; k++) states[k] = entry.states[k][at];
    T gradient = (T)widen(entry.gradient[STRIDED ? place_of(strided, at) : (i64)at]);
    T parameter = updated(now, before, entry.parameter[at], gradient, states);
    entry.parameter[at] = parameter;
    for (int k = 0; k < N_STATES; k++) entry.states[k][at] = states[k];
    if (HAS_COPY) entry.copy[at] = narrow<S>((float)parameter);
}

DEVICE void update_vector(const Now& now, const Before& before, const Entry& entry, u64 at) {
    Vector<G, V> gradients = *(const Vector<G, V>*)(entry.gradient + at);
    Vector<T, V> parameters = *(Vector<T, V>*)(entry.parameter + at);
    Vector<T, V> states[N_STATES + 1];
    Vector<S, V> copies;
#pragma unroll
    for (int k = 0; k < N_STATES; k++) states[k] = *(Vector<T, V>*)(entry.states[k] + at);
#pragma unroll
    for (int lane = 0; lane < V; lane++) {
        T of_element[3] = {};
#pragma unroll
        for (int k = 0; k < N_STATES; k++) of_element[k] = states[k].at[lane];
        T gradient = (T)widen(gradients.at[lane]);
        parameters.at[lane] = updated(now, before, parameters.at[lane], gradient, of_element);
#pragma unroll
        for (int k = 0; k < N_STATES; k++) states[k].at[lane] = of_element[k];
        if (HAS_COPY) copies.at[lane] = narrow<S>((float)parameters.at[lane]);
    }
    *(Vector<T, V>*)(entry.parameter + at) = parameters;
#pragma unroll
    for (int k = 0; k < N_STATES; k++) *(Vector<T, V>*)(entry.states[k] + at) = states[k];
    if (HAS_COPY) *(Vector<S, V>*)(entry.copy + at) = copies;
}

KERNEL __launch_bounds__(256) ENTRY(const Table<Entry, N_ENTRIES> table, const Control* control_buffer,
                                    const Attributes attributes, const Common common, const Strided strided) {
    __shared__ Now shared_now;
    __shared__ Before shared_before;
    Control control = *control_buffer;
    if (control.overflow != 0.0) return;
    u32 idx = entry_of(table, blockIdx.x);
    Entry entry = table.entries[idx];
    if (threadIdx.x == 0) {
        shared_now = now_of(control, attributes.at);
        shared_before = before_of(control, common, entry.flags & DECAYS);
    }
    __syncthreads();
    Now now = shared_now;
    Before before = shared_before;
    u64 first = (u64)(blockIdx.x - table.starts[idx]) * TILE;
    u64 end = first + TILE < entry.n ? first + TILE : entry.n;
    bool in_vectors = !STRIDED && (entry.flags & ALIGNED);
#pragma unroll 2
    for (u64 at = first + threadIdx.x * V; at < end; at += 256 * V) {
        if (in_vectors && at + V <= end) {
            update_vector(now, before, entry, at);
        } else {
            for (u64 one = at; one < end && one < at + V; one++) update_one(now, before, entry, strided, one);
        }
    }
}
