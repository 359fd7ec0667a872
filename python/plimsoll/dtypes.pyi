# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

BY_NAME: dict
class DType:
    def __eq__(self, other: Any) -> Any: ...
    def __hash__(self) -> int: ...
    def __init__(self, name: str | None, size: Any, kind: Any) -> None: ...
    def __repr__(self) -> str: ...
    def __str__(self) -> str: ...
    @property
    def as_numpy_dtype(self) -> Any: ...
def as_dtype(value: Any) -> Any: ...
bfloat16: DType
bool: DType
double: DType
float16: DType
float32: DType
float64: DType
half: DType
int32: DType
int64: DType
uint8: DType
