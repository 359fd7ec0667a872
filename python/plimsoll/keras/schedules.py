"""Schedules of learning rates, evaluated natively at every step. Called with a step's number, they tell its rate."""

import math

from ..missing import missing as _missing


class LearningRateSchedule:
    """A learning rate that follows the number of the step."""

    def described(self):
        raise NotImplementedError(
            f"{type(self).__name__} is a schedule of Python's own; there are those of tf.keras.optimizers.schedules, and "
            "callbacks.LearningRateScheduler calls any function"
        )


class ExponentialDecay(LearningRateSchedule):
    """``initial decay_rate ** (step / decay_steps)``, in steps with ``staircase``."""

    def __init__(self, initial_learning_rate, decay_steps, decay_rate, staircase=False, name="ExponentialDecay"):
        self.initial_learning_rate, self.decay_steps, self.decay_rate = initial_learning_rate, decay_steps, decay_rate
        self.staircase = bool(staircase)

    def __call__(self, step):
        part = float(step) / self.decay_steps
        return self.initial_learning_rate * self.decay_rate ** (math.floor(part) if self.staircase else part)

    def described(self):
        kind = "staircase" if self.staircase else "exponential_decay"
        return kind, [float(self.initial_learning_rate), float(self.decay_rate), float(self.decay_steps)]


class PiecewiseConstantDecay(LearningRateSchedule):
    """One value up to and at the first boundary, the next after it, and so on."""

    def __init__(self, boundaries, values, name="PiecewiseConstant"):
        if len(values) != len(boundaries) + 1:
            raise ValueError(f"{len(boundaries)} boundaries make {len(boundaries) + 1} pieces, and there are {len(values)} values")
        self.boundaries, self.values = list(boundaries), list(values)

    def __call__(self, step):
        return self.values[sum(float(step) > boundary for boundary in self.boundaries)]

    def described(self):
        # The framework's pieces end before their boundaries.
        return "piecewise_constant_decay", [float(b) + 1.0 for b in self.boundaries] + [float(v) for v in self.values]


class PolynomialDecay(LearningRateSchedule):
    """From one rate to another along a power of what is left of ``decay_steps``."""

    def __init__(self, initial_learning_rate, decay_steps, end_learning_rate=0.0001, power=1.0, cycle=False,
                 name="PolynomialDecay"):  # fmt: skip
        if cycle:
            raise NotImplementedError("PolynomialDecay has no cycle=True")
        self.initial_learning_rate, self.decay_steps = initial_learning_rate, decay_steps
        self.end_learning_rate, self.power = end_learning_rate, power

    def __call__(self, step):
        left = 1.0 - min(float(step), self.decay_steps) / self.decay_steps
        return self.end_learning_rate + (self.initial_learning_rate - self.end_learning_rate) * left**self.power

    def described(self):
        numbers = (self.initial_learning_rate, self.end_learning_rate, self.decay_steps, self.power)
        return "polynomial_decay", [float(n) for n in numbers]


class CosineDecay(LearningRateSchedule):
    """From one rate to ``alpha`` of it along half a cosine."""

    def __init__(self, initial_learning_rate, decay_steps, alpha=0.0, name="CosineDecay", warmup_target=None, warmup_steps=0):
        if warmup_target is not None or warmup_steps:
            raise NotImplementedError("CosineDecay has no warm-up here")
        self.initial_learning_rate, self.decay_steps, self.alpha = initial_learning_rate, decay_steps, alpha

    def __call__(self, step):
        part = min(float(step), self.decay_steps) / self.decay_steps
        cosine = (1.0 + math.cos(math.pi * part)) / 2.0
        return self.initial_learning_rate * (self.alpha + (1.0 - self.alpha) * cosine)

    def described(self):
        initial = float(self.initial_learning_rate)
        return "cosine_decay", [initial, initial * float(self.alpha), float(self.decay_steps)]


__getattr__ = _missing("keras.optimizers.schedules")
