# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from ._core import Tensor as Tensor
from .array_ops import einsum as einsum
from .array_ops import eye as eye
from .array_ops import matmul as matmul
_Axes: TypeAlias = int | Sequence[int] | None

def norm(tensor: Any, ord: Any = ..., axis: _Axes = ..., keepdims: bool | None = ..., name: str | None = ...) -> Tensor: ...
