"""TensorFlow's names for the ops of the registry: one table for each family.

A row says which op of the extension module a name stands for. Names of a family have the same arguments, which are TensorFlow's.
"""

from . import _core
from ._examples import EXAMPLES
from .tensor import Value, convert_to_tensor, divide, elementwise, logical

UNARY = {
    "abs": "abs", "acos": "acos", "asin": "asin", "atan": "atan", "ceil": "ceil", "cos": "cos", "cosh": "cosh", "erf": "erf",
    "exp": "exp", "expm1": "exp_m1", "floor": "floor", "is_finite": "is_finite", "is_nan": "is_nan", "log": "ln",
    "log1p": "ln_1p", "log_sigmoid": "log_sigmoid", "logical_not": "logical_not", "negative": "neg", "reciprocal": "recip",
    "round": "round", "rsqrt": "rsqrt", "sigmoid": "sigmoid", "sign": "sign", "sin": "sin", "sinh": "sinh",
    "softplus": "softplus", "sqrt": "sqrt", "square": "square", "tan": "tan", "tanh": "tanh",
}  # fmt: skip
NN_UNARY = {
    "relu": "relu", "relu6": "relu6", "selu": "selu", "sigmoid": "sigmoid", "silu": "silu", "swish": "silu",
    "softplus": "softplus", "tanh": "tanh", "mish": "mish",
}  # fmt: skip
BINARY = {
    "add": "add", "atan2": "atan2", "equal": "eq", "floordiv": "floor_div", "floormod": "rem", "greater": "gt",
    "greater_equal": "ge", "less": "lt", "less_equal": "le", "maximum": "maximum", "minimum": "minimum", "mod": "rem",
    "multiply": "mul", "not_equal": "ne", "pow": "pow", "subtract": "sub",
}  # fmt: skip
LOGICAL = {"logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor"}
REDUCE = {
    "reduce_all": "all", "reduce_any": "any", "reduce_euclidean_norm": "norm", "reduce_logsumexp": "logsumexp",
    "reduce_max": "max", "reduce_mean": "mean", "reduce_min": "min", "reduce_prod": "prod", "reduce_std": "std",
    "reduce_sum": "sum", "reduce_variance": "var",
}  # fmt: skip
ALONG = {"softmax": "softmax", "log_softmax": "log_softmax"}


def tensor(value):
    """The value itself where it is a tensor or a variable, else a tensor of it."""
    return value if isinstance(value, Value) else convert_to_tensor(value)


def _unary(op):
    return lambda x, name=None: _core.unary(op, tensor(x))


def _binary(function):
    return lambda x, y, name=None: function(x, y)


def _reduce(op):
    def apply(input_tensor, axis=None, keepdims=False, name=None):
        axes = None if axis is None else [int(a) for a in (axis if isinstance(axis, (list, tuple)) else [axis])]
        return _core.reduce(op, tensor(input_tensor), axes, bool(keepdims))

    return apply


def _along(op):
    return lambda logits, axis=-1, name=None: _core.along(op, tensor(logits), axis)


def _made(space, table, make):
    """The functions of a table, for the module of TensorFlow's in which they are."""
    functions = {}
    for name, op in table.items():
        function = functions[name] = make(op)
        function.__name__ = function.__qualname__ = name
        function.__module__ = f"{__package__}.{space}"
        arguments, shown, result = EXAMPLES[op]
        function.__doc__ = f"""TensorFlow's ``{name}``: the op ``{op}``.

    >>> import plimsoll as tf
    >>> x = tf.{space}.{name}({arguments})
    >>> print({shown})
    {result.replace(chr(10), chr(10) + "    ")}
    """
    return functions


MATH = {
    **_made("math", UNARY, _unary),
    **_made("math", BINARY, lambda op: _binary(elementwise(op))),
    **_made("math", LOGICAL, lambda op: _binary(logical(op))),
    **_made("math", REDUCE, _reduce),
    **_made("math", {"divide": "div", "truediv": "div"}, lambda op: _binary(divide)),
}
NN = {**_made("nn", NN_UNARY, _unary), **_made("nn", ALONG, _along)}
