# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from .base import NativeLayer as NativeLayer
from .base import refuse as refuse

class Bidirectional(NativeLayer):
    def __init__(self, layer: Any, merge_mode: Any = ..., weights: Any = ..., backward_layer: Any = ..., **common: Any) -> None: ...
class GRU(_Recurrent):
    def __init__(self, units: int, activation: Any = ..., recurrent_activation: Any = ..., use_bias: bool = ..., kernel_initializer: Any = ..., recurrent_initializer: Any = ..., bias_initializer: Any = ..., kernel_regularizer: Any = ..., recurrent_regularizer: Any = ..., bias_regularizer: Any = ..., dropout: Any = ..., recurrent_dropout: Any = ..., return_sequences: Any = ..., return_state: Any = ..., go_backwards: Any = ..., stateful: Any = ..., unroll: Any = ..., reset_after: Any = ..., use_cudnn: Any = ..., **common: Any) -> None: ...
class LSTM(_Recurrent):
    def __init__(self, units: int, activation: Any = ..., recurrent_activation: Any = ..., use_bias: bool = ..., kernel_initializer: Any = ..., recurrent_initializer: Any = ..., bias_initializer: Any = ..., unit_forget_bias: Any = ..., kernel_regularizer: Any = ..., recurrent_regularizer: Any = ..., bias_regularizer: Any = ..., dropout: Any = ..., recurrent_dropout: Any = ..., return_sequences: Any = ..., return_state: Any = ..., go_backwards: Any = ..., stateful: Any = ..., unroll: Any = ..., use_cudnn: Any = ..., **common: Any) -> None: ...
class SimpleRNN(_Recurrent):
    def __init__(self, units: int, activation: Any = ..., use_bias: bool = ..., kernel_initializer: Any = ..., recurrent_initializer: Any = ..., bias_initializer: Any = ..., kernel_regularizer: Any = ..., recurrent_regularizer: Any = ..., bias_regularizer: Any = ..., dropout: Any = ..., recurrent_dropout: Any = ..., return_sequences: Any = ..., return_state: Any = ..., go_backwards: Any = ..., stateful: Any = ..., unroll: Any = ..., **common: Any) -> None: ...
class _Recurrent(NativeLayer): ...
