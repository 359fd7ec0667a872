# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from ._core import Tensor as Tensor
from ._core import Variable as Variable
from .dtypes import DType as DType
_DTypeLike: TypeAlias = DType | str | type | np.dtype[Any]

def normal(shape: Any, mean: Any = ..., stddev: Any = ..., dtype: _DTypeLike | None = ..., seed: int | None = ..., name: str | None = ...) -> Tensor: ...
def set_seed(seed: int | None) -> None: ...
def shuffle(value: Any, seed: int | None = ..., name: str | None = ...) -> Tensor: ...
def truncated_normal(shape: Any, mean: Any = ..., stddev: Any = ..., dtype: _DTypeLike | None = ..., seed: int | None = ..., name: str | None = ...) -> Tensor: ...
def uniform(shape: Any, minval: Any = ..., maxval: Any = ..., dtype: _DTypeLike | None = ..., seed: int | None = ..., name: str | None = ...) -> Tensor: ...
