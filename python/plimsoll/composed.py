"""Functions of TensorFlow's that are made of ops: what a table of names cannot say."""

import operator

import numpy as np

from . import _core
from .array_ops import (
    cast, expand_dims, extents, gather, ones, ones_like, reshape, stack, transpose, unstack, where, zeros_like,
)  # fmt: skip
from .names import MATH, tensor
from .nest import flatten, pack
from .tensor import TensorShape, Value, divide, matmul, operands


# Shapes.


def repeat(input, repeats, axis=None, name=None):
    """Each slice along an axis so many times, one after the other; without an axis each element.

    >>> import plimsoll as tf
    >>> tf.repeat([1, 2], 2).numpy()
    array([1, 1, 2, 2], dtype=int32)
    """
    x = tensor(input)
    if axis is None:
        x, axis = reshape(x, [-1]), 0
    times = np.broadcast_to(np.asarray(repeats).reshape(-1), [x._shape[axis]])
    return gather(x, np.repeat(np.arange(x._shape[axis]), times), axis)


def roll(input, shift, axis, name=None):
    """The elements moved along axes; those that leave at one end come in at the other.

    >>> import plimsoll as tf
    >>> tf.roll([1, 2, 3, 4], 1, 0).numpy()
    array([4, 1, 2, 3], dtype=int32)
    """
    x = tensor(input)
    for by, along in zip(extents(shift), extents(axis), strict=True):
        x = _core.roll(x, by, along)
    return x


def meshgrid(*args, indexing="xy", name=None):
    """The coordinates of a grid: one tensor for each axis.

    >>> import plimsoll as tf
    >>> [x.numpy().tolist() for x in tf.meshgrid([1, 2], [3, 4, 5])]
    [[[1, 2], [1, 2], [1, 2]], [[3, 3], [4, 4], [5, 5]]]
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"indexing={indexing!r}; there are 'xy' and 'ij'")
    axes = [reshape(tensor(x), [-1]) for x in args]
    shape = [x._shape[0] for x in axes]
    grids = []
    for place, x in enumerate(axes):
        extent = [1] * len(axes)
        extent[place] = shape[place]
        grid = _core.broadcast_to(reshape(x, extent), shape)
        if indexing == "xy" and len(axes) > 1:
            grid = transpose(grid, [1, 0, *np.arange(2, len(axes)).tolist()])
        grids.append(grid)
    return grids


def slice(input_, begin, size, name=None):
    """A part of the tensor: from where along each axis, and how many; -1 is all that follow.

    >>> import plimsoll as tf
    >>> tf.slice([[1, 2, 3], [4, 5, 6]], [0, 1], [-1, 2]).numpy()
    array([[2, 3],
           [5, 6]], dtype=int32)
    """
    pieces = []
    for extent, start, n in zip(tensor(input_)._shape, extents(begin), extents(size), strict=True):
        end = extent if n == -1 else start + n
        if not 0 <= start <= end <= extent:
            raise ValueError(f"tf.slice: {n} elements from {start} on of an axis of {extent}")
        pieces.append((start, end, 1))
    return _core.slice(tensor(input_), pieces)


def gather_nd(params, indices, batch_dims=0, name=None):
    """Elements, or slices, by their positions along the first axes: the last axis of the positions.

    >>> import plimsoll as tf
    >>> tf.gather_nd([[1, 2], [3, 4]], [[0, 1], [1, 0]]).numpy()
    array([2, 3], dtype=int32)
    """
    if batch_dims:
        raise NotImplementedError("tf.gather_nd has no batch_dims here")
    params, indices = tensor(params), tensor(indices)
    depth = indices._shape[-1]
    if depth > len(params._shape):
        raise ValueError(f"tf.gather_nd: positions of {depth} axes in a tensor of {len(params._shape)}")
    first, rest = params._shape[:depth], params._shape[depth:]
    if not depth:
        return _core.broadcast_to(params, [*indices._shape[:-1], *rest])
    strides = np.cumprod([1, *first[:0:-1]])[::-1]
    places = [indices[..., axis] * int(stride) for axis, stride in enumerate(strides)]
    place = places[0]
    for one in places[1:]:
        place = place + one
    return gather(reshape(params, [-1, *rest]), place)


def sequence_mask(lengths, maxlen=None, dtype=None, name=None):
    """Which positions lie within a length.

    >>> import plimsoll as tf
    >>> tf.sequence_mask([1, 3], 3, tf.int32).numpy()
    array([[1, 0, 0],
           [1, 1, 1]], dtype=int32)
    """
    lengths = tensor(lengths)
    n = int(MATH["reduce_max"](lengths)) if maxlen is None else operator.index(maxlen)
    mask = MATH["less"](_core.arange(0.0, float(n), 1.0, lengths._dtype), expand_dims(lengths, -1))
    return mask if dtype is None else cast(mask, dtype)


def ensure_shape(x, shape, name=None):
    """The tensor, if it has that shape; extents of None may be anything.

    >>> import plimsoll as tf
    >>> tf.ensure_shape([1, 2], [None]).numpy()
    array([1, 2], dtype=int32)
    """
    x = tensor(x)
    wanted = list(shape)
    if len(wanted) != len(x._shape) or any(n is not None and n != have for n, have in zip(wanted, x._shape)):
        raise ValueError(f"the shape {x.shape} is not compatible with {TensorShape(wanted)}")
    return x


def tensordot(a, b, axes, name=None):
    """Products summed over axes of both: the last so many of one and the first of the other, or lists of axes.

    >>> import plimsoll as tf
    >>> tf.tensordot([[1.0, 2.0]], [[3.0], [4.0]], axes=1).numpy()
    array([[11.]], dtype=float32)
    """
    a, b = operands(a, b)
    n, m = len(a._shape), len(b._shape)
    if isinstance(axes, (list, tuple, np.ndarray)):
        of_a, of_b = ([int(x) % rank for x in np.asarray(part).reshape(-1)] for part, rank in zip(axes, (n, m)))
    else:
        of_a, of_b = np.arange(n - axes, n).tolist(), np.arange(axes).tolist()
    free_a, free_b = [x for x in np.arange(n).tolist() if x not in of_a], [x for x in np.arange(m).tolist() if x not in of_b]
    shape = [*(a._shape[x] for x in free_a), *(b._shape[x] for x in free_b)]
    inner = int(np.prod([a._shape[x] for x in of_a], dtype=np.int64))
    left = reshape(transpose(a, [*free_a, *of_a]), [-1, inner])
    return reshape(matmul(left, reshape(transpose(b, [*of_b, *free_b]), [inner, -1])), shape)


# Elements.


def squared_difference(x, y, name=None):
    """The square of the difference.

    >>> import plimsoll as tf
    >>> tf.math.squared_difference([1.0, 2.0], [3.0, 5.0]).numpy()
    array([4., 9.], dtype=float32)
    """
    x, y = operands(x, y)
    return _core.unary("square", _core.binary("sub", x, y))


def divide_no_nan(x, y, name=None):
    """The quotient, and zero where the divisor is zero.

    >>> import plimsoll as tf
    >>> tf.math.divide_no_nan([1.0, 2.0], [0.0, 4.0]).numpy()
    array([0. , 0.5], dtype=float32)
    """
    x, y = tensor(x), tensor(y)
    is_zero = MATH["equal"](y, 0.0)
    # Both divisions are of finite numbers, so that no gradient is.
    return where(is_zero, zeros_like(y), divide(x, where(is_zero, ones_like(y), y)))


def multiply_no_nan(x, y, name=None):
    """The product, and zero where the second factor is zero, whatever the first is.

    >>> import plimsoll as tf
    >>> tf.math.multiply_no_nan([float("inf"), 2.0], [0.0, 4.0]).numpy()
    array([0., 8.], dtype=float32)
    """
    x, y = tensor(x), tensor(y)
    is_zero = MATH["equal"](y, 0.0)
    return where(is_zero, zeros_like(y), where(is_zero, zeros_like(x), x) * y)


def xlogy(x, y, name=None):
    """x times the logarithm of y, and zero where x is zero.

    >>> import plimsoll as tf
    >>> tf.math.xlogy([0.0, 2.0], [0.0, 1.0]).numpy()
    array([0., 0.], dtype=float32)
    """
    x, y = tensor(x), tensor(y)
    is_zero = MATH["equal"](x, 0.0)
    return where(is_zero, zeros_like(x), x * _core.unary("ln", where(is_zero, ones_like(y), y)))


def is_inf(x, name=None):
    """Whether an element is infinite.

    >>> import plimsoll as tf
    >>> tf.math.is_inf([1.0, float("inf"), float("nan")]).numpy()
    array([False,  True, False])
    """
    return MATH["equal"](_core.unary("abs", tensor(x)), float("inf"))


def count_nonzero(input, axis=None, keepdims=None, dtype="int64", name=None):
    """How many elements are not zero: of all, or along axes.

    >>> import plimsoll as tf
    >>> int(tf.math.count_nonzero([0.0, 3.0, 4.0]))
    2
    """
    x = tensor(input)
    counts = x if x.dtype.is_bool else MATH["not_equal"](x, zeros_like(x))
    return MATH["reduce_sum"](cast(counts, dtype), axis, bool(keepdims))


def zero_fraction(value, name=None):
    """The share of elements that are zero.

    >>> import plimsoll as tf
    >>> float(tf.nn.zero_fraction([0.0, 3.0, 0.0, 0.0]))
    0.75
    """
    x = tensor(value)
    return MATH["reduce_mean"](cast(MATH["equal"](x, zeros_like(x)), "float32"))


def softsign(features, name=None):
    """The element divided by one more than its size.

    >>> import plimsoll as tf
    >>> tf.nn.softsign([-1.0, 3.0]).numpy()
    array([-0.5 ,  0.75], dtype=float32)
    """
    x = tensor(features)
    return x / (_core.unary("abs", x) + 1.0)


def l2_normalize(x, axis=None, epsilon=1e-12, name=None):
    """The tensor divided by its length, along axes or whole.

    >>> import plimsoll as tf
    >>> tf.math.l2_normalize([3.0, 4.0]).numpy().round(4)
    array([0.6, 0.8], dtype=float32)
    """
    x = tensor(x)
    total = MATH["reduce_sum"](_core.unary("square", x), axis, True)
    return x * _core.unary("rsqrt", _core.binary("maximum", total, float(epsilon)))


# Matrices.


def matrix_transpose(a, perm=None, name=None):
    """The last two axes exchanged.

    >>> import plimsoll as tf
    >>> tf.linalg.matrix_transpose([[1, 2], [3, 4]]).numpy()
    array([[1, 3],
           [2, 4]], dtype=int32)
    """
    a = tensor(a)
    n = len(a._shape)
    return _core.permute(a, [*np.arange(n - 2).tolist(), n - 1, n - 2])


def matvec(a, b, transpose_a=False, name=None):
    """The product of a matrix and a vector.

    >>> import plimsoll as tf
    >>> tf.linalg.matvec([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0]).numpy()
    array([3., 7.], dtype=float32)
    """
    a, b = operands(a, b)
    return _core.along("squeeze", matmul(matrix_transpose(a) if transpose_a else a, expand_dims(b, -1)), -1)


def diag_part(input, name=None):
    """The elements on the diagonal of the last two axes.

    >>> import plimsoll as tf
    >>> tf.linalg.diag_part([[1, 2], [3, 4]]).numpy()
    array([1, 4], dtype=int32)
    """
    return _core.diagonals("diagonal", tensor(input), 0)


def trace(x, name=None):
    """The sum of the diagonal.

    >>> import plimsoll as tf
    >>> float(tf.linalg.trace([[1.0, 2.0], [3.0, 4.0]]))
    5.0
    """
    return MATH["reduce_sum"](diag_part(x), -1)


def diag(diagonal, name=None):
    """A matrix with these elements on its diagonal, and zeros beside.

    >>> import plimsoll as tf
    >>> tf.linalg.diag([1, 2]).numpy()
    array([[1, 0],
           [0, 2]], dtype=int32)
    """
    x = tensor(diagonal)
    return where(cast(_core.eye(x._shape[-1]), "bool"), expand_dims(x, -1), 0)


def band_part(input, num_lower, num_upper, name=None):
    """The elements within so many diagonals below and above the main one, all where that is negative; zeros beside.

    >>> import plimsoll as tf
    >>> tf.linalg.band_part(tf.ones([2, 2]), -1, 0).numpy()
    array([[1., 0.],
           [1., 1.]], dtype=float32)
    """
    x = tensor(input)
    x = x if num_upper < 0 else _core.diagonals("lower", x, int(num_upper))
    return x if num_lower < 0 else _core.diagonals("upper", x, -int(num_lower))


# What is done by Python.


def cond(pred, true_fn=None, false_fn=None, name=None):
    """What one of two functions gives, by a truth value that can be read: outside of a tf.function.

    >>> import plimsoll as tf
    >>> tf.cond(tf.constant(2) > 1, lambda: "yes", lambda: "no")
    'yes'
    """
    return true_fn() if bool(pred) else false_fn()


def while_loop(cond, body, loop_vars, shape_invariants=None, parallel_iterations=10, back_prop=True, swap_memory=False,
               maximum_iterations=None, name=None):  # fmt: skip
    """Calls a function of what it gave last, as long as a condition of that can be read and holds: outside of a tf.function.

    >>> import plimsoll as tf
    >>> (i,) = tf.while_loop(lambda i: i < 5, lambda i: (i + 2,), [tf.constant(0)])
    >>> int(i)
    6
    """
    state, n = tuple(loop_vars), 0
    while (maximum_iterations is None or n < maximum_iterations) and bool(cond(*state)):
        given = body(*state)
        state, n = tuple(given) if isinstance(given, (list, tuple)) else (given,), n + 1
    return list(state) if isinstance(loop_vars, list) else state


def map_fn(fn, elems, dtype=None, parallel_iterations=None, back_prop=True, swap_memory=False, infer_shape=True, name=None,
           fn_output_signature=None):  # fmt: skip
    """A function of each slice along the first axis, stacked.

    >>> import plimsoll as tf
    >>> tf.map_fn(lambda x: x * x, tf.constant([1.0, 2.0, 3.0])).numpy()
    array([1., 4., 9.], dtype=float32)
    """
    leaves = [tensor(leaf) for leaf in flatten(elems)]
    rows = zip(*(unstack(leaf) for leaf in leaves), strict=True)
    given = [fn(pack(elems, iter(row))) for row in rows]
    if not given:
        raise ValueError("tf.map_fn of no slices: nobody knows what the function would give")
    return pack(given[0], iter([stack(parts) for parts in zip(*map(flatten, given))]))


def print(*inputs, output_stream=None, summarize=3, sep=" ", end="\n", name=None):
    """Prints texts and tensors on standard error; inside a tf.function, at each run of its program.

    >>> import plimsoll as tf
    >>> tf.print("loss", tf.constant(1.5))
    """
    import sys

    if not _core.is_tracing():
        stream = output_stream if output_stream is not None else sys.stderr
        stream.write(sep.join(str(x.numpy()) if isinstance(x, Value) else str(x) for x in inputs) + end)
        return
    if output_stream is not None and output_stream is not sys.stderr:
        raise NotImplementedError("inside a tf.function tf.print writes to standard error")
    label = ""
    for x in inputs:
        if isinstance(x, Value):
            _core.debug_print(x, label.rstrip() or "tensor")
            label = ""
        else:
            label += f"{x}{sep}"
    if label:
        _core.debug_print(ones([]), label.rstrip())


class name_scope:
    """A context that changes nothing: bytes are named by their line."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        return f"{self.name}/"

    def __exit__(self, *_):
        pass
