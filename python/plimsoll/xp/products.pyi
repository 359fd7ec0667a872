# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from .._core import Tensor as Tensor
from .._core import Variable as Variable
from ..dtypes import DType as DType
from .manipulation import axes_of as axes_of
from .manipulation import broadcast_shape as broadcast_shape
from .promotion import array as array
from .promotion import together as together
_TensorLike: TypeAlias = Tensor | Variable | ArrayLike
_Axes: TypeAlias = int | Sequence[int] | None

def matmul(x1: Any, x2: Any, /) -> Any: ...
def matrix_transpose(x: _TensorLike, /) -> Any: ...
def tensordot(x1: Any, x2: Any, /, *, axes: Any = ...) -> Any: ...
def vecdot(x1: Any, x2: Any, /, *, axis: _Axes = ...) -> Any: ...
