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
from ..random import set_seed as set_seed
from .backend import clear_session as clear_session
_TensorLike: TypeAlias = Tensor | Variable | ArrayLike

def set_random_seed(seed: int | None) -> Any: ...
def to_categorical(x: _TensorLike, num_classes: Any = ...) -> Any: ...
