"""Dtypes of the array API: which one two have in common, and what each can hold.

Numbers of Python are weak: they take the dtype of the array beside them, if it is of their kind.
"""

import builtins
import types

import numpy as np

from .. import _core, dtypes
from ..tensor import Tensor, Value, Variable, convert_to_tensor

_ORDER = {"bool": ("bool",), "int": ("uint8", "int32", "int64"), "float": ("float16", "bfloat16", "float32", "float64")}
_KIND = {name: kind for kind, names in _ORDER.items() for name in names}
_KINDS = {
    "bool": {"bool"}, "signed integer": {"int32", "int64"}, "unsigned integer": {"uint8"}, "integral": {"uint8", "int32", "int64"},
    "real floating": set(_ORDER["float"]), "complex floating": set(), "numeric": set(_ORDER["int"]) | set(_ORDER["float"]),
}  # fmt: skip


def promoted(first, second):
    """The dtype that two names have in common."""
    if first == second:
        return first
    if _KIND[first] != _KIND[second] or {first, second} == {"float16", "bfloat16"}:
        raise TypeError(f"{first} and {second} have no dtype in common: use xp.astype")
    order = _ORDER[_KIND[first]]
    return order[builtins.max(order.index(first), order.index(second))]


def is_scalar(value):
    return isinstance(value, (bool, int, float)) and not isinstance(value, np.generic)


def kind_of(name):
    return _KIND[name]


def _of_scalar(value, name):
    """The dtype of a number of Python beside an array."""
    kind = _KIND[name]
    fits = kind == "bool" if isinstance(value, bool) else kind in ("int", "float") if isinstance(value, int) else kind == "float"
    if not fits:
        raise TypeError(f"{value!r} beside an array of {name}: use xp.astype")
    return name


def array(value, like=None):
    """A tensor; a number of Python in the dtype of the array beside it."""
    if isinstance(value, Variable):
        return value.value()
    if isinstance(value, Tensor):
        return value
    if is_scalar(value) and like is not None:
        return _core.cast(convert_to_tensor(np.asarray(value)), _of_scalar(value, like)) if isinstance(value, bool) else (
            convert_to_tensor(np.asarray(value, dtypes.BY_NAME[_of_scalar(value, like)].as_numpy_dtype)))
    raise TypeError(f"an array was expected, not {type(value).__name__}")


def together(*values):
    """Arrays of the dtype that they have in common."""
    names = [value._dtype for value in values if isinstance(value, Value)]
    if not names:
        raise TypeError("an array was expected among the arguments")
    name = names[0]
    for other in names[1:]:
        name = promoted(name, other)
    return [cast(array(value, name), name) for value in values]


def cast(x, name):
    return x if x._dtype == name else _core.cast(x, name)


def result_type(*arrays_and_dtypes):
    names = [part._dtype if isinstance(part, Value) else dtypes.as_dtype(part).name for part in arrays_and_dtypes if not is_scalar(part)]
    if not names:
        raise ValueError("an array or a dtype was expected")
    name = names[0]
    for other in names[1:]:
        name = promoted(name, other)
    for value in filter(is_scalar, arrays_and_dtypes):
        _of_scalar(value, name)
    return dtypes.BY_NAME[name]


def astype(x, dtype, /, *, copy=True, device=None):
    check_device(device)
    name = dtypes.as_dtype(dtype).name
    if name == x._dtype:
        return _core.unary("contiguous", array(x)) if copy else array(x)
    return _core.cast(_core.binary("ne", x, 0.0), name) if name == "bool" else _core.cast(array(x), name)


def can_cast(from_, to, /):
    name, to = from_._dtype if isinstance(from_, Value) else dtypes.as_dtype(from_).name, dtypes.as_dtype(to).name
    try:
        return promoted(name, to) == to
    except TypeError:
        return False


def finfo(type, /):
    dtype = dtypes.BY_NAME[type._dtype] if isinstance(type, Value) else dtypes.as_dtype(type)
    if not dtype.is_floating:
        raise ValueError(f"{dtype.name} is no dtype of real numbers")
    if dtype.name == "bfloat16":
        found = {"bits": 16, "eps": 2.0**-7, "max": (2 - 2.0**-7) * 2.0**127, "min": -(2 - 2.0**-7) * 2.0**127, "smallest_normal": 2.0**-126}
    else:
        of = np.finfo(dtype.name)
        found = {"bits": of.bits, **{name: float(getattr(of, name)) for name in ("eps", "max", "min", "smallest_normal")}}
    return types.SimpleNamespace(dtype=dtype, **found)


def iinfo(type, /):
    dtype = dtypes.BY_NAME[type._dtype] if isinstance(type, Value) else dtypes.as_dtype(type)
    if not dtype.is_integer:
        raise ValueError(f"{dtype.name} is no dtype of whole numbers")
    of = np.iinfo(dtype.name)
    return types.SimpleNamespace(bits=of.bits, max=int(of.max), min=int(of.min), dtype=dtype)


def isdtype(dtype, kind):
    name = dtypes.as_dtype(dtype).name
    kinds = kind if isinstance(kind, tuple) else (kind,)
    for one in kinds:
        if isinstance(one, str) and one not in _KINDS:
            raise ValueError(f"there is no kind {one!r}; there are {', '.join(_KINDS)}")
    return builtins.any(name in _KINDS[one] if isinstance(one, str) else name == dtypes.as_dtype(one).name for one in kinds)


def check_device(device):
    """A device is said by `tf.device`; one that is named beside an array may be where it is."""
    if device not in (None, "cpu"):
        raise ValueError(f"device={device!r}: arrays are made where tf.device says")
