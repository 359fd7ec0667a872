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
from .clipping import global_norm as global_norm
from .composed import band_part as band_part
from .composed import diag as diag
from .composed import diag_part as diag_part
from .composed import l2_normalize as l2_normalize
from .composed import matrix_transpose as matrix_transpose
from .composed import matvec as matvec
from .composed import tensordot as tensordot
from .composed import trace as trace
_Axes: TypeAlias = int | Sequence[int] | None

def norm(tensor: Any, ord: Any = ..., axis: _Axes = ..., keepdims: bool | None = ..., name: str | None = ...) -> Tensor: ...
