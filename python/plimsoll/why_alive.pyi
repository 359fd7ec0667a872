# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from ._core import WhyAlive as WhyAlive
from .function import Function as Function
from .memory import html_of_text as html_of_text
from .nest import flatten as flatten
from .tape import GradientTape as GradientTape

Value: tuple
class _Dead:
    def __init__(self, one: Any) -> None: ...
def why_alive(device: str | None = ...) -> WhyAlive: ...
