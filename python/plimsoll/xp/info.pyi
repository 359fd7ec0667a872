# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from .promotion import isdtype as isdtype

class __array_namespace_info__:
    def capabilities(self) -> Any: ...
    def default_device(self) -> Any: ...
    def default_dtypes(self, *, device: str | None = ...) -> Any: ...
    def devices(self) -> Any: ...
    def dtypes(self, *, device: str | None = ..., kind: Any = ...) -> Any: ...
