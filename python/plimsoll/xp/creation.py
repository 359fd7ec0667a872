"""Arrays that are made: of values, of shapes, of other arrays."""

import builtins
import math

import numpy as np

from .. import _core, composed, dtypes
from ..tensor import Value, convert_to_tensor, from_dlpack as _from_dlpack
from . import promotion

_FLOAT, _INT = dtypes.float32, dtypes.int64


def _shape(shape):
    return [int(n) for n in (shape if isinstance(shape, (tuple, list)) else (shape,))]


def _of_numbers(*numbers):
    return _FLOAT if builtins.any(isinstance(number, float) for number in numbers) else _INT


def asarray(obj, /, *, dtype=None, device=None, copy=None):
    promotion.check_device(device)
    if isinstance(obj, Value):
        found = promotion.array(obj)
        return found if dtype is None else promotion.astype(found, dtype, copy=bool(copy))
    if copy is False and not hasattr(obj, "__dlpack__"):
        raise ValueError("an array of this object is a copy of it")
    if copy is False:
        return _from_dlpack(obj)
    if isinstance(obj, (list, tuple)) and _holds_arrays(obj):
        parts = [asarray(part) for part in obj]
        found = _core.concat(promotion.together(*parts), 0, True)
        return found if dtype is None else promotion.astype(found, dtype, copy=False)
    array = np.asarray(obj)
    if dtype is None:
        if isinstance(obj, (np.ndarray, np.generic)):
            dtype = dtypes.as_dtype(array.dtype)
        else:
            dtype = {"f": _FLOAT, "i": _INT, "b": dtypes.bool}.get(array.dtype.kind)
            if dtype is None:
                raise TypeError(f"an array of {array.dtype} is not there")
    return convert_to_tensor(array.astype(dtypes.as_dtype(dtype).as_numpy_dtype))


def _holds_arrays(values):
    return builtins.any(isinstance(v, Value) or isinstance(v, (list, tuple)) and _holds_arrays(v) for v in values)


def from_dlpack(x, /, *, device=None, copy=None):
    promotion.check_device(device)
    found = promotion.array(x) if isinstance(x, Value) else _from_dlpack(x)
    return _core.unary("contiguous", found) if copy else found


def full(shape, fill_value, *, dtype=None, device=None):
    promotion.check_device(device)
    if isinstance(fill_value, Value):
        name = fill_value._dtype if dtype is None else dtypes.as_dtype(dtype).name
        return _core.broadcast_to(promotion.cast(promotion.array(fill_value), name), _shape(shape))
    if dtype is None:
        dtype = dtypes.bool if isinstance(fill_value, bool) else _of_numbers(fill_value)
    dtype = dtypes.as_dtype(dtype)
    if dtype.is_integer and abs(int(fill_value)) > 2**53:  # a number of ops is a float64
        one = convert_to_tensor(np.asarray(int(fill_value), dtype.as_numpy_dtype))
        return _core.broadcast_to(one, _shape(shape))
    return _core.full(_shape(shape), float(fill_value), dtype.name)


def zeros(shape, *, dtype=None, device=None):
    return full(shape, 0.0, dtype=dtype or _FLOAT, device=device)


def ones(shape, *, dtype=None, device=None):
    return full(shape, 1.0, dtype=dtype or _FLOAT, device=device)


def empty(shape, *, dtype=None, device=None):
    """Zeros: nothing shows what memory held before."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(x, /, fill_value, *, dtype=None, device=None):
    return full(x._shape, fill_value, dtype=dtype or x.dtype, device=device)


def zeros_like(x, /, *, dtype=None, device=None):
    return zeros(x._shape, dtype=dtype or x.dtype, device=device)


def ones_like(x, /, *, dtype=None, device=None):
    return ones(x._shape, dtype=dtype or x.dtype, device=device)


empty_like = zeros_like


def arange(start, /, stop=None, step=1, *, dtype=None, device=None):
    promotion.check_device(device)
    start, stop = (0, start) if stop is None else (start, stop)
    dtype = dtypes.as_dtype(dtype or _of_numbers(start, stop, step))
    n = builtins.max(math.ceil((stop - start) / step), 0)
    # Values beyond the whole numbers that a float64 has are made on the host.
    return convert_to_tensor(np.array([start + i * step for i in range(n)]).astype(dtype.as_numpy_dtype) if n else
                             np.empty(0, dtype.as_numpy_dtype))  # fmt: skip


def linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True):
    promotion.check_device(device)
    return convert_to_tensor(np.linspace(start, stop, num, endpoint=endpoint).astype(dtypes.as_dtype(dtype or _FLOAT).as_numpy_dtype))


def eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None):
    promotion.check_device(device)
    return convert_to_tensor(np.eye(n_rows, n_cols, k=k, dtype=dtypes.as_dtype(dtype or _FLOAT).as_numpy_dtype))


def meshgrid(*arrays, indexing="xy"):
    return list(composed.meshgrid(*promotion.together(*arrays), indexing=indexing)) if arrays else []


def _triangle(x, keep):
    rows, columns = x._shape[-2:]
    at = np.arange(columns)[None, :] - np.arange(rows)[:, None]
    mask = _core.broadcast_to(convert_to_tensor(keep(at)), x._shape)
    return _core.select(mask, x, _core.full(x._shape, 0.0, x._dtype))


def tril(x, /, *, k=0):
    return _triangle(promotion.array(x), lambda at: at <= k)


def triu(x, /, *, k=0):
    return _triangle(promotion.array(x), lambda at: at >= k)


