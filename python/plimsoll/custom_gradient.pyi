# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from .names import tensor as tensor
from .nest import flatten as flatten
from .nest import map_structure as map_structure
from .nest import pack as pack
from .tape import GradientTape as GradientTape
from .tape import recording_tapes as recording_tapes
from .tensor import convert_to_tensor as convert_to_tensor

Value: tuple
def custom_gradient(f: Any = ...) -> Any: ...
def recompute_grad(f: Any) -> Any: ...
