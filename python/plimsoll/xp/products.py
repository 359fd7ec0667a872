"""Products of arrays."""

from .. import _core, composed
from .manipulation import axes_of, broadcast_shape
from .promotion import array, together


def matmul(x1, x2, /):
    x1, x2 = together(x1, x2)
    if not x1._shape or not x2._shape:
        raise ValueError("matmul is of arrays with one axis at least")
    first, second = len(x1._shape) == 1, len(x2._shape) == 1
    x1 = _core.along("unsqueeze", x1, 0) if first else x1
    x2 = _core.along("unsqueeze", x2, 1) if second else x2
    shape = broadcast_shape(x1._shape[:-2], x2._shape[:-2])
    x1, x2 = (x if tuple(x._shape[:-2]) == shape else _core.broadcast_to(x, [*shape, *x._shape[-2:]]) for x in (x1, x2))
    found = _core.pair("matmul", x1, x2)
    found = _core.along("squeeze", found, -1) if second else found
    return _core.along("squeeze", found, -1 if second else -2) if first else found


def matrix_transpose(x, /):
    x = array(x)
    if len(x._shape) < 2:
        raise ValueError("matrix_transpose is of arrays with two axes at least")
    return _core.permute(x, [*range(len(x._shape) - 2), len(x._shape) - 1, len(x._shape) - 2])


def tensordot(x1, x2, /, *, axes=2):
    x1, x2 = together(x1, x2)
    if not isinstance(axes, int):
        axes = [axes_of(tuple(axes[0]), len(x1._shape)), axes_of(tuple(axes[1]), len(x2._shape))]
    return composed.tensordot(x1, x2, axes)


def vecdot(x1, x2, /, *, axis=-1):
    x1, x2 = together(x1, x2)
    if not -min(len(x1._shape), len(x2._shape)) <= axis < 0:
        raise ValueError(f"axis={axis}: it counts from the end")
    return _core.reduce("sum", _core.binary("mul", x1, x2), [axis], False)
