# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from . import creation as creation
from . import elementwise as elementwise
from . import info as info
from . import manipulation as manipulation
from . import products as products
from . import promotion as promotion
from . import reduction as reduction
from ..dtypes import DType as DType
from .creation import arange as arange
from .creation import asarray as asarray
from .creation import empty as empty
from .creation import eye as eye
from .creation import from_dlpack as from_dlpack
from .creation import full as full
from .creation import full_like as full_like
from .creation import linspace as linspace
from .creation import meshgrid as meshgrid
from .creation import ones as ones
from .creation import ones_like as ones_like
from .creation import tril as tril
from .creation import triu as triu
from .creation import zeros as zeros
from .creation import zeros_like as empty_like
from .creation import zeros_like as zeros_like
from .elementwise import abs as abs
from .elementwise import acos as acos
from .elementwise import acosh as acosh
from .elementwise import add as add
from .elementwise import asin as asin
from .elementwise import asinh as asinh
from .elementwise import atan as atan
from .elementwise import atan2 as atan2
from .elementwise import atanh as atanh
from .elementwise import bitwise_and as bitwise_and
from .elementwise import bitwise_invert as bitwise_invert
from .elementwise import bitwise_or as bitwise_or
from .elementwise import bitwise_xor as bitwise_xor
from .elementwise import ceil as ceil
from .elementwise import clip as clip
from .elementwise import copysign as copysign
from .elementwise import cos as cos
from .elementwise import cosh as cosh
from .elementwise import divide as divide
from .elementwise import equal as equal
from .elementwise import exp as exp
from .elementwise import expm1 as expm1
from .elementwise import floor as floor
from .elementwise import floor_divide as floor_divide
from .elementwise import greater as greater
from .elementwise import greater_equal as greater_equal
from .elementwise import hypot as hypot
from .elementwise import isfinite as isfinite
from .elementwise import isinf as isinf
from .elementwise import isnan as isnan
from .elementwise import less as less
from .elementwise import less_equal as less_equal
from .elementwise import log as log
from .elementwise import log10 as log10
from .elementwise import log1p as log1p
from .elementwise import log2 as log2
from .elementwise import logaddexp as logaddexp
from .elementwise import logical_and as logical_and
from .elementwise import logical_not as logical_not
from .elementwise import logical_or as logical_or
from .elementwise import logical_xor as logical_xor
from .elementwise import maximum as maximum
from .elementwise import minimum as minimum
from .elementwise import multiply as multiply
from .elementwise import negative as negative
from .elementwise import not_equal as not_equal
from .elementwise import positive as positive
from .elementwise import pow as pow
from .elementwise import reciprocal as reciprocal
from .elementwise import remainder as remainder
from .elementwise import round as round
from .elementwise import sign as sign
from .elementwise import signbit as signbit
from .elementwise import sin as sin
from .elementwise import sinh as sinh
from .elementwise import sqrt as sqrt
from .elementwise import square as square
from .elementwise import subtract as subtract
from .elementwise import tan as tan
from .elementwise import tanh as tanh
from .elementwise import trunc as trunc
from .manipulation import broadcast_arrays as broadcast_arrays
from .manipulation import broadcast_to as broadcast_to
from .manipulation import concat as concat
from .manipulation import expand_dims as expand_dims
from .manipulation import flip as flip
from .manipulation import moveaxis as moveaxis
from .manipulation import permute_dims as permute_dims
from .manipulation import repeat as repeat
from .manipulation import reshape as reshape
from .manipulation import roll as roll
from .manipulation import squeeze as squeeze
from .manipulation import stack as stack
from .manipulation import tile as tile
from .manipulation import unstack as unstack
from .products import matmul as matmul
from .products import matrix_transpose as matrix_transpose
from .products import tensordot as tensordot
from .products import vecdot as vecdot
from .promotion import astype as astype
from .promotion import can_cast as can_cast
from .promotion import finfo as finfo
from .promotion import iinfo as iinfo
from .promotion import isdtype as isdtype
from .promotion import result_type as result_type
from .reduction import all as all
from .reduction import any as any
from .reduction import argmax as argmax
from .reduction import argmin as argmin
from .reduction import argsort as argsort
from .reduction import count_nonzero as count_nonzero
from .reduction import cumulative_prod as cumulative_prod
from .reduction import cumulative_sum as cumulative_sum
from .reduction import diff as diff
from .reduction import max as max
from .reduction import mean as mean
from .reduction import min as min
from .reduction import prod as prod
from .reduction import searchsorted as searchsorted
from .reduction import sort as sort
from .reduction import std as std
from .reduction import sum as sum
from .reduction import take as take
from .reduction import take_along_axis as take_along_axis
from .reduction import var as var
from .reduction import where as where

__array_api_version__: str
bfloat16: DType
bool: DType
e: float
float16: DType
float32: DType
float64: DType
inf: float
int32: DType
int64: DType
nan: float
newaxis: Any
pi: float
uint8: DType
