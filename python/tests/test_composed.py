"""Functions that are made of ops, against numpy; and what is said of names that are not there."""

import numpy as np
import plimsoll as tf
import pytest
from plimsoll import missing

RNG = np.random.default_rng(6)
A, B = RNG.standard_normal((3, 4, 5)).astype("float32"), RNG.standard_normal((4, 5, 2)).astype("float32")
PLACES = np.array([[0, 3], [2, 1], [1, 0]])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lambda: tf.repeat(A, 2, axis=1), np.repeat(A, 2, 1)),
        (lambda: tf.repeat([7, 8], [2, 3]), np.repeat([7, 8], [2, 3])),
        (lambda: tf.roll(A, [1, -2], [0, 2]), np.roll(A, [1, -2], [0, 2])),
        (lambda: tf.stack(tf.meshgrid([1, 2], [3, 4, 5], [6])), np.stack(np.meshgrid([1, 2], [3, 4, 5], [6]))),
        (lambda: tf.stack(tf.meshgrid([1, 2], [3, 4], indexing="ij")), np.stack(np.meshgrid([1, 2], [3, 4], indexing="ij"))),
        (lambda: tf.slice(A, [1, 0, 2], [2, -1, 2]), A[1:3, :, 2:4]),
        (lambda: tf.gather_nd(A, PLACES), A[PLACES[:, 0], PLACES[:, 1]]),
        (lambda: tf.tensordot(A, B, 2), np.tensordot(A, B, 2)),
        (lambda: tf.tensordot(A, B, [[2, 1], [1, 0]]), np.tensordot(A, B, [[2, 1], [1, 0]])),
        (lambda: tf.tensordot(A, A, [[0], [0]]), np.tensordot(A, A, [[0], [0]])),
        (lambda: tf.sequence_mask([0, 2], 3), [[False] * 3, [True, True, False]]),
        (lambda: tf.linalg.band_part(A, 1, 2), np.triu(np.tril(A, 2), -1)),
        (lambda: tf.linalg.diag(A[0]), A[0][..., None] * np.eye(5, dtype="float32")),
        (lambda: tf.linalg.matvec(A, A[:, 0]), np.einsum("bij,bj->bi", A, A[:, 0])),
        (lambda: tf.linalg.matvec(A, A[:, :, 0], transpose_a=True), np.einsum("bij,bi->bj", A, A[:, :, 0])),
        (lambda: tf.clip_by_norm(A, 2.0, axes=[2]), A * np.minimum(1, 2.0 / np.linalg.norm(A, axis=2, keepdims=True))),
        (lambda: tf.math.xlogy(np.abs(A), np.abs(A)), np.abs(A) * np.log(np.abs(A))),
        (lambda: tf.math.count_nonzero(A > 0, axis=1), np.count_nonzero(A > 0, axis=1)),
        (lambda: tf.math.l2_normalize(A, axis=-1), A / np.linalg.norm(A, axis=-1, keepdims=True)),
        (lambda: tf.map_fn(lambda pair: pair[0] + pair[1], (A, A)), A + A),
    ],
)  # fmt: skip
def test_values_are_numpys(found, expected):
    found = found().numpy()
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)  # sums of up to 20 products of float32


def test_gradients_where_a_divisor_or_factor_is_zero_are_finite():
    x, y = tf.Variable([1.0, 2.0]), tf.Variable([0.0, 4.0])
    for function, of_x in ((tf.math.divide_no_nan, [0.0, 0.25]), (tf.math.multiply_no_nan, [0.0, 4.0])):
        with tf.GradientTape() as tape:
            z = function(x, y)
        found = tape.gradient(z, [x, y])
        assert found[0].numpy().tolist() == of_x and np.isfinite(found[1].numpy()).all()
    with tf.GradientTape() as tape:
        z = tf.math.xlogy(y, x - 1.0)
    assert np.isfinite(tape.gradient(z, x).numpy()).all()


def test_clipping_leaves_what_is_short_enough_and_none():
    a, b = tf.constant([3.0]), tf.constant([4.0])
    (same, nothing, too), norm = tf.clip_by_global_norm([a, None, b], 5.0)
    assert (float(norm), nothing, same.numpy().tolist(), too.numpy().tolist()) == (5.0, None, [3.0], [4.0])


def test_a_condition_that_cannot_be_read_is_an_error_with_the_line():
    @tf.function
    def chosen(x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: -x)

    with pytest.raises(Exception, match="test_composed.py.*there is no AutoGraph"):
        chosen(tf.ones([2]))


def test_print_inside_a_function_prints_at_each_call(capfd):
    @tf.function
    def shown(x):
        tf.print("x is", x)
        return x

    for value in (1.0, 2.0):
        shown(tf.constant(value))
    assert capfd.readouterr().err.splitlines() == ["x is: 1.", "x is: 2."]


def found_at(path):
    """What lies at a path below tf: a module, or an object of a class."""
    if path.startswith(("data.Dataset", "keras.Layer")):
        found = tf.data.Dataset.range(3) if path.startswith("data") else tf.keras.layers.Layer()
        *_, name = path.split(".")
        return found if path.count(".") == 1 else getattr(found, name)
    found = tf
    for name in path.split("."):
        found = getattr(found, name)
    return found


def test_names_that_are_not_there_say_what_to_use():
    """A path of the table is not there; of a module that is there, no name that it has not."""
    wrong = []
    for path in [*(path for path in missing.INSTEAD if path), "Foo", "nn.ctc_loss", "keras.layers.Masking",
                 "keras.activations.x", "keras.initializers.X", "keras.models.x", "keras.optimizers.schedules.X", "keras.regularizers.X"]:  # fmt: skip
        try:
            found_at(path)
            path += ".nothing"
        except AttributeError:
            pass
        with pytest.raises(AttributeError) as raised:
            found_at(path)
        if f"Plimsoll has no tf.{path}; use {missing.instead(path)}. docs/" not in str(raised.value):
            wrong.append((path, str(raised.value)))
    assert not wrong
