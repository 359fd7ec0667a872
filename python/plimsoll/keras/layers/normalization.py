"""Norms."""

from .base import NativeLayer, refuse


def _refused(axis, center, scale, beta_initializer, gamma_initializer, constraints):
    return {"axis": (axis[-1] if isinstance(axis, (list, tuple)) and len(axis) == 1 else axis, -1), "center": (center, True),
            "scale": (scale, True), "beta_initializer": (beta_initializer, "zeros"),
            "gamma_initializer": (gamma_initializer, "ones"), "constraints": (tuple(constraints), (None, None))}  # fmt: skip


class BatchNormalization(NativeLayer):
    """Each channel to mean 0 and variance 1: over the batch while training, by running statistics else."""

    _kind = "batch_normalization"

    def __init__(self, axis=-1, momentum=0.99, epsilon=1e-3, center=True, scale=True, beta_initializer="zeros",
                 gamma_initializer="ones", moving_mean_initializer="zeros", moving_variance_initializer="ones",
                 beta_regularizer=None, gamma_regularizer=None, beta_constraint=None, gamma_constraint=None,
                 synchronized=False, **common):  # fmt: skip
        refuse("BatchNormalization", synchronized=(synchronized, False),
               moving_mean_initializer=(moving_mean_initializer, "zeros"),
               moving_variance_initializer=(moving_variance_initializer, "ones"),
               **_refused(axis, center, scale, beta_initializer, gamma_initializer,
                          (beta_constraint, gamma_constraint)))  # fmt: skip
        self.momentum, self.epsilon = float(momentum), float(epsilon)
        super().__init__({"momentum": self.momentum, "epsilon": self.epsilon},
                         {"beta": beta_regularizer, "gamma": gamma_regularizer}, **common)  # fmt: skip


class LayerNormalization(NativeLayer):
    """Each row to mean 0 and variance 1."""

    _kind = "layer_normalization"

    def __init__(self, axis=-1, epsilon=1e-3, center=True, scale=True, beta_initializer="zeros", gamma_initializer="ones",
                 beta_regularizer=None, gamma_regularizer=None, beta_constraint=None, gamma_constraint=None,
                 **common):  # fmt: skip
        refuse("LayerNormalization", **_refused(axis, center, scale, beta_initializer, gamma_initializer,
                                                (beta_constraint, gamma_constraint)))  # fmt: skip
        self.epsilon = float(epsilon)
        super().__init__({"epsilon": self.epsilon}, {"beta": beta_regularizer, "gamma": gamma_regularizer}, **common)


class RMSNormalization(NativeLayer):
    """Each row over the root of the mean of its squares."""

    _kind = "rms_normalization"

    def __init__(self, axis=-1, epsilon=1e-6, **common):
        refuse("RMSNormalization", axis=(axis, -1))
        self.epsilon = float(epsilon)
        super().__init__({"epsilon": self.epsilon}, **common)


class GroupNormalization(NativeLayer):
    """Groups of channels to mean 0 and variance 1."""

    _kind = "group_normalization"

    def __init__(self, groups=32, axis=-1, epsilon=1e-3, center=True, scale=True, beta_initializer="zeros",
                 gamma_initializer="ones", beta_regularizer=None, gamma_regularizer=None, beta_constraint=None,
                 gamma_constraint=None, **common):  # fmt: skip
        refuse("GroupNormalization", **_refused(axis, center, scale, beta_initializer, gamma_initializer,
                                                (beta_constraint, gamma_constraint)))  # fmt: skip
        self.groups, self.epsilon = int(groups), float(epsilon)
        super().__init__({"groups": self.groups, "epsilon": self.epsilon},
                         {"beta": beta_regularizer, "gamma": gamma_regularizer}, **common)  # fmt: skip
