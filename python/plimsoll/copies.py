"""Copies and pickles of tensors and variables: they are their values."""

import copyreg

import numpy as np

from . import _core
from .tensor import Tensor, Variable, convert_to_tensor


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
