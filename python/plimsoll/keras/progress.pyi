# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

class Progress:
    def __init__(self, verbose: int | str, epochs: int) -> None: ...
    def epoch_begins(self, epoch: Any) -> Any: ...
    def epoch_ends(self, n_batches: Any, logs: Any) -> Any: ...
    def moves(self, batch: Any, n_batches: Any, logs: Any) -> Any: ...
