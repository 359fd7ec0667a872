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

class BatchNormalization(NativeLayer):
    def __init__(self, axis: _Axes = ..., momentum: Any = ..., epsilon: Any = ..., center: Any = ..., scale: Any = ..., beta_initializer: Any = ..., gamma_initializer: Any = ..., moving_mean_initializer: Any = ..., moving_variance_initializer: Any = ..., beta_regularizer: Any = ..., gamma_regularizer: Any = ..., beta_constraint: Any = ..., gamma_constraint: Any = ..., synchronized: Any = ..., **common: Any) -> None: ...
class GroupNormalization(NativeLayer):
    def __init__(self, groups: Any = ..., axis: _Axes = ..., epsilon: Any = ..., center: Any = ..., scale: Any = ..., beta_initializer: Any = ..., gamma_initializer: Any = ..., beta_regularizer: Any = ..., gamma_regularizer: Any = ..., beta_constraint: Any = ..., gamma_constraint: Any = ..., **common: Any) -> None: ...
class LayerNormalization(NativeLayer):
    def __init__(self, axis: _Axes = ..., epsilon: Any = ..., center: Any = ..., scale: Any = ..., beta_initializer: Any = ..., gamma_initializer: Any = ..., beta_regularizer: Any = ..., gamma_regularizer: Any = ..., beta_constraint: Any = ..., gamma_constraint: Any = ..., **common: Any) -> None: ...
class RMSNormalization(NativeLayer):
    def __init__(self, axis: _Axes = ..., epsilon: Any = ..., **common: Any) -> None: ...
