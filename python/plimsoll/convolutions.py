"""Convolutions and pools of `tf.nn`. Pictures are [batch, height, width, channels], sequences [batch, length, channels].

TensorFlow's weights are [..kernel, in, out]; the framework's have the outputs first, so they are turned round at each call.
"""

import numpy as np

from . import _core
from .array_ops import expand_dims, pad, reshape, squeeze
from .names import tensor as _tensor


def _per_axis(value, n, what):
    """An extent for each of n axes: a number, one for each, or TensorFlow's form with batch and channels around them."""
    is_several = isinstance(value, (list, tuple)) or np.ndim(value) == 1
    values = [int(v) for v in value] if is_several else [1 if value is None else int(value)]
    if len(values) == n + 2:
        if values[0] != 1 or values[-1] != 1:
            raise ValueError(f"{what}={value}: those of batch and channels are 1")
        values = values[1:-1]
    if len(values) not in (1, n):
        raise ValueError(f"{what}={value}: a number, {n} of them, or {n + 2} with those of batch and channels")
    return values * n if len(values) == 1 else values


def _channels_last(data_format):
    if data_format not in (None, "NHWC", "NWC"):
        raise NotImplementedError(f"data_format={data_format!r}; channels are last here: transpose the tensor")


def _widths(padding, extents, window, strides, dilations):
    """The zeros before and after each axis."""
    if not isinstance(padding, str):
        pairs = [[int(n) for n in pair] for pair in padding]
        return pairs[1:-1] if len(pairs) == len(extents) + 2 else pairs
    if padding.upper() == "VALID":
        return [[0, 0] for _ in extents]
    if padding.upper() != "SAME":
        raise ValueError(f"padding={padding!r}; there are 'VALID', 'SAME' and pairs of numbers")
    wanted = [(-(-n // s) - 1) * s + (k - 1) * d + 1 - n for n, k, s, d in zip(extents, window, strides, dilations)]
    return [[max(n, 0) // 2, max(n, 0) - max(n, 0) // 2] for n in wanted]


def _convolve(x, filters, strides, padding, dilations, n, data_format):
    _channels_last(data_format)
    x, filters = _tensor(x), _tensor(filters)
    strides, dilations = _per_axis(strides, n, "strides"), _per_axis(dilations, n, "dilations")
    if len(x._shape) != n + 2 or len(filters._shape) != n + 2:
        raise ValueError(f"conv{n}d takes tensors with {n + 2} axes, and these are {x.shape} and {filters.shape}")
    widths = _widths(padding, x._shape[1:-1], filters._shape[:n], strides, dilations)
    groups, left = divmod(x._shape[-1], max(filters._shape[-2], 1))
    if left:
        raise ValueError(f"{x._shape[-1]} channels are no multiple of the {filters._shape[-2]} that the filters {filters.shape} take")
    return _core.convolution(x, _core.permute(filters, [n + 1, *np.arange(n + 1).tolist()]), strides, widths, dilations, max(groups, 1))


def conv2d(input, filters, strides, padding, data_format="NHWC", dilations=None, name=None):
    """The convolution of pictures by filters [height, width, in, out].

    >>> import plimsoll as tf
    >>> x = tf.reshape(tf.range(9.0), [1, 3, 3, 1])
    >>> tf.nn.conv2d(x, tf.ones([2, 2, 1, 1]), strides=1, padding="VALID").numpy().reshape(2, 2)
    array([[ 8., 12.],
           [20., 24.]], dtype=float32)
    """
    return _convolve(input, filters, strides, padding, dilations, 2, data_format)


def conv1d(input, filters, stride, padding, data_format="NWC", dilations=None, name=None):
    """The convolution of sequences by filters [length, in, out].

    >>> import plimsoll as tf
    >>> tf.nn.conv1d([[[1.0], [2.0], [4.0]]], tf.ones([2, 1, 1]), stride=1, padding="SAME").numpy().reshape(-1)
    array([3., 6., 4.], dtype=float32)
    """
    return _convolve(input, filters, stride, padding, dilations, 1, data_format)


def depthwise_conv2d(input, filter, strides, padding, data_format=None, dilations=None, name=None):
    """Each channel of pictures convolved by itself, with filters [height, width, in, multiplier].

    >>> import plimsoll as tf
    >>> tf.nn.depthwise_conv2d(tf.ones([1, 2, 2, 3]), tf.ones([2, 2, 3, 2]), [1, 1, 1, 1], "VALID").shape
    TensorShape([1, 1, 1, 6])
    """
    filters = _tensor(filter)
    if len(filters._shape) != 4:
        raise ValueError(f"depthwise_conv2d takes filters [height, width, in, multiplier], and these are {filters.shape}")
    height, width, channels, multiplier = filters._shape
    filters = reshape(filters, [height, width, 1, channels * multiplier])
    return _convolve(input, filters, strides, padding, dilations, 2, data_format)


def _transposed(x, filters, output_shape, strides, padding, dilations, n, data_format):
    _channels_last(data_format)
    x, filters = _tensor(x), _tensor(filters)
    strides, dilations = _per_axis(strides, n, "strides"), _per_axis(dilations, n, "dilations")
    if len(x._shape) != n + 2 or len(filters._shape) != n + 2:
        raise ValueError(f"conv{n}d_transpose takes tensors with {n + 2} axes, and these are {x.shape} and {filters.shape}")
    wanted = [int(extent) for extent in np.asarray(output_shape).reshape(-1)]
    wanted = wanted[1:-1] if len(wanted) == n + 2 else wanted
    widths = _widths(padding, wanted, filters._shape[:n], strides, dilations)
    reach = [(extent - 1) * s + (k - 1) * d + 1 for extent, k, s, d in zip(x._shape[1:-1], filters._shape, strides, dilations)]
    more = [extent - r + before + after for extent, r, (before, after) in zip(wanted, reach, widths)]
    if any(extra < 0 or extra >= max(stride, 2) for extra, stride in zip(more, strides)):
        raise ValueError(f"output_shape={output_shape} is no picture from which strides {strides} and padding={padding!r} make {x.shape}")
    # The framework's have the channels of what is convolved first.
    turned = _core.permute(filters, [n + 1, *np.arange(n + 1).tolist()])
    return _core.transposed_convolution(x, turned, strides, widths, dilations, more)


def conv2d_transpose(input, filters, output_shape, strides, padding="SAME", data_format="NHWC", dilations=None, name=None):
    """The transpose of a convolution, with filters [height, width, out, in]: the gradient of conv2d as a function.

    >>> import plimsoll as tf
    >>> tf.nn.conv2d_transpose(tf.ones([1, 2, 2, 1]), tf.ones([2, 2, 1, 1]), [1, 4, 4, 1], strides=2).numpy().sum()
    np.float32(16.0)
    """
    return _transposed(input, filters, output_shape, strides, padding, dilations, 2, data_format)


def conv1d_transpose(input, filters, output_shape, strides, padding="SAME", data_format="NWC", dilations=None, name=None):
    """The transpose of a convolution of sequences, with filters [length, out, in].

    >>> import plimsoll as tf
    >>> tf.nn.conv1d_transpose(tf.ones([1, 2, 1]), tf.ones([2, 1, 1]), [1, 4, 1], strides=2).numpy().reshape(-1)
    array([1., 1., 1., 1.], dtype=float32)
    """
    return _transposed(input, filters, output_shape, strides, padding, dilations, 1, data_format)


def _pool(kind, x, ksize, strides, padding, data_format):
    _channels_last(data_format)
    x = _tensor(x)
    if len(x._shape) != 4:
        raise ValueError(f"pools take pictures [batch, height, width, channels], and this is {x.shape}")
    window = _per_axis(ksize, 2, "ksize")
    strides = _per_axis(strides, 2, "strides")
    widths = _widths(padding, x._shape[1:-1], window, strides, [1, 1])
    if not any(sum(pair) for pair in widths):
        return _core.pool2d(kind, x, window, strides)
    around = [[0, 0], *widths, [0, 0]]
    if kind == "max":
        return _core.pool2d(kind, pad(x, around, constant_values=float("-inf")), window, strides)
    # What was padded does not count: the mean over whole windows, times the share that each has of its own.
    inside = np.pad(np.ones([1, *x._shape[1:-1], 1], np.float32), around)
    shares = _core.cast(_core.pool2d(kind, _tensor(inside), window, strides), x._dtype)
    return _core.binary("div", _core.pool2d(kind, pad(x, around), window, strides), shares)


def max_pool2d(input, ksize, strides, padding, data_format="NHWC", name=None):
    """The greatest element of each window of pictures.

    >>> import plimsoll as tf
    >>> x = tf.reshape(tf.range(9.0), [1, 3, 3, 1])
    >>> tf.nn.max_pool2d(x, ksize=2, strides=2, padding="SAME").numpy().reshape(2, 2)
    array([[4., 5.],
           [7., 8.]], dtype=float32)
    """
    return _pool("max", input, ksize, strides, padding, data_format)


def avg_pool2d(input, ksize, strides, padding, data_format="NHWC", name=None):
    """The mean of each window of pictures; what is padded does not count.

    >>> import plimsoll as tf
    >>> x = tf.reshape(tf.range(9.0), [1, 3, 3, 1])
    >>> tf.nn.avg_pool2d(x, ksize=2, strides=2, padding="SAME").numpy().reshape(2, 2)
    array([[2. , 3.5],
           [6.5, 8. ]], dtype=float32)
    """
    return _pool("avg", input, ksize, strides, padding, data_format)


def _by_rank(pool, input, ksize, strides, padding):
    """A pool of pictures, or of sequences as pictures of one line."""
    x = _tensor(input)
    if len(x._shape) != 3:
        return pool(x, ksize, strides, padding)
    (window,), (stride,) = _per_axis(ksize, 1, "ksize"), _per_axis(strides, 1, "strides")
    return squeeze(pool(expand_dims(x, 1), [1, window], [1, stride], padding), [1])


def max_pool(input, ksize, strides, padding, data_format=None, name=None):
    """The greatest element of each window, of pictures or sequences.

    >>> import plimsoll as tf
    >>> tf.nn.max_pool([[[1.0], [3.0], [2.0], [0.0]]], ksize=2, strides=2, padding="VALID").numpy().reshape(-1)
    array([3., 2.], dtype=float32)
    """
    _channels_last(data_format)
    return _by_rank(max_pool2d, input, ksize, strides, padding)


def avg_pool(input, ksize, strides, padding, data_format=None, name=None):
    """The mean of each window, of pictures or sequences; what is padded does not count.

    >>> import plimsoll as tf
    >>> tf.nn.avg_pool([[[1.0], [3.0], [2.0]]], ksize=2, strides=2, padding="SAME").numpy().reshape(-1)
    array([2., 2.], dtype=float32)
    """
    _channels_last(data_format)
    return _by_rank(avg_pool2d, input, ksize, strides, padding)


max_pool1d, avg_pool1d = max_pool, avg_pool
