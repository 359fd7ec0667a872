"""Tensors and variables: numpy in and out, operators, indexing, printing, and names."""

import subprocess
import sys

import numpy as np
import plimsoll as tf
import pytest
from plimsoll import names

DTYPES = ["float64", "float32", "float16", "int64", "int32", "uint8", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)])
def test_numpy_goes_in_and_out(dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    tensor = tf.constant(array)
    assert (tensor.shape, tensor.dtype) == (shape, dtype)
    back = tensor.numpy()
    assert back.dtype == array.dtype and np.array_equal(back, array)


def test_strided_arrays_and_strided_tensors():
    array = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(tf.constant(array.T).numpy(), array.T)
    assert np.array_equal(tf.transpose(tf.constant(array)).numpy(), array.T)
    assert np.array_equal(np.asarray(tf.constant(array)[::2, ::-1]), array[::2, ::-1])


def test_truth_values_are_compared_and_dtypes_with_anything():
    x = tf.constant([True, False])
    assert (x == [True, True]).numpy().tolist() == [True, False] and (x != True).numpy().tolist() == [False, True]  # noqa: E712
    assert tf.equal(x, [[True], [False]]).numpy().tolist() == [[True, False], [False, True]]
    assert tf.not_equal(x, x).numpy().tolist() == [False, False]
    assert tf.float32 == "float32" and tf.float32 == np.float32
    assert all(tf.float64 != other for other in (None, {"a": 1}, [("a", 2, 3, 4)], 1.5, tf.float32))
    with pytest.raises(TypeError, match="Plimsoll has no dtype None"):
        tf.as_dtype(None)


def test_python_numbers_become_tensorflows_dtypes():
    assert tf.constant(1.5).dtype == tf.float32
    assert tf.constant([1, 2]).dtype == tf.int32
    assert tf.constant(True).dtype == tf.bool
    assert tf.constant(1, tf.float64).dtype == np.float64
    assert tf.constant([tf.constant(1.0), 2.0]).numpy().tolist() == [1.0, 2.0]
    with pytest.raises(TypeError, match="has no dtype"):
        tf.constant(np.int8(1))
    with pytest.raises(TypeError, match="int32 is wanted"):
        tf.constant(1.5, tf.int32)


def test_bfloat16_without_a_numpy_dtype():
    tensor = tf.constant([1.0, 2.0], tf.bfloat16)
    assert str(tensor) == "tf.Tensor([1. 2.], shape=(2,), dtype=bfloat16)"
    assert tf.cast(tensor, tf.float32).numpy().tolist() == [1.0, 2.0]


OPERATORS = [
    lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b, lambda a, b: a // b,
    lambda a, b: a % b, lambda a, b: a**b, lambda a, b: a < b, lambda a, b: a <= b, lambda a, b: a > b,
    lambda a, b: a >= b, lambda a, b: a == b, lambda a, b: a != b,
]  # fmt: skip


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_are_numpys(operator):
    a, b = np.array([1.0, 2.0, 3.0], np.float32), np.array([3.0, 2.0, 0.5], np.float32)
    expected = operator(a, b)
    for left, right in [(tf.constant(a), tf.constant(b)), (tf.constant(a), b), (a, tf.Variable(b)), (tf.Variable(a), tf.constant(b))]:
        assert np.allclose(operator(left, right), expected, rtol=1e-6)
    # Numbers take the dtype of the tensor that they meet, on either side.
    right, left = operator(tf.constant(a), 2), operator(2, tf.constant(a))
    assert right.dtype == left.dtype == expected.dtype
    assert np.allclose(right, operator(a, np.float32(2)), rtol=1e-6)
    assert np.allclose(left, operator(np.float32(2), a), rtol=1e-6)


def test_other_operators():
    a = tf.constant([[1.0, -2.0]])
    assert (a @ tf.transpose(a)).numpy().tolist() == [[5.0]]
    assert (-a).numpy().tolist() == [[-1.0, 2.0]] and abs(a).numpy().tolist() == [[1.0, 2.0]]
    assert (~(a > 0) | (a > 0)).numpy().tolist() == [[True, True]]
    assert (tf.constant([3, 4]) / 2).dtype == tf.float64
    with pytest.raises(TypeError, match="cast the tensor"):
        tf.constant([1]) * 1.5
    with pytest.raises(TypeError, match="unhashable"):
        {a}
    assert a.ref() == a.ref() and a.ref().deref() is a


INDICES = [0, -1, slice(1, None), (slice(None), 1), (Ellipsis, 0), (0, Ellipsis), (None, 1), (slice(None, None, -2), None, 2), (1, 2, 3)]


@pytest.mark.parametrize("index", INDICES)
def test_indexing_is_numpys(index):
    array = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    assert np.array_equal(tf.constant(array)[index].numpy(), array[index])


def test_what_is_no_index_says_what_would_work():
    with pytest.raises(TypeError, match="tf.gather"):
        tf.ones([3])[tf.constant([0, 1])]
    with pytest.raises(ValueError, match="3"):
        tf.ones([3])[3]


def test_printing_is_tensorflows():
    assert str(tf.constant([[1.0, 2.0]])) == "tf.Tensor([[1. 2.]], shape=(1, 2), dtype=float32)"
    assert repr(tf.constant(6.0)) == "<tf.Tensor: shape=(), dtype=float32, numpy=6.0>"
    assert repr(tf.Variable(1.0, name="v")) == "<tf.Variable 'v:0' shape=() dtype=float32, numpy=1.0>"


def test_variables_are_assigned():
    v = tf.Variable([1.0, 2.0], trainable=False, name="v")
    assert (v.name, v.trainable) == ("v:0", False)
    before = v.value()
    assert v.assign_add([1.0, 1.0]) is v
    v.assign_sub(tf.constant([0.5, 0.0]))
    assert v.numpy().tolist() == [1.5, 3.0] and before.numpy().tolist() == [1.0, 2.0]
    v.assign([7, 8])
    assert v.numpy().tolist() == [7.0, 8.0]
    with pytest.raises(ValueError, match="new value"):
        v.assign([1.0])


NUMPY_NAMES = {
    "acos": "arccos", "asin": "arcsin", "atan": "arctan", "negative": "negative", "reciprocal": "reciprocal",
    "is_finite": "isfinite", "is_nan": "isnan",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(names.UNARY))
def test_functions_of_one_tensor_are_numpys(name):
    x = np.array([0.25, 0.5, 0.75], np.float64)
    own = {
        "erf": [0.27632639, 0.52049988, 0.71115563],
        "log_sigmoid": np.log(1 / (1 + np.exp(-x))),
        "rsqrt": 1 / np.sqrt(x),
        "sigmoid": 1 / (1 + np.exp(-x)),
        "softplus": np.log1p(np.exp(x)),
    }
    if name == "logical_not":
        assert tf.logical_not([True, False]).numpy().tolist() == [False, True]
        return
    expected = own[name] if name in own else getattr(np, NUMPY_NAMES.get(name, name))(x)
    assert np.allclose(getattr(tf.math, name)(x), expected, rtol=1e-7)


@pytest.mark.parametrize("name", sorted(names.REDUCE))
@pytest.mark.parametrize("options", [{}, {"axis": 1}, {"axis": [0, -1], "keepdims": True}])
def test_reductions_are_numpys(name, options):
    x = np.arange(1.0, 25.0).reshape(2, 3, 4) / 8
    axis = options.get("axis")
    numpys = {"axis": tuple(axis) if isinstance(axis, list) else axis, "keepdims": options.get("keepdims", False)}
    own = {
        "reduce_euclidean_norm": lambda: np.sqrt(np.sum(x * x, **numpys)),
        "reduce_logsumexp": lambda: np.log(np.sum(np.exp(x), **numpys)),
        "reduce_variance": lambda: np.var(x, **numpys),
    }
    if name in ("reduce_all", "reduce_any"):
        given = getattr(tf, name)(x > 1, **options).numpy()
        assert np.array_equal(given, getattr(np, name[7:])(x > 1, **numpys))
        return
    expected = own[name]() if name in own else getattr(np, name[7:])(x, **numpys)
    assert np.allclose(getattr(tf.math, name)(x, **options), expected, rtol=1e-12)


def test_shapes_and_positions():
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    t = tf.constant(x)
    cases = [
        (tf.reshape(t, [3, -1]), x.reshape(3, -1)),
        (tf.concat([t, t], 1), np.concatenate([x, x], 1)),
        (tf.stack([t, t], -1), np.stack([x, x], -1)),
        (tf.expand_dims(t, 1), x[:, None]),
        (tf.squeeze(tf.reshape(t, [1, 2, 1, 3])), x),
        (tf.split(t, 3, axis=1)[1], x[:, 1:2]),
        (tf.unstack(t, axis=1)[2], x[:, 2]),
        (tf.pad(t, [[1, 0], [0, 2]]), np.pad(x, [[1, 0], [0, 2]])),
        (tf.tile(t, [2, 1]), np.tile(x, [2, 1])),
        (tf.where(t > 2, t, 0.0), np.where(x > 2, x, 0)),
        (tf.gather(t, [2, 0], axis=1), x[:, [2, 0]]),
        (tf.one_hot([1, 0], 3), np.eye(3)[[1, 0]]),
        (tf.clip_by_value(t, 1, 4), x.clip(1, 4)),
        (tf.argmax(t, axis=1), x.argmax(1)),
        (tf.matmul(t, t, transpose_b=True), x @ x.T),
        (tf.einsum("ij,kj->ik", t, t), x @ x.T),
        (tf.range(3), np.arange(3)),
        (tf.fill([2], 3.0), np.full(2, 3.0)),
        (tf.shape(t), [2, 3]),
        (tf.nn.softmax(t), np.exp(x) / np.exp(x).sum(1, keepdims=True)),
        (tf.cumsum(t, 1), x.cumsum(1)),
    ]
    for given, expected in cases:
        assert np.allclose(given.numpy(), expected, rtol=1e-6)


def test_random_numbers_come_from_the_seed():
    tf.random.set_seed(7)
    a, b = tf.random.normal([100]), tf.random.uniform([100], 2, 5, dtype=tf.int32)
    tf.random.set_seed(7)
    assert np.array_equal(a, tf.random.normal([100]))
    assert set(np.unique(b)) <= {2, 3, 4}


@pytest.mark.parametrize("name", ["math.nothing", "nn.conv9d", "random.nothing", "raw_ops"])
def test_a_name_that_is_not_there_says_so(name):
    module, _, member = name.rpartition(".")
    with pytest.raises(AttributeError, match=f"Plimsoll has no tf.{name}"):
        getattr(getattr(tf, module) if module else tf, member)


def test_tensors_and_variables_are_copied_and_pickled_as_their_values():
    """Also where `tf.keras` has not been imported."""
    program = """
import copy, pickle, plimsoll as tf
x, v = tf.cast(tf.constant([[1.5, 2.5]]), tf.bfloat16), tf.Variable([1, 2], trainable=False, name="v")
for made in (copy.deepcopy((x, v)), pickle.loads(pickle.dumps((x, v)))):
    assert made[0].dtype == tf.bfloat16 and tf.cast(made[0], tf.float32).numpy().tolist() == [[1.5, 2.5]]
    assert made[1].numpy().tolist() == [1, 2] and not made[1].trainable and made[1] is not v and made[1].dtype == tf.int32
    v.assign([3, 4])
    assert made[1].numpy().tolist() == [1, 2]
    v.assign([1, 2])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
