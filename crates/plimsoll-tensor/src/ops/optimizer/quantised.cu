// Adam with states of eight bits. A warp takes a block of 256 elements: widens its states, updates, finds their greatest
// magnitudes, and narrows them again, all in registers. See quantise.rs for the codes.
//
// Defined by adam_8bit.rs: ENTRY, T (float), G, S, HAS_COPY, STRIDED, N_ENTRIES; SIGNED_VALUES and UNSIGNED_VALUES, what
// each code stands for; Adam's `Now`, `now_of` and `element`; shared.cuh.

#define DECAYS 1
#define SIGNED 6
#define UNSIGNED 7
#define BLOCK 256
#define PER_LANE (BLOCK / WARP)
#define WARPS 8

struct Entry {
    float* parameter;
    u8* m;
    float* m_scale;
    u8* v;
    float* v_scale;
    S* copy;
    const G* gradient;
    u64 n;
    u64 flags;
};

// The nearest code of a number from 0 to 1.
DEVICE u32 code_of(float x, int finest) {
    float threshold = 0.1f, scale = 1.0f, n_steps = (float)(1 << finest);
    for (int decade = 0; decade < finest; decade++) {
        bool is_lower = x <= threshold;
        scale = is_lower ? scale * 10.0f : scale;
        n_steps = is_lower ? n_steps * 0.5f : n_steps;
        threshold *= 0.1f;
    }
    float exact = n_steps - 1.0f + (x * scale - 0.1f) * (n_steps / 0.9f);
    return (u32)__float_as_int(exact + 8388608.0f) & 0xff;
}

// What numbers are multiplied by to be at most one; a scale so small that its inverse overflows is as good as zero.
DEVICE float inverse_of(float scale) {
    float inverse = 1.0f / scale;
    return m::is_finite(inverse) ? inverse : 0.0f;
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
    u64 block = (u64)(blockIdx.x - table.starts[idx]) * WARPS + threadIdx.x / WARP;
    u64 first = block * BLOCK + threadIdx.x % WARP;
    if (block * BLOCK >= entry.n) return;
    float m_scale = entry.m_scale[block], v_scale = entry.v_scale[block];
    float ms[PER_LANE], roots[PER_LANE], greatest_m = 0.0f, greatest_root = 0.0f;
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        u64 at = first + k * WARP;
        ms[k] = roots[k] = 0.0f;
        if (at < entry.n) {
            float root = UNSIGNED_VALUES[entry.v[at]] * v_scale;
            float states[3] = {SIGNED_VALUES[entry.m[at]] * m_scale, root * root, 0.0f};
            float parameter = entry.parameter[at];
            float gradient = widen(entry.gradient[STRIDED ? place_of(strided, at) : (i64)at]);
            gradient = gradient_seen(before, parameter, gradient);
            parameter = element(now, parameter * before.shrink, gradient, states);
            entry.parameter[at] = parameter;
            if (HAS_COPY) entry.copy[at] = narrow<S>(parameter);
            ms[k] = states[0];
            roots[k] = m::sqrt(states[1]);
            greatest_m = m::max(greatest_m, m::abs(ms[k]));
            greatest_root = m::max(greatest_root, roots[k]);
        }
    }
    greatest_m = warp_max(greatest_m);
    greatest_root = warp_max(greatest_root);
    float of_m = inverse_of(greatest_m), of_root = inverse_of(greatest_root);
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
        u64 at = first + k * WARP;
        if (at < entry.n) {
            u32 sign = (u32)__float_as_int(ms[k]) >> 31 << 7;
            entry.m[at] = (u8)(sign | code_of(m::abs(ms[k]) * of_m, SIGNED));
            // What is not zero does not become zero: a divisor must not vanish.
            u32 code = code_of(roots[k] * of_root, UNSIGNED);
            entry.v[at] = (u8)(code == 0 && roots[k] > 0.0f ? 1 : code);
        }
    }
    if (threadIdx.x % WARP == 0) {
        entry.m_scale[block] = greatest_m;
        entry.v_scale[block] = greatest_root;
    }
}
