"""``plimsoll.xp``: the names and rules of the Python array API, over tensors.

Code that is written for the array API takes this namespace, or finds it by ``x.__array_namespace__()``. What it makes are tensors: they have a
line, a tape can watch them, and nothing writes into them, so ``x[i] = y`` is not there. Nor is what has a size that depends on values
(``nonzero``, ``unique_*``, masks as indices), nor dtypes that the framework has not (``int8``, ``int16``, ``uint16`` to ``uint64``, complex numbers).

>>> from plimsoll import xp
>>> x = xp.reshape(xp.arange(6, dtype=xp.float32), (2, 3))
>>> xp.sum(x, axis=1)
<tf.Tensor: shape=(2,), dtype=float32, numpy=
array([ 3., 12.], dtype=float32)>
"""

from ..dtypes import bfloat16, bool, float16, float32, float64, int32, int64, uint8  # noqa: F401
from ..missing import missing as _missing
from .creation import (  # noqa: F401
    arange, asarray, empty, empty_like, eye, from_dlpack, full, full_like, linspace, meshgrid, ones, ones_like, tril, triu, zeros,
    zeros_like,
)  # fmt: skip
from .elementwise import *  # noqa: F401, F403
from .info import __array_namespace_info__  # noqa: F401
from .manipulation import (  # noqa: F401
    broadcast_arrays, broadcast_to, concat, expand_dims, flip, moveaxis, permute_dims, repeat, reshape, roll, squeeze, stack, tile,
    unstack,
)  # fmt: skip
from .promotion import astype, can_cast, finfo, iinfo, isdtype, result_type  # noqa: F401
from .products import matmul, matrix_transpose, tensordot, vecdot  # noqa: F401
from .reduction import (  # noqa: F401
    all, any, argmax, argmin, argsort, count_nonzero, cumulative_prod, cumulative_sum, diff, max, mean, min, prod, searchsorted, sort, std,
    sum, take, take_along_axis, var, where,
)  # fmt: skip

__array_api_version__ = "2024.12"
e, inf, nan, newaxis, pi = 2.718281828459045, float("inf"), float("nan"), None, 3.141592653589793

__getattr__ = _missing("xp")
