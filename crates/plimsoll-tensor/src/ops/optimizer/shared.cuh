// What all kernels of optimizers know: the control buffer (see control.rs), and what is done before any rule (see mod.rs).
// T is the type of the parameters.

struct Control {
    double learning_rate, step, loss_scale, good_steps, factor, overflow, norm, skipped;
};

// Attributes: weight decay as a penalty and as a decoupled one, and the greatest magnitude of a gradient.
struct Common {
    double penalty, decoupled, clip;
};

struct Before {
    T factor, clip, penalty, shrink;
};

DEVICE Before before_of(const Control& control, const Common& common, bool decays) {
    return {
        (T)control.factor,
        (T)common.clip,
        (T)(decays ? common.penalty : 0.0),
        (T)(decays ? 1.0 - control.learning_rate * common.decoupled : 1.0),
    };
}

// The gradient that the rule sees. A penalty of zero must not turn an infinite parameter into a gradient that is no number.
DEVICE T gradient_seen(const Before& before, T parameter, T gradient) {
    T clipped = m::max(m::min(gradient * before.factor, before.clip), -before.clip);
    return before.penalty == (T)0 ? clipped : clipped + before.penalty * parameter;
}
