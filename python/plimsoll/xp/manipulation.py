"""Arrays in other shapes."""

import builtins
import operator

from .. import _core, composed
from .promotion import array, together


def _axis(axis, rank, what="axis"):
    axis = operator.index(axis)
    if not -rank <= axis < rank:
        raise IndexError(f"there is no {what} {axis} of {rank}")
    return axis % rank


def axes_of(axis, rank):
    """The axes that are meant, from the first on; all of them if none is said."""
    if axis is None:
        return list(range(rank))
    return [_axis(one, rank) for one in (axis if isinstance(axis, (tuple, list)) else (axis,))]


def reshape(x, /, shape, *, copy=None):
    return _core.reshape(array(x), [operator.index(n) for n in (shape if isinstance(shape, (tuple, list)) else (shape,))])


def broadcast_to(x, /, shape):
    return _core.broadcast_to(array(x), list(shape))


def broadcast_arrays(*arrays):
    shape = ()
    for x in arrays:
        shape = _broadcast(shape, tuple(array(x)._shape))
    return [_core.broadcast_to(array(x), list(shape)) for x in arrays]


def broadcast_shape(first, second):
    return _broadcast(tuple(first), tuple(second))


def _broadcast(first, second):
    rank = builtins.max(len(first), len(second))
    first, second = ((1,) * (rank - len(one)) + one for one in (first, second))
    if builtins.any(a != b and 1 not in (a, b) for a, b in zip(first, second)):
        raise ValueError(f"shapes {first} and {second} do not broadcast")
    return tuple(b if a == 1 else a for a, b in zip(first, second))


def concat(arrays, /, *, axis=0):
    arrays = together(*arrays)
    if axis is None:
        arrays, axis = [_core.reshape(x, [-1]) for x in arrays], 0
    return _core.concat(arrays, _axis(axis, len(arrays[0]._shape)), False)


def stack(arrays, /, *, axis=0):
    arrays = together(*arrays)
    return _core.concat(arrays, _axis(axis, len(arrays[0]._shape) + 1), True)


def unstack(x, /, *, axis=0):
    x = moveaxis(x, axis, 0)
    return tuple(x[i] for i in range(x._shape[0]))


def expand_dims(x, /, axis=0):
    x = array(x)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    rank = len(x._shape) + len(axes)
    for one in sorted(_axis(one, rank) for one in axes):
        x = _core.along("unsqueeze", x, one)
    return x


def squeeze(x, /, axis):
    x = array(x)
    axes = axes_of(axis, len(x._shape))
    for one in axes:
        if x._shape[one] != 1:
            raise ValueError(f"axis {one} has {x._shape[one]} elements; only one of a single element goes")
    return _core.reshape(x, [n for at, n in enumerate(x._shape) if at not in axes])


def permute_dims(x, /, axes):
    return _core.permute(array(x), axes_of(tuple(axes), len(x._shape)))


def moveaxis(x, source, destination, /):
    x = array(x)
    rank = len(x._shape)
    source, destination = axes_of(source, rank), axes_of(destination, rank)
    order = [axis for axis in range(rank) if axis not in source]
    for to, axis in sorted(zip(destination, source)):
        order.insert(to, axis)
    return _core.permute(x, order)


def flip(x, /, *, axis=None):
    x = array(x)
    return _core.flip(x, axes_of(axis, len(x._shape))) if x._shape else x


def roll(x, /, shift, *, axis=None):
    x = array(x)
    if axis is None:
        return _core.reshape(roll(_core.reshape(x, [-1]), shift, axis=0), x._shape)
    shifts = shift if isinstance(shift, (tuple, list)) else [shift] * len(axis if isinstance(axis, (tuple, list)) else (axis,))
    for one, by in zip(axes_of(axis, len(x._shape)), shifts):
        x = composed.roll(x, by, one)
    return x


def repeat(x, repeats, /, *, axis=None):
    x = array(x)
    if axis is None:
        x, axis = _core.reshape(x, [-1]), 0
    repeats = repeats.numpy().tolist() if hasattr(repeats, "numpy") else repeats
    return composed.repeat(x, repeats, axis)


def tile(x, repetitions, /):
    x = array(x)
    repetitions = list(repetitions)
    rank = builtins.max(len(repetitions), len(x._shape))
    x = _core.reshape(x, [1] * (rank - len(x._shape)) + list(x._shape))
    return _core.tile(x, [1] * (rank - len(repetitions)) + repetitions)
