"""`tf.debugging`: checks of values and shapes, which raise. Inside a function that is being recorded, values cannot be looked at."""

import numpy as np

from . import errors
from .missing import missing as _missing
from .names import tensor


def _array(value):
    return np.asarray(tensor(value).numpy())


def _refuse(message, default):
    raise errors.InvalidArgumentError(f"{message}: {default}" if message else default)


def _comparison(name, holds, word):
    def check(x, y, message=None, summarize=None, name=None):
        a, b = np.broadcast_arrays(_array(x), _array(y))
        bad = np.argwhere(~holds(a, b))
        if len(bad):
            at = tuple(bad[0].tolist())
            _refuse(message, f"{check.__name__}: {len(bad)} of {a.size} elements are not {word}; at {list(at)}: {a[at]} and {b[at]}")

    check.__name__ = check.__qualname__ = name
    check.__doc__ = f"Raises unless every element of x is {word} that of y."
    return check


assert_equal = _comparison("assert_equal", np.equal, "equal to")
assert_none_equal = _comparison("assert_none_equal", np.not_equal, "different from")
assert_greater = _comparison("assert_greater", np.greater, "greater than")
assert_greater_equal = _comparison("assert_greater_equal", np.greater_equal, "at least")
assert_less = _comparison("assert_less", np.less, "less than")
assert_less_equal = _comparison("assert_less_equal", np.less_equal, "at most")


def assert_near(x, y, rtol=None, atol=None, message=None, summarize=None, name=None):
    """Raises unless |x - y| <= atol + rtol·|y| everywhere; both are ten times the dtype's resolution unless given."""
    a, b = _array(x), _array(y)
    small = 10 * np.finfo(a.dtype).eps
    rtol, atol = small if rtol is None else rtol, small if atol is None else atol
    if not np.all(np.abs(a - b) <= atol + rtol * np.abs(b)):
        _refuse(message, f"assert_near: elements differ by up to {np.max(np.abs(a - b))}")


def assert_positive(x, message=None, summarize=None, name=None):
    assert_greater(x, 0, message)


def assert_non_negative(x, message=None, summarize=None, name=None):
    assert_greater_equal(x, 0, message)


def assert_negative(x, message=None, summarize=None, name=None):
    assert_less(x, 0, message)


def check_numerics(tensor, message, name=None):
    """The tensor, if all of its elements are finite."""
    array = _array(tensor)
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        at = tuple(bad[0].tolist())
        _refuse(message, f"Tensor had {'NaN' if np.isnan(array[at]) else 'Inf'} values: {len(bad)} of {array.size}, first at {list(at)}")
    return tensor


def assert_all_finite(x, message, name=None):
    return check_numerics(x, message)


def assert_rank(x, rank, message=None, name=None):
    shape = tensor(x).shape
    if len(shape) != rank:
        raise ValueError(f"{message or 'assert_rank'}: rank {rank} is wanted, and the shape is {tuple(shape)}")


def assert_shapes(shapes, data=None, summarize=None, message=None, name=None):
    """Raises unless shapes are as stated; a symbol, such as "N", stands for one extent wherever it is, None for any."""
    known = {}
    for x, wanted in shapes.items() if isinstance(shapes, dict) else shapes:
        shape = tensor(x).shape
        wanted = (wanted,) if isinstance(wanted, (str, int)) else tuple(wanted)
        fits = len(shape) == len(wanted) and all(
            symbol is None or (symbol if isinstance(symbol, int) else known.setdefault(symbol, extent)) == extent
            for symbol, extent in zip(wanted, shape)
        )
        if not fits:
            raise ValueError(f"{message or 'assert_shapes'}: {wanted} is wanted, and the shape is {tuple(shape)}, where {known}")


__getattr__ = _missing("debugging")
