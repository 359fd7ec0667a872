"""``tf.keras.layers``."""

from ...missing import missing as _missing
from ..symbolic import Input  # noqa: F401
from .base import Layer  # noqa: F401
from .conv import (  # noqa: F401
    AveragePooling2D, AvgPool2D, Conv1D, Conv1DTranspose, Conv2D, Conv2DTranspose, Convolution1D, Convolution2D,
    DepthwiseConv2D, GlobalAveragePooling1D, GlobalAveragePooling2D, GlobalAvgPool1D, GlobalAvgPool2D, MaxPool2D, MaxPooling2D,
)  # fmt: skip
from .core import (  # noqa: F401
    ELU, Activation, Dense, Dropout, Embedding, Flatten, Identity, InputLayer, Lambda, ReLU, Reshape, Softmax,
)  # fmt: skip
from .merging import (  # noqa: F401
    Add, Concatenate, MultiHeadAttention, Multiply, Subtract, add, concatenate, multiply, subtract,
)  # fmt: skip
from .normalization import (  # noqa: F401
    BatchNormalization, GroupNormalization, LayerNormalization, RMSNormalization,
)  # fmt: skip
from .recurrent import GRU, LSTM, Bidirectional, SimpleRNN  # noqa: F401


__getattr__ = _missing("keras.layers")
