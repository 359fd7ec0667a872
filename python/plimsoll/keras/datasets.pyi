# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

class _Dataset:
    def __init__(self, name: str | None, file: Any) -> None: ...
    def load_data(self, *_: Any, **__: Any) -> Any: ...
boston_housing: Any
california_housing: Any
cifar10: Any
cifar100: Any
fashion_mnist: Any
imdb: Any
mnist: Any
reuters: Any
