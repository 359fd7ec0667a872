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
from ..tensor import convert_to_tensor as convert_to_tensor
_TensorLike: TypeAlias = Tensor | Variable | ArrayLike

class L1(Regularizer):
    def __init__(self, l1: Any = ...) -> None: ...
class L1L2(Regularizer):
    def __init__(self, l1: Any = ..., l2: Any = ...) -> None: ...
class L2(Regularizer):
    def __init__(self, l2: Any = ...) -> None: ...
class Regularizer:
    def __call__(self, x: _TensorLike) -> Any: ...
    l1: float
    l2: float
def get(identifier: Any) -> Any: ...
l1 = L1
l1_l2 = L1L2
l2 = L2
