"""Convolutions and pools. Pictures are [height, width, channels], sequences [length, channels]."""

from .. import activations, initializers
from .base import NativeLayer, refuse


def _extents(value, n):
    return [int(value)] * n if not isinstance(value, (list, tuple)) else [int(v) for v in value]


def _is_same(layer, padding):
    if str(padding).lower() not in ("valid", "same"):
        raise NotImplementedError(f"{layer} has no padding={padding!r}; there are 'valid' and 'same'")
    return str(padding).lower() == "same"


class _Convolution(NativeLayer):
    _n = 2

    def _start(self, kernel_size, strides, padding, dilation_rate, activation, use_bias, kernel_initializer, bias_initializer,
               regularized, own, common, data_format=None, constraints=()):  # fmt: skip
        name = type(self).__name__
        refuse(name, data_format=(data_format or "channels_last", "channels_last"), constraints=(tuple(constraints), (None, None)))
        self.kernel_size, self.strides = tuple(_extents(kernel_size, self._n)), tuple(_extents(strides, self._n))
        self.padding, self.use_bias, self.activation = padding, bool(use_bias), activations.get(activation)
        options = {
            "kernel_size": list(self.kernel_size), "strides": list(self.strides), "same": _is_same(name, padding),
            "dilation_rate": _extents(dilation_rate, self._n), "activation": activations.name_of(activation),
            "use_bias": self.use_bias, "kernel_initializer": initializers.described(kernel_initializer),
            "bias_initializer": initializers.described(bias_initializer), **own,
        }  # fmt: skip
        NativeLayer.__init__(self, options, regularized, **common)


class Conv2D(_Convolution):
    """A convolution of pictures."""

    _kind = "conv2d"

    def __init__(self, filters, kernel_size, strides=1, padding="valid", data_format=None, dilation_rate=1, groups=1,
                 activation=None, use_bias=True, kernel_initializer="glorot_uniform", bias_initializer="zeros",
                 kernel_regularizer=None, bias_regularizer=None, kernel_constraint=None, bias_constraint=None,
                 **common):  # fmt: skip
        self.filters, self.groups = int(filters), int(groups)
        self._start(kernel_size, strides, padding, dilation_rate, activation, use_bias, kernel_initializer, bias_initializer,
                    {"kernel": kernel_regularizer, "bias": bias_regularizer}, {"filters": self.filters, "groups": self.groups},
                    common, data_format, (kernel_constraint, bias_constraint))  # fmt: skip


class Conv1D(Conv2D):
    """A convolution of sequences."""

    _kind, _n = "conv1d", 1


class Conv2DTranspose(_Convolution):
    """A transposed convolution of pictures."""

    _kind = "conv2d_transpose"

    def __init__(self, filters, kernel_size, strides=1, padding="valid", output_padding=None, data_format=None,
                 dilation_rate=1, activation=None, use_bias=True, kernel_initializer="glorot_uniform",
                 bias_initializer="zeros", kernel_regularizer=None, bias_regularizer=None, kernel_constraint=None,
                 bias_constraint=None, **common):  # fmt: skip
        refuse(type(self).__name__, output_padding=(output_padding, None))
        self.filters = int(filters)
        self._start(kernel_size, strides, padding, dilation_rate, activation, use_bias, kernel_initializer, bias_initializer,
                    {"kernel": kernel_regularizer, "bias": bias_regularizer}, {"filters": self.filters}, common, data_format,
                    (kernel_constraint, bias_constraint))  # fmt: skip


class Conv1DTranspose(Conv2DTranspose):
    """A transposed convolution of sequences."""

    _kind, _n = "conv1d_transpose", 1


class DepthwiseConv2D(_Convolution):
    """Each channel of a picture convolved by itself."""

    _kind = "depthwise_conv2d"

    def __init__(self, kernel_size, strides=1, padding="valid", depth_multiplier=1, data_format=None, dilation_rate=1,
                 activation=None, use_bias=True, depthwise_initializer="glorot_uniform", bias_initializer="zeros",
                 depthwise_regularizer=None, bias_regularizer=None, depthwise_constraint=None, bias_constraint=None,
                 **common):  # fmt: skip
        self.depth_multiplier = int(depth_multiplier)
        self._start(kernel_size, strides, padding, dilation_rate, activation, use_bias, depthwise_initializer, bias_initializer,
                    {"kernel": depthwise_regularizer, "bias": bias_regularizer},
                    {"depth_multiplier": self.depth_multiplier}, common, data_format,
                    (depthwise_constraint, bias_constraint))  # fmt: skip


class _Pooling(NativeLayer):
    def __init__(self, pool_size=2, strides=None, padding="valid", data_format=None, **common):
        name = type(self).__name__
        refuse(name, padding=(padding, "valid"), data_format=(data_format or "channels_last", "channels_last"))
        self.pool_size = tuple(_extents(pool_size, 2))
        self.strides = self.pool_size if strides is None else tuple(_extents(strides, 2))
        super().__init__({"pool_size": list(self.pool_size), "strides": list(self.strides)}, **common)


class MaxPooling2D(_Pooling):
    """The greatest of each window."""

    _kind = "max_pooling2d"


class AveragePooling2D(_Pooling):
    """The mean of each window."""

    _kind = "average_pooling2d"


class _GlobalPooling(NativeLayer):
    def __init__(self, data_format=None, keepdims=False, **common):
        refuse(type(self).__name__, data_format=(data_format or "channels_last", "channels_last"), keepdims=(keepdims, False))
        super().__init__({}, **common)


class GlobalAveragePooling1D(_GlobalPooling):
    """The mean over a sequence."""

    _kind = "global_average_pooling1d"


class GlobalAveragePooling2D(_GlobalPooling):
    """The mean over a picture."""

    _kind = "global_average_pooling2d"


Convolution1D, Convolution2D, MaxPool2D, AvgPool2D = Conv1D, Conv2D, MaxPooling2D, AveragePooling2D
GlobalAvgPool1D, GlobalAvgPool2D = GlobalAveragePooling1D, GlobalAveragePooling2D
