"""`tf.nn`: activations, losses and what else a network is made of."""

from . import _core, names as _names
from .array_ops import top_k  # noqa: F401
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


def embedding_lookup(params, ids, name=None):
    """Rows of a table, by their numbers.

    >>> import plimsoll as tf
    >>> tf.nn.embedding_lookup([[1.0, 2.0], [3.0, 4.0]], [1]).numpy()
    array([[3., 4.]], dtype=float32)
    """
    return _core.pair("embedding", _tensor(params), _tensor(ids))


__getattr__ = _missing("nn")
