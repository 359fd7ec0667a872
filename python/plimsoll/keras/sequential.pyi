# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from .layers.base import Layer as Layer
from .layers.core import InputLayer as InputLayer
from .model import Model as Model
from .symbolic import KerasTensor as KerasTensor

class Sequential(Model):
    def __init__(self, layers: Any = ..., trainable: bool | None = ..., name: str | None = ...) -> None: ...
    def add(self, layer: Any) -> Any: ...
    @property
    def layers(self) -> Any: ...
    def pop(self) -> Any: ...
