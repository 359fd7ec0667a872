"""`tf.nn`: activations, losses and what else a network is made of."""

from . import _core, names as _names, symbolic_calls as _symbolic_calls
from .array_ops import concat as _concat, top_k  # noqa: F401
from .composed import l2_normalize, softsign, zero_fraction  # noqa: F401
from .convolutions import (  # noqa: F401
    avg_pool, avg_pool1d, avg_pool2d, conv1d, conv1d_transpose, conv2d, conv2d_transpose, depthwise_conv2d, max_pool, max_pool1d,
    max_pool2d,
)  # fmt: skip
from .missing import missing as _missing
from .names import tensor as _tensor
from .random import _no_seed_of_its_own

globals().update(_names.NN)


def leaky_relu(features, alpha=0.2, name=None):
    """The element, or alpha times it below zero.

    >>> import plimsoll as tf
    >>> tf.nn.leaky_relu([-1.0, 2.0], alpha=0.5).numpy()
    array([-0.5,  2. ], dtype=float32)
    """
    return _core.parametric("leaky_relu", _tensor(features), float(alpha))


def elu(features, name=None):
    """The element, or e to its power less one below zero.

    >>> import plimsoll as tf
    >>> tf.nn.elu([-1.0, 2.0]).numpy().round(4)
    array([-0.6321,  2.    ], dtype=float32)
    """
    return _core.parametric("elu", _tensor(features), 1.0)


def gelu(features, approximate=False, name=None):
    """The element times the probability that a normal draw is smaller.

    >>> import plimsoll as tf
    >>> tf.nn.gelu([-1.0, 2.0]).numpy().round(4)
    array([-0.1587,  1.9545], dtype=float32)
    """
    return _core.unary("gelu_tanh" if approximate else "gelu", _tensor(features))


def dropout(x, rate, noise_shape=None, seed=None, name=None):
    """Elements made zero with a probability, the others made larger so that the mean stays.

    >>> import plimsoll as tf
    >>> sorted({float(x) for x in tf.nn.dropout(tf.ones([100]), 0.5)})
    [0.0, 2.0]
    """
    _no_seed_of_its_own(seed)
    return _core.parametric("dropout", _tensor(x), float(rate))


def softmax_cross_entropy_with_logits(labels, logits, axis=-1, name=None):
    """The cross entropy of each row of logits, beside a distribution as its label.

    >>> import plimsoll as tf
    >>> tf.nn.softmax_cross_entropy_with_logits([[0.0, 1.0]], [[2.0, 2.0]]).numpy().round(4)
    array([0.6931], dtype=float32)
    """
    return _core.pair("cross_entropy", _tensor(logits), _tensor(labels))


def sparse_softmax_cross_entropy_with_logits(labels, logits, name=None):
    """The cross entropy of each row of logits, beside the number of its class.

    >>> import plimsoll as tf
    >>> tf.nn.sparse_softmax_cross_entropy_with_logits([1], [[2.0, 2.0]]).numpy().round(4)
    array([0.6931], dtype=float32)
    """
    return _core.pair("sparse_cross_entropy", _tensor(logits), _tensor(labels))


def sigmoid_cross_entropy_with_logits(labels=None, logits=None, name=None):
    """The cross entropy of each logit, beside a label between 0 and 1.

    >>> import plimsoll as tf
    >>> tf.nn.sigmoid_cross_entropy_with_logits(labels=[1.0, 0.0], logits=[0.0, 0.0]).numpy().round(4)
    array([0.6931, 0.6931], dtype=float32)
    """
    return weighted_cross_entropy_with_logits(labels, logits, 1.0)


def weighted_cross_entropy_with_logits(labels, logits, pos_weight, name=None):
    """The same, where the loss of positive labels is multiplied by a number.

    >>> import plimsoll as tf
    >>> tf.nn.weighted_cross_entropy_with_logits([1.0, 0.0], [0.0, 0.0], 2.0).numpy().round(4)
    array([1.3863, 0.6931], dtype=float32)
    """
    return _core.binary_cross_entropy(_tensor(logits), _tensor(labels), float(pos_weight))


def bias_add(value, bias, data_format=None, name=None):
    """A number for each channel, the last axis, added.

    >>> import plimsoll as tf
    >>> tf.nn.bias_add([[1.0, 2.0]], [10.0, 20.0]).numpy()
    array([[11., 22.]], dtype=float32)
    """
    if data_format is not None and data_format.startswith("NC"):
        raise NotImplementedError(f"data_format={data_format!r}; channels are last here: transpose the tensor")
    return _core.binary("add", _tensor(value), _tensor(bias))


def l2_loss(t, name=None):
    """Half the sum of the squares.

    >>> import plimsoll as tf
    >>> float(tf.nn.l2_loss([3.0, 4.0]))
    12.5
    """
    return _core.binary("mul", _core.reduce("sum", _core.unary("square", _tensor(t)), None, False), 0.5)


def moments(x, axes, shift=None, keepdims=False, name=None):
    """Mean and variance along axes.

    >>> import plimsoll as tf
    >>> [float(m) for m in tf.nn.moments([1.0, 3.0], [0])]
    [2.0, 1.0]
    """
    return _names.MATH["reduce_mean"](x, axes, keepdims), _names.MATH["reduce_variance"](x, axes, keepdims)


def batch_normalization(x, mean, variance, offset, scale, variance_epsilon, name=None):
    """The tensor less a mean, divided by a deviation; then scaled and moved, where a scale and an offset are given.

    >>> import plimsoll as tf
    >>> tf.nn.batch_normalization([1.0, 3.0], 2.0, 1.0, None, 2.0, 0.0).numpy()
    array([-2.,  2.], dtype=float32)
    """
    factor = _core.unary("rsqrt", _core.binary("add", _tensor(variance), float(variance_epsilon)))
    factor = factor if scale is None else factor * scale
    y = _core.binary("mul", _core.binary("sub", _tensor(x), _tensor(mean)), factor)
    return y if offset is None else y + offset


def crelu(features, axis=-1, name=None):
    """The positive parts of the tensor, and of its negative, one after the other.

    >>> import plimsoll as tf
    >>> tf.nn.crelu([-1.0, 2.0]).numpy()
    array([0., 2., 1., 0.], dtype=float32)
    """
    x = _tensor(features)
    return _core.unary("relu", _concat([x, -x], axis))


def embedding_lookup(params, ids, name=None):
    """Rows of a table, by their numbers.

    >>> import plimsoll as tf
    >>> tf.nn.embedding_lookup([[1.0, 2.0], [3.0, 4.0]], [1]).numpy()
    array([[3., 4.]], dtype=float32)
    """
    return _core.pair("embedding", _tensor(params), _tensor(ids))


_symbolic_calls.offer(globals(), "nn")

__getattr__ = _missing("nn")
