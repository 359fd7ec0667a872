"""Dtypes as TensorFlow's users know them: objects with a name that are equal to that name and to numpy's dtype."""

import numpy as np


class DType:
    """The type of a tensor's elements."""

    def __init__(self, name, size, kind):
        self.name = name
        self.size = size
        self.is_floating = kind == "float"
        self.is_integer = kind == "int"
        self.is_bool = kind == "bool"

    @property
    def as_numpy_dtype(self):
        """The numpy dtype; that of bfloat16 comes from the package ml_dtypes."""
        if self.name == "bfloat16":
            try:
                import ml_dtypes
            except ImportError:
                raise TypeError("numpy has no bfloat16: install ml_dtypes, or cast to tf.float32 first") from None
            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype(self.name)

    def __eq__(self, other):
        try:
            return self.name == as_dtype(other).name
        except (TypeError, ValueError):  # numpy makes dtypes of lists and dictionaries, if they are of the right form
            return NotImplemented

    def __hash__(self):
        return hash(self.name)

    def __repr__(self):
        return f"tf.{self.name}"

    def __str__(self):
        return f"<dtype: '{self.name}'>"


float64 = double = DType("float64", 8, "float")
float32 = DType("float32", 4, "float")
float16 = half = DType("float16", 2, "float")
bfloat16 = DType("bfloat16", 2, "float")
int64 = DType("int64", 8, "int")
int32 = DType("int32", 4, "int")
uint8 = DType("uint8", 1, "int")
bool = DType("bool", 1, "bool")

BY_NAME = {d.name: d for d in (float64, float32, float16, bfloat16, int64, int32, uint8, bool)}
_PYTHON = {float: float32, int: int32, type(True): bool}


def as_dtype(value):
    """The dtype that a dtype, a name, a numpy dtype or a Python type means.

    >>> import numpy as np, plimsoll as tf
    >>> tf.as_dtype(np.float32), tf.as_dtype("int64"), tf.as_dtype(bool)
    (tf.float32, tf.int64, tf.bool)
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, type) and value in _PYTHON:
        return _PYTHON[value]
    # For numpy None is float64.
    name = value if isinstance(value, (str, type(None))) else getattr(np.dtype(value), "name", None)
    if name in BY_NAME:
        return BY_NAME[name]
    raise TypeError(f"Plimsoll has no dtype {value!r}; it has {', '.join(BY_NAME)}")
