"""``tf.keras``: layers, models and training with Keras's names, by the framework's own train loop."""

from ..missing import missing as _missing
from . import (
    activations, backend, callbacks, datasets, initializers, layers, losses, metrics, mixed_precision, models, optimizers,
    regularizers, schedules, utils,
)  # fmt: skip
from .callbacks import History  # noqa: F401
from .layers import Layer  # noqa: F401
from .model import Model
from .sequential import Sequential
from .symbolic import Input, KerasTensor  # noqa: F401

optimizers.schedules = schedules

__all__ = ["Input", "Model", "Sequential", "activations", "backend", "callbacks", "datasets", "initializers", "layers", "losses",
           "metrics", "mixed_precision", "models", "optimizers", "regularizers", "utils"]  # fmt: skip


__getattr__ = _missing("keras")
