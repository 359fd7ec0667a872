"""What is said of arrays along axes: sums, extremes, orders, and elements by their places."""

import builtins

import numpy as np

from .. import _core, dtypes
from ..tensor import convert_to_tensor
from .manipulation import axes_of, moveaxis
from .promotion import array, cast, kind_of, together


def _wide(x, dtype):
    """The dtype in which whole numbers are added up: the widest."""
    if dtype is not None:
        return dtypes.as_dtype(dtype).name
    return "int64" if kind_of(x._dtype) in ("int", "bool") else x._dtype


def _reduced(op, x, axis, keepdims):
    axes = axes_of(axis, len(x._shape))
    return _core.reduce(op, x, axes, bool(keepdims)) if axes else x


def sum(x, /, *, axis=None, dtype=None, keepdims=False):
    x = array(x)
    return _reduced("sum", cast(x, _wide(x, dtype)), axis, keepdims)


def prod(x, /, *, axis=None, dtype=None, keepdims=False):
    x = array(x)
    return _reduced("prod", cast(x, _wide(x, dtype)), axis, keepdims)


def max(x, /, *, axis=None, keepdims=False):
    return _reduced("max", array(x), axis, keepdims)


def min(x, /, *, axis=None, keepdims=False):
    return _reduced("min", array(x), axis, keepdims)


def mean(x, /, *, axis=None, keepdims=False):
    return _reduced("mean", array(x), axis, keepdims)


def var(x, /, *, axis=None, correction=0.0, keepdims=False):
    x = array(x)
    axes = axes_of(axis, len(x._shape))
    n = 1
    for one in axes:
        n *= x._shape[one]
    centred = x - _core.reduce("mean", x, axes, True) if axes else x - x
    total = _reduced("sum", centred * centred, axis, keepdims)
    return total / float(n - correction) if n != correction else total / _core.full([], 0.0, total._dtype)


def std(x, /, *, axis=None, correction=0.0, keepdims=False):
    return _core.unary("sqrt", var(x, axis=axis, correction=correction, keepdims=keepdims))


def _is_nonzero(x):
    return x if x._dtype == "bool" else _core.binary("ne", x, 0.0)


def all(x, /, *, axis=None, keepdims=False):
    return _reduced("all", _is_nonzero(array(x)), axis, keepdims)


def any(x, /, *, axis=None, keepdims=False):
    return _reduced("any", _is_nonzero(array(x)), axis, keepdims)


def count_nonzero(x, /, *, axis=None, keepdims=False):
    return _reduced("sum", _core.cast(_is_nonzero(array(x)), "int64"), axis, keepdims)


def _cumulative(op, x, axis, dtype, include_initial):
    x = array(x)
    if axis is None:
        if len(x._shape) != 1:
            raise ValueError("axis is needed for an array of several axes")
        axis = 0
    axis = axes_of(axis, len(x._shape))[0]
    found = _core.along(op, cast(x, _wide(x, dtype)), axis)
    if not include_initial:
        return found
    first = [1 if at == axis else n for at, n in enumerate(x._shape)]
    return _core.concat([_core.full(first, 0.0 if op == "cumsum" else 1.0, found._dtype), found], axis, False)


def cumulative_sum(x, /, *, axis=None, dtype=None, include_initial=False):
    return _cumulative("cumsum", x, axis, dtype, include_initial)


def cumulative_prod(x, /, *, axis=None, dtype=None, include_initial=False):
    return _cumulative("cumprod", x, axis, dtype, include_initial)


def diff(x, /, *, axis=-1, n=1, prepend=None, append=None):
    x = array(x)
    axis = axes_of(axis, len(x._shape))[0]
    parts = together(*[part for part in (prepend, x, append) if part is not None])
    x = parts[0] if len(parts) == 1 else _core.concat(parts, axis, False)
    for _ in range(n):
        cut = lambda start, stop: tuple(slice(start, stop) if at == axis else slice(None) for at in range(len(x._shape)))
        x = x[cut(1, None)] - x[cut(None, -1)]
    return x


def _extreme(op, x, axis, keepdims):
    x = array(x)
    if axis is None:
        found = _core.reduce(op, _core.reshape(x, [-1]), [0], False)
        return _core.reshape(found, [1] * len(x._shape)) if keepdims else found
    return _core.reduce(op, x, axes_of(axis, len(x._shape)), bool(keepdims))


def argmax(x, /, *, axis=None, keepdims=False):
    return _extreme("argmax", x, axis, keepdims)


def argmin(x, /, *, axis=None, keepdims=False):
    return _extreme("argmin", x, axis, keepdims)


def sort(x, /, *, axis=-1, descending=False, stable=True):
    return _core.sort(array(x), axis, bool(descending))[0]


def argsort(x, /, *, axis=-1, descending=False, stable=True):
    return _core.sort(array(x), axis, bool(descending))[1]


def where(condition, x1, x2, /):
    x1, x2 = together(x1, x2)
    return _core.select(array(condition), x1, x2)


def take(x, indices, /, *, axis=None):
    x = array(x)
    if axis is None:
        if len(x._shape) != 1:
            raise ValueError("axis is needed for an array of several axes")
        axis = 0
    axis = axes_of(axis, len(x._shape))[0]
    return _core.gather(x, _from_the_front(array(indices), x._shape[axis]), axis)


def _from_the_front(indices, n):
    return _core.select(_core.binary("lt", indices, 0.0), indices + n, indices)


def take_along_axis(x, indices, /, *, axis=-1):
    """Elements by their places along an axis: each line of the array has its own."""
    x, indices = array(x), array(indices)
    x, indices = moveaxis(x, axis, -1), moveaxis(indices, axis, -1)
    lines = builtins.max(tuple(x._shape[:-1]), tuple(indices._shape[:-1]))
    x, indices = (_core.broadcast_to(part, [*lines, part._shape[-1]]) for part in (x, indices))
    n_lines, n = int(np.prod(lines, dtype=np.int64)), x._shape[-1]
    starts = convert_to_tensor(np.arange(n_lines, dtype=np.int64)[:, None] * n)
    places = _core.cast(_core.reshape(_from_the_front(indices, n), [n_lines, indices._shape[-1]]), "int64") + starts
    found = _core.gather(_core.reshape(x, [-1]), _core.reshape(places, [-1]), 0)
    return moveaxis(_core.reshape(found, [*lines, indices._shape[-1]]), -1, axis)


def searchsorted(x1, x2, /, *, side="left", sorter=None):
    """How many elements of the sorted ``x1`` are before each element of ``x2``."""
    x1, x2 = together(x1, x2)
    if sorter is not None:
        x1 = _core.gather(x1, array(sorter), 0)
    if side not in ("left", "right"):
        raise ValueError(f"side={side!r}; there are 'left' and 'right'")
    before = _core.binary("lt" if side == "left" else "le", x1, _core.along("unsqueeze", x2, len(x2._shape)))
    return _core.reduce("sum", _core.cast(before, "int64"), [len(x2._shape)], False)
