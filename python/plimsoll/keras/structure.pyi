# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from ..nest import flatten as flatten
from ..nest import pack as pack

def example_shapes(tensors: Any) -> Any: ...
def leaves(structure: Any) -> Any: ...
def map_shapes(function: Any, shapes: Any) -> Any: ...
def map_structure(function: Any, structure: Any) -> Any: ...
def with_batch(shapes: Any) -> Any: ...
