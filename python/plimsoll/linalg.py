"""`tf.linalg`: products and lengths."""

from . import _core, symbolic_calls as _symbolic_calls
from .array_ops import einsum, extents as _extents, eye, matmul  # noqa: F401
from .clipping import global_norm  # noqa: F401
from .composed import band_part, diag, diag_part, l2_normalize, matrix_transpose, matvec, tensordot, trace  # noqa: F401
from .missing import missing as _missing
from .names import tensor as _as_tensor


def norm(tensor, ord="euclidean", axis=None, keepdims=None, name=None):
    """The Euclidean length of all elements, or along axes.

    >>> import plimsoll as tf
    >>> float(tf.norm([3.0, 4.0]))
    5.0
    """
    if ord not in ("euclidean", 2):
        raise NotImplementedError(f"tf.norm is the Euclidean length; ord {ord!r} is not there")
    axes = None if axis is None else _extents(axis)
    return _core.reduce("norm", _as_tensor(tensor), axes, bool(keepdims))


_symbolic_calls.offer(globals(), "linalg")

__getattr__ = _missing("linalg")
