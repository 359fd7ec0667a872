"""Functions of elements: tables of names, and those that are made of several ops."""

from .. import _core
from ..tensor import elementwise
from .promotion import array, cast, kind_of, together

_FLOATING = {
    "acos": "acos", "asin": "asin", "atan": "atan", "cos": "cos", "cosh": "cosh", "exp": "exp", "expm1": "exp_m1", "log": "ln",
    "log1p": "ln_1p", "log2": "log2", "log10": "log10", "reciprocal": "recip", "sin": "sin", "sinh": "sinh", "sqrt": "sqrt", "tan": "tan",
    "tanh": "tanh",
}  # fmt: skip
_ROUNDING = {"ceil": "ceil", "floor": "floor", "round": "round"}
_NUMERIC = {"abs": "abs", "negative": "neg", "sign": "sign", "square": "square"}
_OF_TWO = {
    "add": "add", "subtract": "sub", "multiply": "mul", "maximum": "maximum", "minimum": "minimum", "pow": "pow", "floor_divide": "floor_div",
    "remainder": "rem", "divide": "div", "atan2": "atan2",
}  # fmt: skip
_ONLY_FLOATS = {"divide", "atan2", "pow"}
_COMPARED = {"equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge"}
_LOGICAL = {"logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor"}


def _check(name, x, *kinds):
    if kind_of(x._dtype) not in kinds:
        raise TypeError(f"xp.{name} is of {' and '.join(kinds)} arrays, not of {x._dtype}")


def _named(name, function):
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The array API's ``{name}``."
    return function


def _unary(name, op, *kinds, is_whole_already=False):
    def apply(x, /):
        x = array(x)
        _check(name, x, *kinds)
        return x if is_whole_already and kind_of(x._dtype) == "int" else _core.unary(op, x)

    return _named(name, apply)


def _binary(name, op, *kinds):
    compute = elementwise(op)

    def apply(x1, x2, /):
        x1, x2 = together(x1, x2)
        _check(name, x1, *kinds)
        return compute(x1, x2)

    return _named(name, apply)


def _logical(name, op):
    def apply(x1, x2, /):
        x1, x2 = together(x1, x2)
        _check(name, x1, "bool")
        return _core.pair(op, x1, x2)

    return _named(name, apply)


globals().update({name: _unary(name, op, "float") for name, op in _FLOATING.items()})
globals().update({name: _unary(name, op, "int", "float", is_whole_already=True) for name, op in _ROUNDING.items()})
globals().update({name: _unary(name, op, "int", "float") for name, op in _NUMERIC.items()})
globals().update({name: _binary(name, op, *(("float",) if name in _ONLY_FLOATS else ("int", "float"))) for name, op in _OF_TWO.items()})
globals().update({name: _binary(name, op, "int", "float", *(("bool",) if name in ("equal", "not_equal") else ()))
                  for name, op in _COMPARED.items()})  # fmt: skip
globals().update({name: _logical(name, op) for name, op in _LOGICAL.items()})


# Of truth values alone: the registry has no ops of bits.
bitwise_and, bitwise_or, bitwise_xor = (_logical(f"bitwise_{op}", f"logical_{op}") for op in ("and", "or", "xor"))


def logical_not(x, /):
    _check("logical_not", array(x), "bool")
    return _core.unary("logical_not", array(x))


def bitwise_invert(x, /):
    _check("bitwise_invert", array(x), "bool")
    return _core.unary("logical_not", array(x))


def positive(x, /):
    _check("positive", array(x), "int", "float")
    return array(x)


def _truths(x, value):
    return _core.full(x._shape, float(value), "bool")


def isfinite(x, /):
    x = array(x)
    return _core.unary("is_finite", x) if kind_of(x._dtype) == "float" else _truths(x, True)


def isnan(x, /):
    x = array(x)
    return _core.unary("is_nan", x) if kind_of(x._dtype) == "float" else _truths(x, False)


def isinf(x, /):
    x = array(x)
    if kind_of(x._dtype) != "float":
        return _truths(x, False)
    return _core.unary("logical_not", _core.pair("logical_or", _core.unary("is_finite", x), _core.unary("is_nan", x)))


def trunc(x, /):
    x = array(x)
    _check("trunc", x, "int", "float")
    if kind_of(x._dtype) == "int":
        return x
    return _core.select(_core.binary("lt", x, 0.0), _core.unary("ceil", x), _core.unary("floor", x))


def signbit(x, /):
    """Whether the sign is minus, that of zero included."""
    x = array(x)
    _check("signbit", x, "float")
    below, of_zero = _core.binary("lt", x, 0.0), _core.binary("lt", _core.unary("recip", x), 0.0)
    return _core.pair("logical_or", below, _core.pair("logical_and", _core.binary("eq", x, 0.0), of_zero))


def copysign(x1, x2, /):
    x1, x2 = together(x1, x2)
    size = _core.unary("abs", x1)
    sign = _core.select(signbit(x2), _core.full(x2._shape, -1.0, x2._dtype), _core.full(x2._shape, 1.0, x2._dtype))
    return _core.binary("mul", size, sign)


def acosh(x, /):
    x = array(x)
    _check("acosh", x, "float")
    return _core.unary("ln", x + _core.unary("sqrt", x * x - 1.0))


def asinh(x, /):
    x = array(x)
    _check("asinh", x, "float")
    size = _core.unary("abs", x)
    found = _core.unary("ln_1p", size + size * size / (1.0 + _core.unary("sqrt", size * size + 1.0)))
    return copysign(found, x)


def atanh(x, /):
    x = array(x)
    _check("atanh", x, "float")
    return 0.5 * (_core.unary("ln_1p", x) - _core.unary("ln_1p", -x))


def hypot(x1, x2, /):
    x1, x2 = (_core.unary("abs", x) for x in together(x1, x2))
    _check("hypot", x1, "float")
    large, small = _core.binary("maximum", x1, x2), _core.binary("minimum", x1, x2)
    ratio = small / _core.select(_core.binary("eq", large, 0.0), _core.full(large._shape, 1.0, large._dtype), large)
    return large * _core.unary("sqrt", 1.0 + ratio * ratio)


def logaddexp(x1, x2, /):
    x1, x2 = together(x1, x2)
    _check("logaddexp", x1, "float")
    large, small = _core.binary("maximum", x1, x2), _core.binary("minimum", x1, x2)
    return large + _core.unary("ln_1p", _core.unary("exp", small - large))


def clip(x, /, min=None, max=None):
    x = array(x)
    _check("clip", x, "int", "float")
    if min is not None:
        x = _core.binary("maximum", x, cast(array(min, x._dtype), x._dtype))
    if max is not None:
        x = _core.binary("minimum", x, cast(array(max, x._dtype), x._dtype))
    return x


__all__ = [*_FLOATING, *_ROUNDING, *_NUMERIC, *_OF_TWO, *_COMPARED, *_LOGICAL, "acosh", "asinh", "atanh", "bitwise_and", "bitwise_invert",
           "bitwise_or", "bitwise_xor", "clip", "copysign", "hypot", "isfinite", "isinf", "isnan", "logaddexp", "logical_not", "positive",
           "signbit", "trunc"]  # fmt: skip
