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
from .tensor import TensorShape as TensorShape
_DTypeLike: TypeAlias = DType | str | type | np.dtype[Any]

class TensorSpec:
    def __eq__(self, other: Any) -> Any: ...
    def __hash__(self) -> int: ...
    def __init__(self, shape: Any, dtype: _DTypeLike | None = ..., name: str | None = ...) -> None: ...
    def __repr__(self) -> str: ...
    @classmethod
    def from_tensor(cls, tensor: Any, name: str | None = ...) -> Any: ...
    def is_compatible_with(self, value: Any) -> Any: ...
Value: tuple
def spec_of(value: Any) -> Any: ...
