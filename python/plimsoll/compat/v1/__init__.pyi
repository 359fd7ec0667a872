# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from . import train as train
from ..._core import Tensor as Tensor
from ..._core import Variable as Variable
from ...dtypes import DType as DType
from ...graph import Graph as Graph
from ...graph import InteractiveSession as InteractiveSession
from ...graph import Session as Session
from ...graph import disable_eager_execution as disable_eager_execution
from ...graph import disable_eager_execution as disable_v2_behavior
from ...graph import enable_eager_execution as enable_eager_execution
from ...graph import get_default_graph as get_default_graph
from ...graph import get_default_session as get_default_session
from ...graph import global_variables as global_variables
from ...graph import global_variables_initializer as global_variables_initializer
from ...graph import global_variables_initializer as initialize_all_variables
from ...graph import gradients as gradients
from ...graph import group as group
from ...graph import no_op as no_op
from ...graph import placeholder as placeholder
from ...graph import reset_default_graph as reset_default_graph
from ...graph import trainable_variables as trainable_variables
_DTypeLike: TypeAlias = DType | str | type | np.dtype[Any]

AUTO_REUSE: str
def get_variable(name: str | None, shape: Any = ..., dtype: _DTypeLike | None = ..., initializer: Any = ..., trainable: bool | None = ..., **ignored: Any) -> Any: ...
class variable_scope:
    def __enter__(self) -> Any: ...
    def __exit__(self, *_: Any) -> None: ...
    def __init__(self, name_or_scope: Any, default_name: Any = ..., reuse: Any = ..., **ignored: Any) -> None: ...
