# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from _thread import _local as _local

class _Context(_local):
    has_added: bool
    training: Any
def calling(training: Any) -> Any: ...
def has_added() -> Any: ...
def note_added() -> Any: ...
def training() -> Any: ...
