"""Functions whose arguments are their own: shapes, casts, slices, products, losses."""

import operator

import numpy as np

from . import _core, dtypes
from .names import tensor
from .tensor import Value, TensorShape, convert_to_tensor, matmul as _matmul


def _shape(shape):
    if isinstance(shape, Value):
        return [int(n) for n in shape.numpy().reshape(-1)]
    return [operator.index(n) for n in (shape if isinstance(shape, (list, tuple)) else np.atleast_1d(shape))]


def _name(dtype):
    return dtypes.as_dtype(dtype).name


def constant(value, dtype=None, shape=None, name="Const"):
    made = convert_to_tensor(value, dtype)
    if shape is None:
        return made
    return broadcast_to(made, shape) if made.shape.num_elements() == 1 else reshape(made, shape)


def zeros(shape, dtype=dtypes.float32, name=None):
    return _core.full(_shape(shape), 0.0, _name(dtype))


def ones(shape, dtype=dtypes.float32, name=None):
    return _core.full(_shape(shape), 1.0, _name(dtype))


def fill(dims, value, name=None):
    value = convert_to_tensor(value)
    return _core.full(_shape(dims), float(value), value._dtype)


def _like(number):
    def apply(input, dtype=None, name=None):
        like = tensor(input)
        return _core.full(like._shape, number, like._dtype if dtype is None else _name(dtype))

    return apply


zeros_like, ones_like = _like(0.0), _like(1.0)


def eye(num_rows, dtype=dtypes.float32, name=None):
    return cast(_core.eye(operator.index(num_rows)), dtype)


def range(start, limit=None, delta=1, dtype=None, name=None):
    if limit is None:
        start, limit = 0, start
    if dtype is None:
        dtype = dtypes.float32 if any(isinstance(n, float) for n in (start, limit, delta)) else dtypes.int32
    return _core.arange(float(start), float(limit), float(delta), _name(dtype))


def linspace(start, stop, num, name=None):
    return _core.linspace(float(start), float(stop), operator.index(num))


def cast(x, dtype, name=None):
    x, wanted = tensor(x), _name(dtype)
    return convert_to_tensor(x) if x._dtype == wanted else _core.cast(x, wanted)


def identity(input, name=None):
    return convert_to_tensor(input)


def shape(input, out_type=dtypes.int32, name=None):
    return convert_to_tensor(np.array(tensor(input)._shape, dtype=np.int64), None) if out_type == dtypes.int64 else (
        convert_to_tensor(np.array(tensor(input)._shape, dtype=np.int32)))


def size(input, out_type=dtypes.int32, name=None):
    return convert_to_tensor(tensor(input).shape.num_elements(), out_type)


def rank(input, name=None):
    return convert_to_tensor(len(tensor(input)._shape))


def reshape(tensor, shape, name=None):
    return _core.reshape(_as_tensor(tensor), _shape(shape))


def transpose(a, perm=None, name=None):
    a = _as_tensor(a)
    return _core.permute(a, list(reversed(list(_indices(a)))) if perm is None else _shape(perm))


def _indices(a):
    return np.arange(len(a._shape)).tolist()


_as_tensor = tensor


def broadcast_to(input, shape, name=None):
    return _core.broadcast_to(tensor(input), _shape(shape))


def expand_dims(input, axis, name=None):
    return _core.along("unsqueeze", tensor(input), axis)


def squeeze(input, axis=None, name=None):
    x = tensor(input)
    axes = [i for i, n in enumerate(x._shape) if n == 1] if axis is None else np.atleast_1d(axis).tolist()
    for a in sorted((a % len(x._shape) for a in axes), reverse=True):
        x = _core.along("squeeze", x, a)
    return x


def concat(values, axis, name=None):
    return _core.concat([tensor(v) for v in values], axis, False)


def stack(values, axis=0, name=None):
    return _core.concat([tensor(v) for v in values], axis, True)


def unstack(value, num=None, axis=0, name=None):
    x = tensor(value)
    return [squeeze(part, [axis]) for part in split(x, x._shape[axis], axis)]


def split(value, num_or_size_splits, axis=0, num=None, name=None):
    x = tensor(value)
    sizes = num_or_size_splits
    if not isinstance(sizes, (list, tuple)):
        each, left = divmod(x._shape[axis], sizes)
        if left:
            raise ValueError(f"an axis of {x._shape[axis]} cannot be split into {sizes} equal parts")
        sizes = [each] * sizes
    return _core.split(x, axis, _shape(sizes))


def pad(tensor, paddings, mode="CONSTANT", constant_values=0, name=None):
    if mode.upper() != "CONSTANT":
        raise NotImplementedError(f"tf.pad pads with a constant; mode {mode!r} is not there")
    return _core.pad(_as_tensor(tensor), [tuple(int(n) for n in pair) for pair in np.asarray(paddings)], float(constant_values))


def tile(input, multiples, name=None):
    return _core.tile(tensor(input), _shape(multiples))


def reverse(tensor, axis, name=None):
    return _core.flip(_as_tensor(tensor), _shape(axis))


def where(condition, x=None, y=None, name=None):
    if x is None or y is None:
        raise NotImplementedError("tf.where with a condition alone has a size that depends on values, which no op here has")
    x, y = (_as_tensor(v) if isinstance(v, Value) else v for v in (x, y))
    like = next((v.dtype for v in (x, y) if isinstance(v, Value)), None)
    x, y = (v if isinstance(v, Value) else convert_to_tensor(v, dtype_hint=like) for v in (x, y))
    return _core.select(_as_tensor(condition), x, y)


def gather(params, indices, axis=0, batch_dims=0, name=None):
    if batch_dims:
        raise NotImplementedError("tf.gather has no batch_dims here")
    return _core.gather(tensor(params), tensor(indices), axis or 0)


def one_hot(indices, depth, on_value=None, off_value=None, axis=None, dtype=dtypes.float32, name=None):
    if on_value is not None or off_value is not None or axis not in (None, -1):
        raise NotImplementedError("tf.one_hot puts ones and zeros along a last axis; nothing else is there")
    return _core.one_hot(tensor(indices), operator.index(depth), _name(dtype))


def clip_by_value(t, clip_value_min, clip_value_max, name=None):
    return _core.clamp(tensor(t), float(clip_value_min), float(clip_value_max))


def argmax(input, axis=0, output_type=dtypes.int64, name=None):
    return cast(_core.reduce("argmax", tensor(input), [axis], False), output_type)


def argmin(input, axis=0, output_type=dtypes.int64, name=None):
    return cast(_core.reduce("argmin", tensor(input), [axis], False), output_type)


def sort(values, axis=-1, direction="ASCENDING", name=None):
    return _core.sort(tensor(values), axis, direction == "DESCENDING")[0]


def argsort(values, axis=-1, direction="ASCENDING", stable=False, name=None):
    return cast(_core.sort(tensor(values), axis, direction == "DESCENDING")[1], dtypes.int32)


def top_k(input, k=1, sorted=True, name=None):
    values, indices = _core.top_k(tensor(input), k)
    return values, cast(indices, dtypes.int32)


def cumsum(x, axis=0, name=None):
    return _core.along("cumsum", tensor(x), axis)


def cumprod(x, axis=0, name=None):
    return _core.along("cumprod", tensor(x), axis)


def matmul(a, b, transpose_a=False, transpose_b=False, name=None):
    def turned(x, is_turned):
        x = tensor(x)
        return _core.permute(x, [*_indices(x)[:-2], -1, -2]) if is_turned else x

    return _matmul(turned(a, transpose_a), turned(b, transpose_b))


def einsum(equation, *inputs, name=None):
    return _core.einsum(equation, [tensor(x) for x in inputs])


def add_n(inputs, name=None):
    total, *rest = [tensor(x) for x in inputs]
    for x in rest:
        total = total + x
    return convert_to_tensor(total)


def stop_gradient(input, name=None):
    return _core.stop_gradient(tensor(input))


def norm(tensor, ord="euclidean", axis=None, keepdims=None, name=None):
    if ord not in ("euclidean", 2):
        raise NotImplementedError(f"tf.norm is the Euclidean length; ord {ord!r} is not there")
    axes = None if axis is None else _shape(axis)
    return _core.reduce("norm", _as_tensor(tensor), axes, bool(keepdims))


def normal(shape, mean=0.0, stddev=1.0, dtype=dtypes.float32, seed=None, name=None):
    _no_op_seed(seed)
    return _core.normal(_shape(shape), float(mean), float(stddev), _name(dtype), False)


def truncated_normal(shape, mean=0.0, stddev=1.0, dtype=dtypes.float32, seed=None, name=None):
    _no_op_seed(seed)
    return _core.normal(_shape(shape), float(mean), float(stddev), _name(dtype), True)


def uniform(shape, minval=0, maxval=None, dtype=dtypes.float32, seed=None, name=None):
    _no_op_seed(seed)
    if dtypes.as_dtype(dtype).is_integer:
        if maxval is None:
            raise ValueError("tf.random.uniform of whole numbers needs maxval")
        return _core.randint(_shape(shape), int(minval), int(maxval), _name(dtype))
    return _core.uniform(_shape(shape), float(minval), 1.0 if maxval is None else float(maxval), _name(dtype))


def _no_op_seed(seed):
    if seed is not None:
        raise NotImplementedError("draws have no seed of their own here: tf.random.set_seed is for all of them")


def set_seed(seed):
    _core.set_seed(operator.index(seed))


def leaky_relu(features, alpha=0.2, name=None):
    return _core.parametric("leaky_relu", tensor(features), float(alpha))


def elu(features, name=None):
    return _core.parametric("elu", tensor(features), 1.0)


def gelu(features, approximate=False, name=None):
    return _core.unary("gelu_tanh" if approximate else "gelu", tensor(features))


def dropout(x, rate, noise_shape=None, seed=None, name=None):
    _no_op_seed(seed)
    return _core.parametric("dropout", tensor(x), float(rate))


def softmax_cross_entropy_with_logits(labels, logits, axis=-1, name=None):
    return _core.pair("cross_entropy", tensor(logits), tensor(labels))


def sparse_softmax_cross_entropy_with_logits(labels, logits, name=None):
    return _core.pair("sparse_cross_entropy", tensor(logits), tensor(labels))


def embedding_lookup(params, ids, name=None):
    return _core.pair("embedding", tensor(params), tensor(ids))


def is_tensor(x):
    return isinstance(x, Value)
