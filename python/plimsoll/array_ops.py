"""Functions whose arguments are their own: shapes, casts, slices, products."""

import operator

import numpy as np

from . import _core, dtypes
from .names import tensor
from .tensor import Tensor, Value, TensorShape, convert_to_tensor, matmul as _matmul


def extents(shape):
    """A shape as a list of Python numbers."""
    if isinstance(shape, Value):
        return [int(n) for n in shape.numpy().reshape(-1)]
    return [operator.index(n) for n in (shape if isinstance(shape, (list, tuple)) else np.atleast_1d(shape))]


def name_of(dtype):
    """The name of a dtype, however it is given."""
    return dtypes.as_dtype(dtype).name


def constant(value, dtype=None, shape=None, name="Const"):
    """A tensor with those values.

    >>> import plimsoll as tf
    >>> tf.constant([[1, 2], [3, 4]])
    <tf.Tensor: shape=(2, 2), dtype=int32, numpy=
    array([[1, 2],
           [3, 4]], dtype=int32)>
    """
    made = convert_to_tensor(value, dtype)
    if shape is None:
        return made
    return broadcast_to(made, shape) if made.shape.num_elements() == 1 else reshape(made, shape)


def zeros(shape, dtype=dtypes.float32, name=None):
    """A tensor of zeros.

    >>> import plimsoll as tf
    >>> tf.zeros([2, 3]).numpy()
    array([[0., 0., 0.],
           [0., 0., 0.]], dtype=float32)
    """
    return _core.full(extents(shape), 0.0, name_of(dtype))


def ones(shape, dtype=dtypes.float32, name=None):
    """A tensor of ones.

    >>> import plimsoll as tf
    >>> tf.ones([2], tf.int32).numpy()
    array([1, 1], dtype=int32)
    """
    return _core.full(extents(shape), 1.0, name_of(dtype))


def fill(dims, value, name=None):
    """A tensor of one value.

    >>> import plimsoll as tf
    >>> tf.fill([3], 2.5).numpy()
    array([2.5, 2.5, 2.5], dtype=float32)
    """
    value = convert_to_tensor(value)
    return _core.full(extents(dims), float(value), value._dtype)


def _like(input, number, dtype):
    like = tensor(input)
    return _core.full(like._shape, number, like._dtype if dtype is None else name_of(dtype))


def zeros_like(input, dtype=None, name=None):
    """Zeros in the shape, and unless told in the dtype, of a tensor.

    >>> import plimsoll as tf
    >>> tf.zeros_like([1.0, 2.0]).numpy()
    array([0., 0.], dtype=float32)
    """
    return _like(input, 0.0, dtype)


def ones_like(input, dtype=None, name=None):
    """Ones in the shape, and unless told in the dtype, of a tensor.

    >>> import plimsoll as tf
    >>> tf.ones_like([3, 4]).numpy()
    array([1, 1], dtype=int32)
    """
    return _like(input, 1.0, dtype)


def eye(num_rows, dtype=dtypes.float32, name=None):
    """The unit matrix.

    >>> import plimsoll as tf
    >>> print(tf.eye(2).numpy())
    [[1. 0.]
     [0. 1.]]
    """
    return cast(_core.eye(operator.index(num_rows)), dtype)


def range(start, limit=None, delta=1, dtype=None, name=None):
    """Evenly spaced numbers, the limit left out; whole ones unless a float is among the arguments.

    >>> import plimsoll as tf
    >>> tf.range(2, 8, 2).numpy()
    array([2, 4, 6], dtype=int32)
    """
    if limit is None:
        start, limit = 0, start
    if dtype is None:
        dtype = dtypes.float32 if any(isinstance(n, float) for n in (start, limit, delta)) else dtypes.int32
    return _core.arange(float(start), float(limit), float(delta), name_of(dtype))


def linspace(start, stop, num, name=None):
    """So many evenly spaced numbers, both ends among them.

    >>> import plimsoll as tf
    >>> tf.linspace(0.0, 1.0, 5).numpy()
    array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    return _core.linspace(float(start), float(stop), operator.index(num))


def cast(x, dtype, name=None):
    """The tensor in another dtype; fractions are cut off where it has none.

    >>> import plimsoll as tf
    >>> tf.cast([1.9, -1.9], tf.int32).numpy()
    array([ 1, -1], dtype=int32)
    """
    x, wanted = tensor(x), name_of(dtype)
    return convert_to_tensor(x) if x._dtype == wanted else _core.cast(x, wanted)


def identity(input, name=None):
    """Another tensor of the same memory, which a tape tells from the first; the value of a variable.

    >>> import plimsoll as tf
    >>> tf.identity(tf.Variable(2.0)).numpy()
    np.float32(2.0)
    """
    x = input if isinstance(input, Tensor) else convert_to_tensor(input)
    return _core.along("squeeze", _core.along("unsqueeze", x, 0), 0)


def shape(input, out_type=dtypes.int32, name=None):
    """The extents as a tensor; ``x.shape`` has them as Python numbers.

    >>> import plimsoll as tf
    >>> tf.shape(tf.ones([2, 3])).numpy()
    array([2, 3], dtype=int32)
    """
    return convert_to_tensor(np.array(tensor(input)._shape, dtype=np.int64), None) if out_type == dtypes.int64 else (
        convert_to_tensor(np.array(tensor(input)._shape, dtype=np.int32)))


def size(input, out_type=dtypes.int32, name=None):
    """The number of elements, as a tensor.

    >>> import plimsoll as tf
    >>> int(tf.size(tf.ones([2, 3])))
    6
    """
    return convert_to_tensor(tensor(input).shape.num_elements(), out_type)


def rank(input, name=None):
    """The number of axes, as a tensor.

    >>> import plimsoll as tf
    >>> int(tf.rank(tf.ones([2, 3])))
    2
    """
    return convert_to_tensor(len(tensor(input)._shape))


def reshape(tensor, shape, name=None):
    """The same elements in another shape; one extent may be -1 and is found. No copy is made.

    >>> import plimsoll as tf
    >>> tf.reshape([1, 2, 3, 4, 5, 6], [2, -1]).numpy()
    array([[1, 2, 3],
           [4, 5, 6]], dtype=int32)
    """
    return _core.reshape(_as_tensor(tensor), extents(shape))


def transpose(a, perm=None, name=None):
    """The axes in another order, reversed unless told. No copy is made.

    >>> import plimsoll as tf
    >>> tf.transpose([[1, 2], [3, 4]]).numpy()
    array([[1, 3],
           [2, 4]], dtype=int32)
    """
    a = _as_tensor(a)
    return _core.permute(a, list(reversed(list(_indices(a)))) if perm is None else extents(perm))


def _indices(a):
    return np.arange(len(a._shape)).tolist()


_as_tensor = tensor


def broadcast_to(input, shape, name=None):
    """The tensor repeated along axes of extent 1, and along new ones in front. No copy is made.

    >>> import plimsoll as tf
    >>> tf.broadcast_to([1, 2], [2, 2]).numpy()
    array([[1, 2],
           [1, 2]], dtype=int32)
    """
    return _core.broadcast_to(tensor(input), extents(shape))


def expand_dims(input, axis, name=None):
    """A new axis of extent 1.

    >>> import plimsoll as tf
    >>> tf.expand_dims([1, 2], 0).shape
    TensorShape([1, 2])
    """
    return _core.along("unsqueeze", tensor(input), axis)


def squeeze(input, axis=None, name=None):
    """Without axes of extent 1: all, or those that are named.

    >>> import plimsoll as tf
    >>> tf.squeeze(tf.ones([1, 3, 1])).shape
    TensorShape([3])
    """
    x = tensor(input)
    axes = [i for i, n in enumerate(x._shape) if n == 1] if axis is None else np.atleast_1d(axis).tolist()
    for a in sorted((a % len(x._shape) for a in axes), reverse=True):
        x = _core.along("squeeze", x, a)
    return x


def concat(values, axis, name=None):
    """Tensors one after the other along an axis that they have.

    >>> import plimsoll as tf
    >>> tf.concat([[1, 2], [3]], 0).numpy()
    array([1, 2, 3], dtype=int32)
    """
    return _core.concat([tensor(v) for v in values], axis, False)


def stack(values, axis=0, name=None):
    """Tensors one after the other along a new axis.

    >>> import plimsoll as tf
    >>> tf.stack([[1, 2], [3, 4]]).numpy()
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    return _core.concat([tensor(v) for v in values], axis, True)


def unstack(value, num=None, axis=0, name=None):
    """The slices along an axis, as a list.

    >>> import plimsoll as tf
    >>> [x.numpy().tolist() for x in tf.unstack([[1, 2], [3, 4]])]
    [[1, 2], [3, 4]]
    """
    x = tensor(value)
    return [squeeze(part, [axis]) for part in split(x, x._shape[axis], axis)]


def split(value, num_or_size_splits, axis=0, num=None, name=None):
    """Parts along an axis: so many equal ones, or of these sizes.

    >>> import plimsoll as tf
    >>> [x.numpy().tolist() for x in tf.split([1, 2, 3], [1, 2])]
    [[1], [2, 3]]
    """
    x = tensor(value)
    sizes = num_or_size_splits
    if not isinstance(sizes, (list, tuple)):
        each, left = divmod(x._shape[axis], sizes)
        if left:
            raise ValueError(f"an axis of {x._shape[axis]} cannot be split into {sizes} equal parts")
        sizes = [each] * sizes
    return _core.split(x, axis, extents(sizes))


def pad(tensor, paddings, mode="CONSTANT", constant_values=0, name=None):
    """A constant before and after along each axis.

    >>> import plimsoll as tf
    >>> tf.pad([1, 2], [[1, 2]]).numpy()
    array([0, 1, 2, 0, 0], dtype=int32)
    """
    if mode.upper() != "CONSTANT":
        raise NotImplementedError(f"tf.pad pads with a constant; mode {mode!r} is not there")
    return _core.pad(_as_tensor(tensor), [tuple(int(n) for n in pair) for pair in np.asarray(paddings)], float(constant_values))


def tile(input, multiples, name=None):
    """The tensor repeated so many times along each axis.

    >>> import plimsoll as tf
    >>> tf.tile([1, 2], [2]).numpy()
    array([1, 2, 1, 2], dtype=int32)
    """
    return _core.tile(tensor(input), extents(multiples))


def reverse(tensor, axis, name=None):
    """The elements in reverse order along axes.

    >>> import plimsoll as tf
    >>> tf.reverse([1, 2, 3], [0]).numpy()
    array([3, 2, 1], dtype=int32)
    """
    return _core.flip(_as_tensor(tensor), extents(axis))


def where(condition, x=None, y=None, name=None):
    """Elements of x where a condition holds, else of y.

    >>> import plimsoll as tf
    >>> tf.where([True, False], [1, 2], [3, 4]).numpy()
    array([1, 4], dtype=int32)
    """
    if x is None or y is None:
        raise NotImplementedError("tf.where with a condition alone has a size that depends on values, which no op here has")
    x, y = (_as_tensor(v) if isinstance(v, Value) else v for v in (x, y))
    like = next((v.dtype for v in (x, y) if isinstance(v, Value)), None)
    x, y = (v if isinstance(v, Value) else convert_to_tensor(v, dtype_hint=like) for v in (x, y))
    return _core.select(_as_tensor(condition), x, y)


def gather(params, indices, axis=0, batch_dims=0, name=None):
    """Slices along an axis, by their positions.

    >>> import plimsoll as tf
    >>> tf.gather([10, 20, 30], [2, 0]).numpy()
    array([30, 10], dtype=int32)
    """
    if batch_dims:
        raise NotImplementedError("tf.gather has no batch_dims here")
    return _core.gather(tensor(params), tensor(indices), axis or 0)


def one_hot(indices, depth, on_value=None, off_value=None, axis=None, dtype=dtypes.float32, name=None):
    """A one at each position, among zeros along a new last axis.

    >>> import plimsoll as tf
    >>> print(tf.one_hot([0, 2], 3).numpy())
    [[1. 0. 0.]
     [0. 0. 1.]]
    """
    if on_value is not None or off_value is not None or axis not in (None, -1):
        raise NotImplementedError("tf.one_hot puts ones and zeros along a last axis; nothing else is there")
    return _core.one_hot(tensor(indices), operator.index(depth), name_of(dtype))


def clip_by_value(t, clip_value_min, clip_value_max, name=None):
    """Elements brought between two bounds.

    >>> import plimsoll as tf
    >>> tf.clip_by_value([-2.0, 0.5, 7.0], 0.0, 1.0).numpy()
    array([0. , 0.5, 1. ], dtype=float32)
    """
    return _core.clamp(tensor(t), float(clip_value_min), float(clip_value_max))


def argmax(input, axis=0, output_type=dtypes.int64, name=None):
    """The position of the greatest element along an axis, the first of equal ones.

    >>> import plimsoll as tf
    >>> tf.argmax([[1, 5], [7, 2]], 1).numpy()
    array([1, 0])
    """
    return cast(_core.reduce("argmax", tensor(input), [axis], False), output_type)


def argmin(input, axis=0, output_type=dtypes.int64, name=None):
    """The position of the least element along an axis, the first of equal ones.

    >>> import plimsoll as tf
    >>> tf.argmin([3.0, 1.0, 2.0]).numpy()
    np.int64(1)
    """
    return cast(_core.reduce("argmin", tensor(input), [axis], False), output_type)


def sort(values, axis=-1, direction="ASCENDING", name=None):
    """The elements in order along an axis.

    >>> import plimsoll as tf
    >>> tf.sort([3, 1, 2], direction="DESCENDING").numpy()
    array([3, 2, 1], dtype=int32)
    """
    return _core.sort(tensor(values), axis, direction == "DESCENDING")[0]


def argsort(values, axis=-1, direction="ASCENDING", stable=False, name=None):
    """The positions of the elements in order along an axis.

    >>> import plimsoll as tf
    >>> tf.argsort([3, 1, 2]).numpy()
    array([1, 2, 0], dtype=int32)
    """
    return cast(_core.sort(tensor(values), axis, direction == "DESCENDING")[1], dtypes.int32)


def top_k(input, k=1, sorted=True, name=None):
    """The greatest elements of the last axis, and their positions.

    >>> import plimsoll as tf
    >>> [x.numpy().tolist() for x in tf.math.top_k([1.0, 9.0, 5.0], 2)]
    [[9.0, 5.0], [1, 2]]
    """
    values, indices = _core.top_k(tensor(input), k)
    return values, cast(indices, dtypes.int32)


def cumsum(x, axis=0, name=None):
    """Sums of all elements up to each, along an axis.

    >>> import plimsoll as tf
    >>> tf.cumsum([1, 2, 3]).numpy()
    array([1, 3, 6], dtype=int32)
    """
    return _core.along("cumsum", tensor(x), axis)


def cumprod(x, axis=0, name=None):
    """Products of all elements up to each, along an axis.

    >>> import plimsoll as tf
    >>> tf.math.cumprod([1.0, 2.0, 3.0]).numpy()
    array([1., 2., 6.], dtype=float32)
    """
    return _core.along("cumprod", tensor(x), axis)


def matmul(a, b, transpose_a=False, transpose_b=False, name=None):
    """Products of matrices; axes before the last two are batches.

    >>> import plimsoll as tf
    >>> tf.matmul([[1.0, 2.0]], [[3.0, 4.0]], transpose_b=True).numpy()
    array([[11.]], dtype=float32)
    """
    def turned(x, is_turned):
        x = tensor(x)
        return _core.permute(x, [*_indices(x)[:-2], -1, -2]) if is_turned else x

    return _matmul(turned(a, transpose_a), turned(b, transpose_b))


def einsum(equation, *inputs, name=None):
    """Einstein's sum: axes by letters, summed over where the result has them not.

    >>> import plimsoll as tf
    >>> tf.einsum("ij,kj->ik", [[1.0, 2.0]], [[3.0, 4.0]]).numpy()
    array([[11.]], dtype=float32)
    """
    return _core.einsum(equation, [tensor(x) for x in inputs])


def add_n(inputs, name=None):
    """The sum of tensors of one shape.

    >>> import plimsoll as tf
    >>> tf.add_n([[1.0], [2.0], [3.0]]).numpy()
    array([6.], dtype=float32)
    """
    total, *rest = [tensor(x) for x in inputs]
    for x in rest:
        total = total + x
    return convert_to_tensor(total)


def stop_gradient(input, name=None):
    """The value, through which no gradient flows.

    >>> import plimsoll as tf
    >>> x = tf.Variable(3.0)
    >>> with tf.GradientTape() as tape:
    ...     y = x * tf.stop_gradient(x)
    >>> float(tape.gradient(y, x))
    3.0
    """
    return _core.stop_gradient(tensor(input))


def is_tensor(x):
    """Whether it is a tensor or a variable.

    >>> import plimsoll as tf
    >>> tf.is_tensor(tf.ones([1])), tf.is_tensor([1.0])
    (True, False)
    """
    return isinstance(x, Value)
