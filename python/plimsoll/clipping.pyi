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
_TensorLike: TypeAlias = Tensor | Variable | ArrayLike

def clip_by_global_norm(t_list: Any, clip_norm: Any, use_norm: Any = ..., name: str | None = ...) -> Any: ...
def clip_by_norm(t: _TensorLike, clip_norm: Any, axes: Any = ..., name: str | None = ...) -> Any: ...
def global_norm(t_list: Any, name: str | None = ...) -> Any: ...
