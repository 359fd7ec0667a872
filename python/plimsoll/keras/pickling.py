"""Copies and pickles of layers: a layer is described and built again, without a random draw."""

import numpy as np

from .. import _core
from ..tensor import convert_to_tensor


def values_of(layer):
    """The values of a native layer's weights, as they lie."""
    return [np.asarray(_core.keras.master(weight)) for weight in layer._weights]


def give_values(layer, values):
    """Gives a native layer's weights such values."""
    for weight, array in zip(layer._weights, values):
        weight.assign(convert_to_tensor(array, _core.keras.master(weight).dtype))


def without_draws(options):
    """Options that start all weights from zeros."""

    def without(name, value):
        if name == "layer":
            return value[0], without_draws(value[1])
        return ("zeros", 0.0) if name.endswith("_initializer") else value

    return {name: without(name, value) for name, value in options.items()}
