# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from . import base as base
from . import conv as conv
from . import core as core
from . import merging as merging
from . import normalization as normalization
from . import recurrent as recurrent
from ..symbolic import Input as Input
from .base import Layer as Layer
from .conv import AveragePooling2D as AveragePooling2D
from .conv import AveragePooling2D as AvgPool2D
from .conv import Conv1D as Conv1D
from .conv import Conv1D as Convolution1D
from .conv import Conv1DTranspose as Conv1DTranspose
from .conv import Conv2D as Conv2D
from .conv import Conv2D as Convolution2D
from .conv import Conv2DTranspose as Conv2DTranspose
from .conv import DepthwiseConv2D as DepthwiseConv2D
from .conv import GlobalAveragePooling1D as GlobalAveragePooling1D
from .conv import GlobalAveragePooling1D as GlobalAvgPool1D
from .conv import GlobalAveragePooling2D as GlobalAveragePooling2D
from .conv import GlobalAveragePooling2D as GlobalAvgPool2D
from .conv import MaxPooling2D as MaxPool2D
from .conv import MaxPooling2D as MaxPooling2D
from .core import Activation as Activation
from .core import Dense as Dense
from .core import Dropout as Dropout
from .core import ELU as ELU
from .core import Embedding as Embedding
from .core import Flatten as Flatten
from .core import Identity as Identity
from .core import InputLayer as InputLayer
from .core import Lambda as Lambda
from .core import ReLU as ReLU
from .core import Reshape as Reshape
from .core import Softmax as Softmax
from .merging import Add as Add
from .merging import Concatenate as Concatenate
from .merging import MultiHeadAttention as MultiHeadAttention
from .merging import Multiply as Multiply
from .merging import Subtract as Subtract
from .merging import concatenate as concatenate
from .normalization import BatchNormalization as BatchNormalization
from .normalization import GroupNormalization as GroupNormalization
from .normalization import LayerNormalization as LayerNormalization
from .normalization import RMSNormalization as RMSNormalization
from .recurrent import Bidirectional as Bidirectional
from .recurrent import GRU as GRU
from .recurrent import LSTM as LSTM
from .recurrent import SimpleRNN as SimpleRNN

add: Any
multiply: Any
subtract: Any
