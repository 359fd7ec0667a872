"""``tf.keras.layers``."""

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
from .recurrent import GRU, LSTM, SimpleRNN  # noqa: F401


def __getattr__(name):
    raise AttributeError(f"Plimsoll has no tf.keras.layers.{name}. docs/keras.md lists what is there")
