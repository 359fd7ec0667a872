"""Tensors as Python's numbers and arrays."""

import numpy as np

from .. import _core


def to_numpy(tensor):
    """The values; 16-bit floats of which numpy has none come as float32."""
    return np.asarray(_core.cast(tensor, "float32") if tensor._dtype == "bfloat16" else tensor)
