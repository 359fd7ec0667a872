"""Copies and pickles: a variable is its values, and a layer is described and built again, without a random draw."""

import copyreg

import numpy as np

from .. import _core
from ..tensor import Tensor, Variable, convert_to_tensor


def _made_variable(values, dtype, trainable, name, compute):
    made = Variable(convert_to_tensor(values, dtype), trainable, name=name)
    return made if compute == dtype else _core.keras.mixed(made, compute)


def _of_variable(variable):
    master = _core.keras.master(variable)
    return _made_variable, (np.asarray(master), master._dtype, variable.trainable, variable._name, variable._dtype)


def _of_tensor(tensor):
    wide = _core.cast(tensor, "float32") if tensor._dtype == "bfloat16" else tensor
    return convert_to_tensor, (np.asarray(wide), tensor._dtype)


copyreg.pickle(Variable, _of_variable)
copyreg.pickle(Tensor, _of_tensor)


def values_of(layer):
    """The values of a native layer's weights, as they lie."""
    return [np.asarray(_core.keras.master(weight)) for weight in layer._weights]


def give_values(layer, values):
    """Gives a native layer's weights such values."""
    for weight, array in zip(layer._weights, values):
        weight.assign(convert_to_tensor(array, _core.keras.master(weight).dtype))


def without_draws(options):
    """Options that start all weights from zeros."""
    return {name: ("zeros", 0.0) if name.endswith("_initializer") else value for name, value in options.items()}
