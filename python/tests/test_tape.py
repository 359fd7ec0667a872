"""`tf.GradientTape`: blocks, structures, and what goes wrong."""

import collections
import threading

import numpy as np
import plimsoll as tf
import pytest


def test_several_targets_and_structures_of_sources():
    Pair = collections.namedtuple("Pair", ["a", "b"])
    x, y, n = tf.Variable(3.0), tf.Variable(2.0), tf.Variable(1)
    with tf.GradientTape() as tape:
        targets = [x * y, x * x]
    given = tape.gradient(targets, {"p": Pair(x, [y]), "n": n})
    assert list(given) == ["p", "n"] and given["n"] is None
    assert (float(given["p"].a), float(given["p"].b[0])) == (8.0, 3.0)


def test_output_gradients_and_zeros():
    x, unused = tf.constant([1.0, 2.0]), tf.Variable([5.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x
    assert tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist() == [2.0, 40.0]
    assert tape.gradient(y, unused) is None
    zeros = tape.gradient(y, unused, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert zeros.numpy().tolist() == [0.0]


def test_gradient_inside_the_block():
    x = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        y = x * x
        assert float(tape.gradient(y, x)) == 6.0
        y * y
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            y = x * x * x
        first = inner.gradient(y, x)
    assert float(outer.gradient(first, x)) == 18.0


def test_gradient_can_only_be_called_once():
    x = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        y = x * x
    tape.gradient(y, x)
    with pytest.raises(RuntimeError, match="can only be called once"):
        tape.gradient(y, x)


def test_stop_recording_reset_and_reentry():
    x = tf.Variable(3.0)
    with tf.GradientTape(persistent=True) as tape:
        y = x * x
        with tape.stop_recording():
            z = x * x
        assert tape.gradient(z, x) is None
        assert float(tape.gradient(y, x)) == 6.0
        tape.reset()
        y = x * 5.0
    assert float(tape.gradient(y, x)) == 5.0
    with tape:
        y = x * 7.0
    assert float(tape.gradient(y, x)) == 7.0
    with pytest.raises(ValueError, match="does not record"):
        tape.stop_recording()
    with tape, pytest.raises(ValueError, match="records already"):
        tape.__enter__()


@pytest.mark.valgrind
def test_an_exception_inside_the_block_leaves_no_tape_open():
    x = tf.Variable(3.0)
    tape = tf.GradientTape()
    with pytest.raises(ZeroDivisionError), tape:
        1 / 0
    y = x * x
    assert tape.gradient(y, x) is None


@pytest.mark.valgrind
def test_a_tape_that_is_dropped_while_it_records():
    x = tf.Variable(3.0)

    def generator():
        with tf.GradientTape():
            yield x * x

    running = generator()
    next(running)
    del running
    with tf.GradientTape() as tape:
        y = x * x
    assert float(tape.gradient(y, x)) == 6.0


@pytest.mark.valgrind
def test_a_tape_belongs_to_its_thread():
    x, seen = tf.Variable(3.0), []
    with tf.GradientTape(persistent=True) as tape:
        thread = threading.Thread(target=lambda: seen.append(x * x))
        thread.start()
        thread.join()
        assert tape.gradient(seen[0], x) is None

        def leave():
            with pytest.raises(RuntimeError, match="thread"):
                tape.__exit__(None, None, None)
            seen.append("refused")

        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    assert seen[1] == "refused"


def test_a_variable_may_be_assigned_before_gradient():
    v = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        y = v * v * v
    v.assign(10.0)
    assert float(tape.gradient(y, v)) == 12.0


def test_jacobians():
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * x
    assert tape.jacobian(y, x).shape == (2, 2, 2, 2)
    assert np.array_equal(tape.batch_jacobian(y, x).numpy()[1], [[6.0, 0.0], [0.0, 8.0]])


def test_what_has_no_gradient_is_not_watched_and_that_is_said(caplog):
    with tf.GradientTape() as tape:
        n = tf.constant(1)
        tape.watch(n)
        assert "must be floating" in caplog.text
        with pytest.raises(ValueError, match="cannot be watched"):
            tape.watch(1.0)
        variable = tf.Variable(1.0)
        variable * 2.0
    assert [v.numpy() for v in tape.watched_variables()] == [1.0]


def test_an_identity_is_a_tensor_of_its_own_in_the_same_memory():
    before = tf.stats()["in_use"]
    x = tf.ones([1000])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = tf.identity(x)
        tape.watch(y)
        z = x * 2.0 + y * 3.0
    assert [float(g[0]) for g in tape.gradient(z, [x, y])] == [5.0, 3.0]
    del tape, z
    assert tf.stats()["in_use"] == before + 4096


def test_a_variable_may_be_a_target():
    v, w = tf.Variable(2.0), tf.Variable(3.0)
    with tf.GradientTape() as tape:
        greatest = max([v, w])
    assert [None if g is None else float(g) for g in tape.gradient(greatest, [v, w])] == [None, 1.0]


def test_jacobians_of_several_sources_and_of_none():
    x, y, unused = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0]), tf.Variable([5.0])
    with tf.GradientTape() as tape:
        z = x * x * y
    dx, (dy, none) = tape.jacobian(z, [x, (y, unused)], parallel_iterations=2, experimental_use_pfor=False)
    assert dx.numpy().tolist() == [[6.0, 0.0], [0.0, 16.0]] and dy.numpy().tolist() == [[1.0, 0.0], [0.0, 4.0]] and none is None
    with tf.GradientTape(persistent=True) as tape:
        z = x * 2.0
    assert tape.jacobian(z, unused, unconnected_gradients="zero").numpy().tolist() == [[0.0], [0.0]]
    row = tf.Variable([[1.0, 2.0]])
    assert tape.batch_jacobian(tf.reshape(z, [1, 2]), row).numpy().tolist() == [[[0.0, 0.0], [0.0, 0.0]]]
    with pytest.raises(ValueError, match="Unknown value for unconnected_gradients: 'nonsense'"):
        tape.gradient(z, x, unconnected_gradients="nonsense")
    for target, source, message in ((z, row, "must have rank at least 2"), (tf.ones([2, 2]), row, "Need first dimension")):
        with pytest.raises(ValueError, match=message):
            tape.batch_jacobian(target, source)
