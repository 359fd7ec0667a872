// Begins a step of an optimizer: one thread judges, as `BeginStep::begun` in control.rs does, and sets the learning rate,
// as `Schedule::at` in schedule.rs does. Norm is the type of the norm.

#define HAS_NORM 1
#define CLIPS 2
#define SCALES 4

struct Beginning {
    u64 flags;
    double clip_norm, growth_interval, scale_factor, least_scale, greatest_scale, unknown;
    u64 curve;
    double numbers[5];
    double warmup;
    // Of a piecewise schedule: how many boundaries, which are followed by the values.
    u64 n_boundaries;
};

DEVICE double eased(double from, double to, double part) {
    return to + (from - to) * (1.0 + ::cos(3.14159265358979323846 * part)) / 2.0;
}

DEVICE double curve_at(const Beginning& b, const double* pieces, double step) {
    const double* a = b.numbers;
    switch (b.curve) {
    case 1: return a[0];
    case 2: return a[0] * ::pow(a[1], step / a[2]);
    case 3: return a[0] * ::pow(a[1], ::floor(step / a[2]));
    case 4: {
        u64 passed = 0;
        while (passed < b.n_boundaries && pieces[passed] <= step) passed++;
        return pieces[b.n_boundaries + passed];
    }
    case 5: return a[1] + (a[0] - a[1]) * ::pow(1.0 - (step < a[2] ? step : a[2]) / a[2], a[3]);
    case 6: return eased(a[0], a[1], (step < a[2] ? step : a[2]) / a[2]);
    default: {
        if (step <= a[3]) return eased(a[0], a[1], step / a[3]);
        double last = a[4] - 1.0;
        return eased(a[1], a[2], ((step < last ? step : last) - a[3]) / (last - a[3]));
    }
    }
}

DEVICE double rate_at(const Beginning& b, const double* pieces, double step) {
    if (step < b.warmup) return curve_at(b, pieces, 0.0) * (step + 1.0) / (b.warmup + 1.0);
    return curve_at(b, pieces, step - b.warmup);
}

// A loss that is not finite, or a value that a kernel of the step has refused, stops the optimizer until it is released.
DEVICE bool is_stopped(const double* loss, const Note* faults) {
    return loss && (!m::is_finite(*loss) || is_noted(faults));
}

KERNEL ENTRY(const double* from, i64 stride, const Norm* norm, const i64* first_bad, const double* loss,
             const Note* faults, double* to, const double* pieces, const Beginning b) {
    if (is_stopped(loss, faults)) {
        double was = from[5 * stride];
        for (int at = 0; at < 8; at++) to[at] = from[at * stride];
        // As `Control::stopped` does: the last bits say what it was.
        if (!m::is_nan(was)) to[5] = __longlong_as_double(__double_as_longlong(b.unknown) | (i64)was);
        return;
    }
    double rate = from[0], step = from[stride], scale = from[2 * stride], good_steps = from[3 * stride];
    double skipped = from[7 * stride], inverse = 1.0 / scale, clip = 1.0, overflow = 0.0;
    double unscaled_norm = (b.flags & HAS_NORM) ? (double)*norm * inverse : b.unknown;
    if (b.flags & CLIPS) {
        // A norm that is no number must not pass for a small one.
        if (m::is_nan(unscaled_norm)) clip = unscaled_norm;
        else if (unscaled_norm > b.clip_norm) clip = b.clip_norm / unscaled_norm;
    }
    bool overflowed = (b.flags & SCALES) && *first_bad >= 0;
    if (overflowed) {
        overflow = (double)(*first_bad + 1);
        skipped += 1.0;
        good_steps = 0.0;
        scale = m::max(scale / b.scale_factor, b.least_scale);
    } else {
        if (b.flags & SCALES) good_steps += 1.0;
        if ((b.flags & SCALES) && good_steps >= b.growth_interval) {
            good_steps = 0.0;
            scale = m::min(scale * b.scale_factor, b.greatest_scale);
        }
        if (b.curve) rate = rate_at(b, pieces, step);
        step += 1.0;
    }
    double values[8] = {rate, step, scale, good_steps, clip * inverse, overflow, unscaled_norm, skipped};
    for (int at = 0; at < 8; at++) to[at] = values[at];
}
