# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from .._core import Tensor as Tensor
from .._core import Variable as Variable
from .layers.base import Layer as Layer
from .symbolic import Graph as Graph

def built(model: Any, alive: Any) -> Any: ...
