# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from ._core import Tensor as Tensor
from ._core import Variable as Variable
from .specs import TensorSpec as TensorSpec
from .tensor import convert_to_tensor as convert_to_tensor

def as_tensor(value: Any) -> Any: ...
def describe(value: Any, text: Any, tensors: Any) -> Any: ...
def replace(value: Any, tensors: Any) -> Any: ...
def words(value: Any) -> Any: ...
