"""What distinguishes the arguments of two calls of a function, as `tf.function` does.

Tensors and numpy arrays are known by dtype and shape; numbers, truth values and texts by their value; variables and any other
object by being that object. An object is referred to weakly: whoever drops it is not kept from doing so, and none that comes
later is taken for it.
"""

import itertools
import weakref

import numpy as np

from . import _core
from .specs import TensorSpec
from .tensor import Tensor, Variable, convert_to_tensor

_BY_VALUE = (type(None), type(True), int, float, complex, str, bytes, range, type(Ellipsis))
_ARRAYS = (Tensor, np.ndarray, np.generic, TensorSpec)
_serials = {}
_next_serial = itertools.count(1)


def _identity(value):
    """A number that this object has and no other, also after it is gone."""
    key = id(value)
    known = _serials.get(key)
    if known is None:
        known = _serials[key] = (weakref.ref(value, lambda _: _serials.pop(key, None)), next(_next_serial))
    return known[1]


def describe(value, text, tensors):
    """Adds to a list of words what a value is besides its tensors, and these to a list of their own."""
    if isinstance(value, _ARRAYS):
        tensors.append(as_tensor(value))
        text.append("*")
    elif type(value) in _BY_VALUE:
        text.append(f"{type(value).__name__}:{value!r}")
    elif isinstance(value, (list, tuple)):
        kind = type(value)
        text.append(f"{kind.__name__ if kind in (list, tuple) else _identity(kind)}[")
        for part in value:
            describe(part, text, tensors)
        text.append("]")
    elif isinstance(value, dict):
        text.append("{")
        for key in sorted(value):
            text.append(f"{key!r}=")
            describe(value[key], text, tensors)
        text.append("}")
    else:
        try:
            text.append(f"{'variable' if isinstance(value, Variable) else 'object'}{_identity(value)}")
        except TypeError:
            raise TypeError(
                f"an argument of a tf.function is a {type(value).__name__}, which cannot be told from others of its class: it "
                "cannot be referred to weakly; pass a tensor, a number or a text, or use it from the enclosing scope"
            ) from None


def as_tensor(value):
    """The tensor that a function gets for an array or a spec."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, TensorSpec):
        return convert_to_tensor(value)
    if value.shape is None or None in value.shape:
        raise ValueError(f"{value!r}: programs have fixed shapes, so every extent must be known to record one beforehand")
    return _core.described(list(value.shape), value.dtype.name)


def replace(value, tensors):
    """The value with its tensors, in order, replaced by those of an iterator."""
    if isinstance(value, _ARRAYS):
        return next(tensors)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[replace(part, tensors) for part in value])
    if isinstance(value, (list, tuple)):
        return type(value)([replace(part, tensors) for part in value])
    if isinstance(value, dict):
        replaced = {key: replace(value[key], tensors) for key in sorted(value)}
        return type(value)((key, replaced[key]) for key in value)
    return value


def words(value):
    """What a value is, for a person to read."""
    if isinstance(value, _ARRAYS):
        return f"{value.dtype.name}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(words(part) for part in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {words(value[key])}' for key in sorted(value))}}}"
    if type(value) in _BY_VALUE:
        return repr(value)
    return f"<{type(value).__name__} {_identity(value)}>"
