"""``plimsoll.xp``: the array API's namespace, beside numpy's, whose main namespace follows the same rules."""

import math

import numpy as np
import plimsoll as tf
import pytest
from plimsoll import xp

A = np.random.default_rng(1).uniform(0.2, 0.9, (2, 3, 4)).astype("float32")
B = np.random.default_rng(2).uniform(0.2, 0.9, (3, 4)).astype("float32")
N = np.random.default_rng(3).integers(-5, 6, (3, 4)) * np.array([1, 1, 0, 1])
T = N > 0

UNARY = ["acos", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log", "log1p", "log2", "log10", "reciprocal", "sin", "sinh",
         "sqrt", "tan", "tanh", "ceil", "floor", "round", "trunc", "abs", "negative", "sign", "square", "signbit", "isnan", "isinf",
         "isfinite", "positive"]  # fmt: skip
BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "pow", "floor_divide", "remainder", "atan2", "hypot", "logaddexp",
          "copysign", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]  # fmt: skip


def check(found, expected):
    assert isinstance(found, tf.Tensor) and tuple(found.shape) == expected.shape and found.dtype == expected.dtype
    # Both compute in the dtype of the elements, by other approximations.
    np.testing.assert_allclose(found.numpy(), expected, rtol=3e-6, atol=3e-7)


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_elements(name):
    check(getattr(xp, name)(xp.asarray(A)), getattr(np, name)(A))
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], "float64")
    if name in ("isnan", "isinf", "isfinite", "signbit", "abs", "negative", "floor", "trunc"):
        check(getattr(xp, name)(xp.asarray(special)), getattr(np, name)(special))


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two(name):
    check(getattr(xp, name)(xp.asarray(A), xp.asarray(B)), getattr(np, name)(A, B))
    if name in ("add", "floor_divide", "remainder", "less"):
        positive = np.abs(N) + 1
        check(getattr(xp, name)(xp.asarray(N), xp.asarray(positive)), getattr(np, name)(N, positive))


def test_dtypes_are_promoted_within_their_kind():
    assert xp.add(xp.asarray([1], dtype=xp.int32), xp.asarray([2], dtype=xp.int64)).dtype == xp.int64
    assert xp.multiply(xp.asarray([1.0], dtype=xp.float64), xp.asarray([2.0])).dtype == xp.float64
    assert xp.add(xp.asarray([1.0]), 2).dtype == xp.float32 and xp.multiply(2, xp.asarray([3])).dtype == xp.int64
    assert xp.result_type(xp.uint8, xp.int32) == xp.int32 and xp.can_cast(xp.int32, xp.int64) and not xp.can_cast(xp.float64, xp.float32)
    assert xp.isdtype(xp.int32, ("integral", "bool")) and not xp.isdtype(xp.float32, "integral") and xp.isdtype(xp.bool, xp.bool)
    assert (xp.finfo(xp.float32).eps, xp.iinfo(xp.int32).max) == (2.0**-23, 2**31 - 1)
    with pytest.raises(TypeError, match="no dtype in common"):
        xp.add(xp.asarray([1]), xp.asarray([1.0]))
    with pytest.raises(TypeError, match="beside an array of int64"):
        xp.add(xp.asarray([1]), 1.5)
    with pytest.raises(TypeError, match="xp.exp is of float arrays"):
        xp.exp(xp.asarray([1]))


def test_arrays_are_made():
    check(xp.arange(2, 11, 3), np.arange(2, 11, 3))
    check(xp.arange(1.0, 0.0, -0.25), np.arange(1.0, 0.0, -0.25, "float32"))
    check(xp.linspace(0.0, 1.0, 5, dtype=xp.float64), np.linspace(0, 1, 5))
    check(xp.eye(3, 4, k=1), np.eye(3, 4, 1, "float32"))
    check(xp.full((2, 2), 7), np.full((2, 2), 7))
    check(xp.full_like(xp.asarray(B), math.pi), np.full_like(B, math.pi))
    check(xp.tril(xp.asarray(N), k=1), np.tril(N, 1))
    check(xp.triu(xp.asarray(A), k=-1), np.triu(A, -1))
    big = 2**62 + 1
    assert int(xp.full((), big)) == big and xp.asarray([big]).numpy()[0] == big
    assert [x.numpy().tolist() for x in xp.meshgrid(xp.asarray([1, 2]), xp.asarray([3]))] == [[[1, 2]], [[3, 3]]]
    check(xp.asarray([xp.asarray([1.0]), xp.asarray([2.0])]), np.array([[1.0], [2.0]], "float32"))
    shared = np.arange(3.0)
    assert np.shares_memory(np.from_dlpack(xp.asarray(shared, copy=False)), shared)


def test_shapes_change():
    x = xp.asarray(A)
    check(xp.permute_dims(x, (2, 0, 1)), A.transpose(2, 0, 1))
    check(xp.moveaxis(x, 0, -1), np.moveaxis(A, 0, -1))
    check(xp.concat([x, x], axis=None), np.concatenate([A.ravel(), A.ravel()]))
    check(xp.stack([x, x], axis=-1), np.stack([A, A], -1))
    check(xp.squeeze(xp.expand_dims(x, axis=(0, -1)), axis=0), A[..., None])
    check(xp.flip(x, axis=(0, 2)), np.flip(A, (0, 2)))
    check(xp.roll(x, (1, -2), axis=(0, 2)), np.roll(A, (1, -2), (0, 2)))
    check(xp.roll(x, 5), np.roll(A, 5))
    check(xp.repeat(x, 2, axis=1), np.repeat(A, 2, 1))
    check(xp.tile(xp.asarray(B), (2, 1, 3)), np.tile(B, (2, 1, 3)))
    assert [part.numpy().tolist() for part in xp.unstack(xp.asarray(N), axis=1)] == N.T.tolist()
    assert [tuple(part.shape) for part in xp.broadcast_arrays(xp.ones((2, 1)), xp.ones((3,)))] == [(2, 3), (2, 3)]


def test_arrays_are_reduced_and_ordered():
    x, n = xp.asarray(A), xp.asarray(N)
    for name in ("sum", "prod", "max", "min", "mean", "std", "var"):
        check(getattr(xp, name)(x, axis=(0, 2), keepdims=True), getattr(np, name)(A, axis=(0, 2), keepdims=True))
    check(xp.var(x, axis=1, correction=1), np.var(A, axis=1, ddof=1))
    check(xp.sum(xp.asarray(N.astype("int32"))), np.asarray(N.sum()))
    check(xp.cumulative_sum(x, axis=1, include_initial=True), np.cumulative_sum(A, axis=1, include_initial=True))
    check(xp.count_nonzero(n, axis=0), np.count_nonzero(N, axis=0))
    assert bool(xp.any(n)) and not bool(xp.all(n)) and int(xp.argmax(x)) == A.argmax()
    check(xp.argmin(x, axis=1, keepdims=True), A.argmin(1, keepdims=True))
    check(xp.sort(x, axis=1, descending=True), -np.sort(-A, axis=1))
    check(xp.argsort(x, axis=0), A.argsort(0))
    check(xp.diff(n, axis=0, n=2), np.diff(N, axis=0, n=2))
    check(xp.take(n, xp.asarray([1, -1]), axis=1), np.take(N, [1, -1], axis=1))
    places = np.array([[0], [2], [-1]])
    check(xp.take_along_axis(n, xp.asarray(places), axis=1), np.take_along_axis(N, places, 1))
    check(xp.searchsorted(xp.asarray([1.0, 2.0, 2.0, 4.0]), xp.asarray([2.0, 5.0]), side="right"), np.array([3, 4]))
    check(xp.where(xp.asarray(T), n, 0), np.where(T, N, 0))
    check(xp.clip(n, -1, 2), np.clip(N, -1, 2))
    check(xp.logical_not(xp.asarray(T)), ~T)


def test_products():
    check(xp.matmul(xp.asarray(A), xp.asarray(B.T)), A @ B.T)
    check(xp.matmul(xp.asarray(B), xp.asarray(B[0])), B @ B[0])
    check(xp.vecdot(xp.asarray(A), xp.asarray(B)), np.vecdot(A, B))
    check(xp.tensordot(xp.asarray(A), xp.asarray(B), axes=((1, 2), (0, 1))), np.tensordot(A, B, ((1, 2), (0, 1))))
    check(xp.matrix_transpose(xp.asarray(A)), A.swapaxes(1, 2))


def test_an_array_knows_its_namespace_and_a_tape_can_watch_it():
    x = tf.constant(B)
    assert x.__array_namespace__() is xp and x.T.shape == (4, 3) and x.mT.shape == (4, 3) and x.size == 12
    info = xp.__array_namespace_info__()
    assert not info.capabilities()["boolean indexing"] and set(info.dtypes(kind="integral")) == {"uint8", "int32", "int64"}
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = xp.sum(xp.multiply(x, x))
    np.testing.assert_allclose(tape.gradient(y, x).numpy(), 2 * B)
    with pytest.raises(AttributeError, match="Plimsoll has no tf.xp.nonzero"):
        xp.nonzero
    with pytest.raises(ValueError, match="2099.12"):
        x.__array_namespace__(api_version="2099.12")
