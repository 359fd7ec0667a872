"""Precision policies: in which dtype layers compute, and in which they keep their variables."""

from .. import dtypes
from ..missing import missing as _missing

_COMPUTE = {"float32": "float32", "float64": "float64", "mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}


class Policy:
    """A policy by its name: float32, float64, mixed_float16 or mixed_bfloat16."""

    def __init__(self, name):
        if isinstance(name, Policy):
            name = name.name
        if name not in _COMPUTE:
            raise ValueError(f"there is no policy {name!r}; there are {', '.join(_COMPUTE)}")
        self.name = name

    @property
    def compute_dtype(self):
        return _COMPUTE[self.name]

    @property
    def variable_dtype(self):
        return "float64" if self.name == "float64" else "float32"

    def __eq__(self, other):
        return isinstance(other, Policy) and self.name == other.name

    def __hash__(self):
        return hash(self.name)

    def __repr__(self):
        return f'<DTypePolicy "{self.name}">'


_current = Policy("float32")


def set_global_policy(policy):
    """Layers that are made from now on have this policy."""
    global _current
    _current = Policy(policy)


def global_policy():
    return _current


def of_layer(dtype):
    """The policy of a layer: what it was told, a policy or a dtype, or the global one."""
    if dtype is None:
        return _current
    if isinstance(dtype, (Policy, str)):
        return Policy(dtype)
    return Policy(dtypes.as_dtype(dtype).name)


set_global_dtype_policy, global_dtype_policy, dtype_policy = set_global_policy, global_policy, global_policy
DTypePolicy = Policy


class experimental:
    """The names of TensorFlow 2.0 to 2.3."""

    Policy = Policy
    set_policy = staticmethod(set_global_policy)
    global_policy = staticmethod(global_policy)


__getattr__ = _missing("keras.mixed_precision")
