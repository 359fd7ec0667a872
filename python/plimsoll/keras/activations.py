"""Activations: functions of tensors, and their names."""

from .. import _core
from ..missing import missing as _missing
from ..names import tensor

_FUNCTIONS = {
    "linear": None, "relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "gelu": "gelu", "silu": "silu",
    "softplus": "softplus", "selu": "selu", "relu6": "relu6", "hard_sigmoid": "hard_sigmoid", "hard_silu": "hard_swish",
    "log_sigmoid": "log_sigmoid", "mish": "mish", "exponential": "exp",
}  # fmt: skip
_ALIASES = {"swish": "silu", "hard_swish": "hard_silu", None: "linear"}


def _function(name, op):
    def apply(x):
        return _core.unary(op, tensor(x)) if op else tensor(x)

    apply.__name__ = apply.__qualname__ = name
    return apply


globals().update({name: _function(name, op) for name, op in _FUNCTIONS.items()})
swish, hard_swish = globals()["silu"], globals()["hard_silu"]


def softmax(x, axis=-1):
    return _core.along("softmax", tensor(x), axis)


def log_softmax(x, axis=-1):
    return _core.along("log_softmax", tensor(x), axis)


def elu(x, alpha=1.0):
    return _core.parametric("elu", tensor(x), float(alpha))


def leaky_relu(x, negative_slope=0.2):
    return _core.parametric("leaky_relu", tensor(x), float(negative_slope))


NAMES = [*_FUNCTIONS, "softmax", "log_softmax", "elu", "leaky_relu"]


def name_of(activation):
    """The name of an activation that was given by name or as a function of ours."""
    if activation is None or isinstance(activation, str):
        name = _ALIASES.get(activation, activation)
        if name not in NAMES:
            raise ValueError(f"there is no activation {activation!r}; there are {', '.join(NAMES)}")
        return name
    name = _ALIASES.get(getattr(activation, "__name__", None), getattr(activation, "__name__", None))
    if name in NAMES and activation in (globals()[name], _of_nn(name)):
        return name
    raise NotImplementedError(
        f"an activation that is Python's own, {activation!r}, cannot be built into a layer; put "
        "tf.keras.layers.Lambda(function) behind the layer"
    )


def _of_nn(name):
    from .. import names, nn

    return names.NN.get(name, getattr(nn, name, None))


def get(identifier):
    """The function of a name; a function as it is."""
    return identifier if callable(identifier) else globals()[name_of(identifier)]


__getattr__ = _missing("keras.activations")
