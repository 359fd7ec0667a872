# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

class GradientDescentOptimizer:
    def __init__(self, learning_rate: Any, use_locking: Any = ..., name: str | None = ...) -> None: ...
    def apply_gradients(self, grads_and_vars: Any, global_step: Any = ..., name: str | None = ...) -> Any: ...
    def compute_gradients(self, loss: Any, var_list: Any = ...) -> Any: ...
    def minimize(self, loss: Any, global_step: Any = ..., var_list: Any = ..., name: str | None = ...) -> Any: ...
