# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from .base import NativeLayer as NativeLayer
from .base import refuse as refuse
_Axes: TypeAlias = int | Sequence[int] | None

class Add(_Merge): ...
class Concatenate(NativeLayer):
    def __init__(self, axis: _Axes = ..., **common: Any) -> None: ...
class MultiHeadAttention(NativeLayer):
    def __init__(self, num_heads: Any, key_dim: Any, value_dim: Any = ..., dropout: Any = ..., use_bias: bool = ..., output_shape: Any = ..., attention_axes: Any = ..., flash_attention: Any = ..., kernel_initializer: Any = ..., bias_initializer: Any = ..., kernel_regularizer: Any = ..., bias_regularizer: Any = ..., kernel_constraint: Any = ..., bias_constraint: Any = ..., seed: int | None = ..., **common: Any) -> None: ...
class Multiply(_Merge): ...
class Subtract(_Merge): ...
class _Merge(NativeLayer):
    def __init__(self, **common: Any) -> None: ...
add: Any
def concatenate(inputs: Any, axis: _Axes = ..., **kwargs: Any) -> Any: ...
multiply: Any
subtract: Any
