"""Norms of several tensors together, and tensors scaled so that their norm is at most a number."""

from . import _core
from .names import tensor as _tensor


def global_norm(t_list, name=None):
    """The Euclidean length of all elements of several tensors; those that are None do not count.

    >>> import plimsoll as tf
    >>> float(tf.linalg.global_norm([tf.constant([3.0]), None, tf.constant([4.0])]))
    5.0
    """
    squares = [_core.reduce("sum", _core.unary("square", _tensor(t)), None, False) for t in t_list if t is not None]
    if not squares:
        raise ValueError("global_norm of no tensors")
    total = squares[0]
    for square in squares[1:]:
        total = _core.binary("add", total, square)
    return _core.unary("sqrt", total)


def _shrunk(t, norm, clip_norm):
    """The tensor where a norm is at most so long, else scaled by as much as it is longer."""
    return _core.binary("mul", t, _core.binary("div", _core.full([], float(clip_norm), t._dtype), _core.binary("maximum", norm, float(clip_norm))))


def clip_by_norm(t, clip_norm, axes=None, name=None):
    """The tensor, scaled where it is longer than a number: all of it, or along axes.

    >>> import plimsoll as tf
    >>> tf.clip_by_norm([3.0, 4.0], 1.0).numpy().round(4)
    array([0.6, 0.8], dtype=float32)
    """
    t = _tensor(t)
    along = None if axes is None else [int(a) for a in (axes if isinstance(axes, (list, tuple)) else [axes])]
    return _shrunk(t, _core.reduce("norm", t, along, True), clip_norm)


def clip_by_global_norm(t_list, clip_norm, use_norm=None, name=None):
    """Tensors, scaled together where their common length is more than a number; and that length.

    >>> import plimsoll as tf
    >>> clipped, norm = tf.clip_by_global_norm([tf.constant([3.0]), tf.constant([4.0])], 1.0)
    >>> float(norm), [round(float(t[0]), 4) for t in clipped]
    (5.0, [0.6, 0.8])
    """
    norm = global_norm(t_list) if use_norm is None else _tensor(use_norm)
    return [None if t is None else _shrunk(_tensor(t), norm, clip_norm) for t in t_list], norm
