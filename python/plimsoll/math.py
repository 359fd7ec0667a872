"""`tf.math`: functions of elements, and what is reduced along axes."""

from . import names as _names, symbolic_calls as _symbolic_calls
from .array_ops import add_n, argmax, argmin, cumprod, cumsum, top_k  # noqa: F401
from .composed import (  # noqa: F401
    count_nonzero, divide_no_nan, is_inf, l2_normalize, multiply_no_nan, softsign, squared_difference, xlogy, zero_fraction,
)  # fmt: skip
from .missing import missing as _missing

globals().update(_names.MATH, softmax=_names.NN["softmax"], log_softmax=_names.NN["log_softmax"])

_symbolic_calls.offer(globals(), "math")

__getattr__ = _missing("math")
