# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from .tensor import convert_to_tensor as convert_to_tensor
from .tensor import divide as divide
from .tensor import elementwise as elementwise
from .tensor import logical as logical

ALONG: dict
BINARY: dict
EXAMPLES: dict
LOGICAL: dict
MATH: dict
NN: dict
NN_UNARY: dict
REDUCE: dict
UNARY: dict
Value: tuple
def tensor(value: Any) -> Any: ...
