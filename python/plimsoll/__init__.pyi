# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from . import array_ops as array_ops
from . import clash as clash
from . import clipping as clipping
from . import compat as compat
from . import composed as composed
from . import config as config
from . import convolutions as convolutions
from . import copies as copies
from . import data as data
from . import debugging as debugging
from . import dtypes as dtypes
from . import errors as errors
from . import experimental as experimental
from . import graph as graph
from . import keras as keras
from . import linalg as linalg
from . import math as math
from . import memory as memory
from . import missing as missing
from . import names as names
from . import nest as nest
from . import nn as nn
from . import random as random
from . import signatures as signatures
from . import specs as specs
from . import symbolic_calls as symbolic_calls
from . import tape as tape
from . import tensor as tensor
from . import xp as xp
from ._core import Footprint as Footprint
from ._core import GrowthWatch as GrowthWatch
from ._core import Report as Report
from ._core import Saved as Saved
from ._core import Tensor as Tensor
from ._core import Variable as Variable
from ._core import WhyAlive as WhyAlive
from .array_ops import add_n as add_n
from .array_ops import argmax as argmax
from .array_ops import argmin as argmin
from .array_ops import argsort as argsort
from .array_ops import broadcast_to as broadcast_to
from .array_ops import cast as cast
from .array_ops import clip_by_value as clip_by_value
from .array_ops import concat as concat
from .array_ops import constant as constant
from .array_ops import cumsum as cumsum
from .array_ops import einsum as einsum
from .array_ops import expand_dims as expand_dims
from .array_ops import eye as eye
from .array_ops import fill as fill
from .array_ops import gather as gather
from .array_ops import identity as identity
from .array_ops import is_tensor as is_tensor
from .array_ops import linspace as linspace
from .array_ops import matmul as matmul
from .array_ops import one_hot as one_hot
from .array_ops import ones as ones
from .array_ops import ones_like as ones_like
from .array_ops import pad as pad
from .array_ops import range as range
from .array_ops import rank as rank
from .array_ops import reshape as reshape
from .array_ops import reverse as reverse
from .array_ops import shape as shape
from .array_ops import size as size
from .array_ops import sort as sort
from .array_ops import split as split
from .array_ops import squeeze as squeeze
from .array_ops import stack as stack
from .array_ops import stop_gradient as stop_gradient
from .array_ops import tile as tile
from .array_ops import transpose as transpose
from .array_ops import unstack as unstack
from .array_ops import where as where
from .array_ops import zeros as zeros
from .array_ops import zeros_like as zeros_like
from .clipping import clip_by_global_norm as clip_by_global_norm
from .clipping import clip_by_norm as clip_by_norm
from .composed import cond as cond
from .composed import ensure_shape as ensure_shape
from .composed import gather_nd as gather_nd
from .composed import map_fn as map_fn
from .composed import meshgrid as meshgrid
from .composed import name_scope as name_scope
from .composed import print as print
from .composed import repeat as repeat
from .composed import roll as roll
from .composed import sequence_mask as sequence_mask
from .composed import slice as slice
from .composed import tensordot as tensordot
from .composed import while_loop as while_loop
from .config import device as device
from .custom_gradient import custom_gradient as custom_gradient
from .custom_gradient import recompute_grad as recompute_grad
from .dtypes import DType as DType
from .dtypes import as_dtype as as_dtype
from .function import executing_eagerly as executing_eagerly
from .function import function as function
from .function import inside_function as inside_function
from .graph import Graph as Graph
from .graph import gradients as gradients
from .graph import group as group
from .graph import no_op as no_op
from .linalg import norm as norm
from .math import abs as abs
from .math import acos as acos
from .math import add as add
from .math import asin as asin
from .math import atan as atan
from .math import atan2 as atan2
from .math import cos as cos
from .math import cosh as cosh
from .math import divide as divide
from .math import equal as equal
from .math import exp as exp
from .math import floor as floor
from .math import greater as greater
from .math import greater_equal as greater_equal
from .math import less as less
from .math import less_equal as less_equal
from .math import logical_and as logical_and
from .math import logical_not as logical_not
from .math import logical_or as logical_or
from .math import maximum as maximum
from .math import minimum as minimum
from .math import multiply as multiply
from .math import negative as negative
from .math import not_equal as not_equal
from .math import pow as pow
from .math import reduce_all as reduce_all
from .math import reduce_any as reduce_any
from .math import reduce_logsumexp as reduce_logsumexp
from .math import reduce_max as reduce_max
from .math import reduce_mean as reduce_mean
from .math import reduce_min as reduce_min
from .math import reduce_prod as reduce_prod
from .math import reduce_sum as reduce_sum
from .math import round as round
from .math import sigmoid as sigmoid
from .math import sign as sign
from .math import sin as sin
from .math import sinh as sinh
from .math import sqrt as sqrt
from .math import square as square
from .math import subtract as subtract
from .math import tan as tan
from .math import tanh as tanh
from .math import truediv as truediv
from .memory import limit as limit
from .memory import plan as plan
from .memory import profile as profile
from .memory import report as report
from .memory import reset_peaks as reset_peaks
from .memory import stats as stats
from .memory import trim as trim
from .specs import TensorSpec as TensorSpec
from .tape import GradientTape as GradientTape
from .tape import UnconnectedGradients as UnconnectedGradients
from .tensor import TensorShape as TensorShape
from .tensor import convert_to_tensor as convert_to_tensor
from .tensor import from_dlpack as from_dlpack
from .why_alive import why_alive as why_alive

__version__: str
bfloat16: DType
bool: DType
double: DType
float16: DType
float32: DType
float64: DType
half: DType
int32: DType
int64: DType
newaxis: Any
uint8: DType
