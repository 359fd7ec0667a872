"""`tf.math`: functions of elements, and what is reduced along axes."""

from . import names as _names
from .array_ops import add_n, argmax, argmin, cumprod, cumsum, top_k  # noqa: F401
from .missing import missing as _missing

globals().update(_names.MATH, softmax=_names.NN["softmax"])

__getattr__ = _missing("math")
