"""``tf.keras.utils``."""

import random

import numpy as np

from ..missing import missing as _missing
from ..random import set_seed
from .backend import clear_session  # noqa: F401


def set_random_seed(seed):
    """Seeds Python's, numpy's and the framework's random numbers."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    set_seed(seed)


def to_categorical(x, num_classes=None):
    """Whole numbers as rows that have a one at their place."""
    x = np.asarray(x, dtype="int64")
    shape = x.shape[:-1] if x.ndim > 1 and x.shape[-1] == 1 else x.shape
    x = x.reshape(-1)
    made = np.zeros((x.size, int(num_classes or x.max() + 1)))
    made[np.arange(x.size), x] = 1
    return made.reshape(*shape, -1)


__getattr__ = _missing("keras.utils")
