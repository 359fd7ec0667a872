# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from ..tensor import convert_to_tensor as convert_to_tensor

def give_values(layer: Any, values: Any) -> Any: ...
def values_of(layer: Any) -> Any: ...
def without_draws(options: Any) -> Any: ...
