"""Plimsoll: deep learning that never goes over a stated memory limit, with TensorFlow's names.

``import plimsoll as tf`` runs code that was written for TensorFlow's tensors, variables and tapes. A name that TensorFlow has and
this package has not raises an error that says so. What only Plimsoll has: ``limit``, ``report``, ``stats``, ``GradientTape.saved``.
"""

import os as _os
import types as _types

from . import _core

_core.skip_frames_below(_os.path.dirname(_os.path.abspath(__file__)) + _os.sep)
_os.register_at_fork(after_in_child=_core.after_fork_in_child)

from . import array_ops as _array_ops, compat as _compat, config as _config, data, debugging, dtypes, errors, names as _names, nest  # noqa: E402
from .dtypes import (  # noqa: E402
    DType, as_dtype, bfloat16, bool, double, float16, float32, float64, half, int32, int64, uint8,
)  # fmt: skip
from .config import device  # noqa: E402
from .custom_gradient import custom_gradient, recompute_grad  # noqa: E402
from .function import executing_eagerly, function, inside_function  # noqa: E402
from .graph import Graph, gradients, group, no_op  # noqa: E402
from .memory import Footprint, Report, Saved, limit, plan, profile, report, reset_peaks, stats, trim  # noqa: E402
from .specs import TensorSpec  # noqa: E402
from .tape import GradientTape, UnconnectedGradients  # noqa: E402
from .tensor import Tensor, TensorShape, Variable, convert_to_tensor, from_dlpack  # noqa: E402

_MISSING = "Plimsoll has no tf.{}. docs/python.md lists what is there"


def _namespace(name, members):
    """A module of TensorFlow's: its members, and an error that says so for every other name."""
    module = _types.ModuleType(f"{__name__}.{name}", f"TensorFlow's ``tf.{name}``.")
    module.__dict__.update(members)
    module.__getattr__ = lambda member: _missing(f"{name}.{member}")
    return module


def _missing(name):
    raise AttributeError(_MISSING.format(name))


def __getattr__(name):
    if name == "keras":  # imported when it is first used
        import importlib

        return importlib.import_module(".keras", __name__)
    _missing(name)


def _of(*members):
    return {member: getattr(_array_ops, member) for member in members}


_ARRAY = _of(
    "add_n", "argmax", "argmin", "argsort", "broadcast_to", "cast", "clip_by_value", "concat", "constant", "einsum",
    "expand_dims", "eye", "fill", "gather", "identity", "is_tensor", "linspace", "matmul", "norm", "one_hot", "ones",
    "ones_like", "pad", "range", "rank", "reshape", "reverse", "shape", "size", "sort", "split", "squeeze", "stack",
    "stop_gradient", "tile", "transpose", "unstack", "where", "zeros", "zeros_like", "cumsum",
)  # fmt: skip
_MATH = {**_names.MATH, **_of("add_n", "argmax", "argmin", "cumsum", "cumprod", "top_k"), "softmax": _names.NN["softmax"]}
_TOP = [name for name in _names.MATH if name not in ("erf", "log", "log1p", "expm1", "rsqrt", "softplus", "log_sigmoid",
        "reciprocal", "is_finite", "is_nan", "reduce_std", "reduce_variance", "reduce_euclidean_norm", "ceil", "mod", "floordiv",
        "floormod", "logical_xor")]  # fmt: skip
globals().update(_ARRAY)
globals().update({name: _names.MATH[name] for name in _TOP})

math = _namespace("math", _MATH)
nn = _namespace("nn", {**_names.NN, **_of(
    "dropout", "elu", "embedding_lookup", "gelu", "leaky_relu", "softmax_cross_entropy_with_logits",
    "sparse_softmax_cross_entropy_with_logits", "top_k")})  # fmt: skip
linalg = _namespace("linalg", _of("einsum", "eye", "matmul", "norm"))
random = _namespace("random", _of("normal", "set_seed", "truncated_normal", "uniform"))
config = _namespace("config", {**_config.NAMES, "experimental": _namespace("config.experimental", _config.EXPERIMENTAL)})
experimental = _namespace("experimental", {"dlpack": _namespace("experimental.dlpack", {
    "from_dlpack": from_dlpack, "to_dlpack": lambda tf_tensor: tf_tensor.__dlpack__()})})  # fmt: skip
_PUBLIC = {name: value for name, value in globals().items() if not name.startswith("_")}
compat = _namespace("compat", {"v1": _namespace("compat.v1", {
    **_PUBLIC, **_compat.V1, "train": _namespace("compat.v1.train", _compat.TRAIN)})})  # fmt: skip

newaxis = None
__version__ = "0.1.0"
