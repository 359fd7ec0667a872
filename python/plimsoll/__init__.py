"""Plimsoll: deep learning that never goes over a stated memory limit, with TensorFlow's names.

``import plimsoll as tf`` runs code that was written for TensorFlow's tensors, variables and tapes. A name that TensorFlow has and
this package has not raises an error that says so. What only Plimsoll has: ``limit``, ``plan``, ``profile``, ``report``, ``stats``, ``why_alive``,
``GrowthWatch``, ``GradientTape.saved``.
"""

import atexit as _atexit
import os as _os

from . import _core, symbolic_calls as _symbolic_calls
from .clash import warn_of_others as _warn_of_others

_warn_of_others(_os.path.dirname(_os.path.dirname(_os.path.abspath(__file__))))
_core.skip_frames_below(_os.path.dirname(_os.path.abspath(__file__)) + _os.sep)
# What the extension makes at its first look at a frame is made here: for that it takes the GIL by itself, which a thread must not do while the
# interpreter ends.
_core.users_line()
_atexit.register(_core.interpreter_ends)
_os.register_at_fork(after_in_child=_core.after_fork_in_child)

from . import copies as _copies, data, debugging, dtypes, errors, nest  # noqa: E402, F401
from .array_ops import (  # noqa: E402
    add_n, argmax, argmin, argsort, broadcast_to, cast, clip_by_value, concat, constant, cumsum, einsum, expand_dims, eye, fill,
    gather, identity, is_tensor, linspace, matmul, one_hot, ones, ones_like, pad, range, rank, reshape, reverse, shape, size, sort,
    split, squeeze, stack, stop_gradient, tile, transpose, unstack, where, zeros, zeros_like,
)  # fmt: skip
from .clipping import clip_by_global_norm, clip_by_norm  # noqa: E402
from .composed import (  # noqa: E402
    cond, ensure_shape, gather_nd, map_fn, meshgrid, name_scope, print, repeat, roll, sequence_mask, slice, tensordot, while_loop,
)  # fmt: skip
from .config import device  # noqa: E402
from .custom_gradient import custom_gradient, recompute_grad  # noqa: E402
from .dtypes import (  # noqa: E402
    DType, as_dtype, bfloat16, bool, double, float16, float32, float64, half, int32, int64, uint8,
)  # fmt: skip
from .function import executing_eagerly, function, inside_function  # noqa: E402
from .graph import Graph, gradients, group, no_op  # noqa: E402
from .linalg import norm  # noqa: E402
from .memory import (  # noqa: E402
    Footprint, GrowthWatch, Report, Saved, limit, plan, profile, report, reset_peaks, stats, trim,
)  # fmt: skip
from .missing import missing as _missing  # noqa: E402
from .names import MATH as _MATH  # noqa: E402
from .specs import TensorSpec  # noqa: E402
from .tape import GradientTape, UnconnectedGradients  # noqa: E402
from .tensor import Tensor, TensorShape, Variable, convert_to_tensor, from_dlpack  # noqa: E402
from .why_alive import WhyAlive, why_alive  # noqa: E402

# What TensorFlow has in `tf.math` alone.
_IN_MATH_ALONE = {
    "ceil", "erf", "expm1", "floordiv", "floormod", "is_finite", "is_nan", "log", "log1p", "log_sigmoid", "logical_xor", "mod",
    "reciprocal", "reduce_euclidean_norm", "reduce_std", "reduce_variance", "rsqrt", "softplus",
}  # fmt: skip
globals().update({_name: _function for _name, _function in _MATH.items() if _name not in _IN_MATH_ALONE})

from . import compat, config, experimental, linalg, math, nn, random  # noqa: E402

_symbolic_calls.offer(globals())

newaxis = None
__version__ = "0.1.0"


# What is Keras's, under other names.
_INITIALIZERS = {
    "constant_initializer": "Constant", "ones_initializer": "Ones", "random_normal_initializer": "RandomNormal",
    "random_uniform_initializer": "RandomUniform", "zeros_initializer": "Zeros",
}  # fmt: skip


def __getattr__(name):
    if name in ("keras", "xp"):  # imported when it is first used
        import importlib

        return importlib.import_module(f".{name}", __name__)
    if name.startswith("assert_") and hasattr(debugging, name):
        return getattr(debugging, name)
    if name in _INITIALIZERS:
        return getattr(__getattr__("keras").initializers, _INITIALIZERS[name])
    return _missing("")(name)
