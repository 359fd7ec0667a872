"""`tf.random`: draws, all of one seed."""

import operator as _operator

from . import _core, dtypes as _dtypes
from .array_ops import extents as _extents, name_of as _name_of
from .missing import missing as _missing
from .names import tensor as _tensor


def normal(shape, mean=0.0, stddev=1.0, dtype=_dtypes.float32, seed=None, name=None):
    """Draws of a normal distribution.

    >>> import plimsoll as tf
    >>> tf.random.set_seed(7)
    >>> tf.random.normal([2, 3]).shape
    TensorShape([2, 3])
    """
    _no_seed_of_its_own(seed)
    return _core.normal(_extents(shape), float(mean), float(stddev), _name_of(dtype), False)


def truncated_normal(shape, mean=0.0, stddev=1.0, dtype=_dtypes.float32, seed=None, name=None):
    """Draws of a normal distribution, none further than two deviations from the mean.

    >>> import plimsoll as tf
    >>> bool(tf.reduce_all(tf.abs(tf.random.truncated_normal([1000])) <= 2.0))
    True
    """
    _no_seed_of_its_own(seed)
    return _core.normal(_extents(shape), float(mean), float(stddev), _name_of(dtype), True)


def uniform(shape, minval=0, maxval=None, dtype=_dtypes.float32, seed=None, name=None):
    """Evenly distributed draws between two bounds; whole numbers where the dtype has no others.

    >>> import plimsoll as tf
    >>> tf.random.uniform([3], 0, 10, tf.int32).dtype
    tf.int32
    """
    _no_seed_of_its_own(seed)
    if _dtypes.as_dtype(dtype).is_integer:
        if maxval is None:
            raise ValueError("tf.random.uniform of whole numbers needs maxval")
        return _core.randint(_extents(shape), int(minval), int(maxval), _name_of(dtype))
    return _core.uniform(_extents(shape), float(minval), 1.0 if maxval is None else float(maxval), _name_of(dtype))


def shuffle(value, seed=None, name=None):
    """The slices along the first axis in another order.

    >>> import plimsoll as tf
    >>> sorted(tf.random.shuffle([3, 1, 2]).numpy().tolist())
    [1, 2, 3]
    """
    _no_seed_of_its_own(seed)
    x = _tensor(value)
    order = _core.sort(_core.uniform([x._shape[0]], 0.0, 1.0, "float64"), 0, False)[1]
    return _core.gather(x, order, 0)


def _no_seed_of_its_own(seed):
    """Refuses a seed of one op."""
    if seed is not None:
        raise NotImplementedError("draws have no seed of their own here: tf.random.set_seed is for all of them")


def set_seed(seed):
    """All draws from here on are those that follow this seed.

    >>> import plimsoll as tf
    >>> tf.random.set_seed(1); a = tf.random.normal([3])
    >>> tf.random.set_seed(1); b = tf.random.normal([3])
    >>> bool(tf.reduce_all(a == b))
    True
    """
    _core.set_seed(_operator.index(seed))


__getattr__ = _missing("random")
