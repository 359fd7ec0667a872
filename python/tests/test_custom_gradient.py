"""Gradients that the user states, and functions that backward calls again."""

import gc

import numpy as np
import plimsoll as tf
import pytest
from conftest import in_use


def test_the_stated_gradient_is_taken():
    @tf.custom_gradient
    def log1pexp(x):
        e = tf.exp(x)
        return tf.math.log1p(e), lambda upstream: upstream * (1.0 - 1.0 / (1.0 + e))

    x = tf.constant([0.0, 100.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = log1pexp(x)
    assert tape.gradient(y, x).numpy().tolist() == [0.5, 1.0]


def test_several_arguments_some_without_a_gradient():
    @tf.custom_gradient
    def f(a, n, b):
        def gradient(dy):
            return dy * 10.0, None, None

        return a * b * float(n), gradient

    a, b = tf.Variable(2.0), tf.Variable(3.0)
    with tf.GradientTape() as tape:
        y = f(a, 4, b) + b
    assert [float(g) for g in tape.gradient(y, [a, b])] == [10.0, 1.0]


def test_variables_inside_have_gradients_of_their_own():
    w = tf.Variable(5.0)

    @tf.custom_gradient
    def f(x):
        def gradient(dy, variables=None):
            assert [v.name for v in variables] == [w.name]
            return dy * 7.0, [dy * 9.0]

        return x * w, gradient

    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    assert float(y) == 10.0
    assert [float(g) for g in tape.gradient(y, [x, w])] == [7.0, 9.0]
    with pytest.raises(TypeError, match="variables="), tf.GradientTape():
        tf.custom_gradient(lambda x: (x * w, lambda dy: dy))(x)


def test_gradients_of_gradients_go_through_the_function():
    @tf.custom_gradient
    def cube(x):
        return x * x * x, lambda dy: dy * 3.0 * x * x

    x = tf.Variable(2.0)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            y = cube(x)
        dx = inner.gradient(y, x)
    assert float(dx) == 12.0 and float(outer.gradient(dx, x)) == 12.0


@pytest.mark.valgrind
def test_an_exception_in_backward_comes_out_and_the_cycle_is_collected():
    class Special(Exception):
        pass

    before = in_use()
    x = tf.Variable(tf.ones([1000]))
    tape = tf.GradientTape(persistent=True)
    large = tf.ones([1000])

    @tf.custom_gradient
    def f(x):
        def gradient(dy):
            assert tape is not None and large is not None
            raise Special

        return x * 2.0, gradient

    with tape:
        y = f(x)
    for _ in range(2):
        with pytest.raises(Special):
            tape.gradient(y, x)
    del f, y, x, tape, large
    gc.collect()
    assert in_use() == before


def test_inside_a_function_and_a_graph():
    @tf.custom_gradient
    def twice(x):
        return x * 1.0, lambda dy: dy * 2.0

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = twice(x) * 3.0
        return tape.gradient(y, x)

    for _ in range(2):
        assert float(step(tf.constant(1.0))) == 6.0
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [])
        (dx,) = tf.gradients(twice(x) * 3.0, x)
    assert tf.compat.v1.Session(graph=graph).run(dx, {x: 1.0}) == 6.0


def test_recomputing_saves_memory_and_has_the_same_bits():
    w = [tf.Variable(tf.random.normal([64, 64]) * 0.1) for _ in range(4)]

    def block(x, w):
        for _ in range(4):
            x = tf.nn.dropout(tf.tanh(x @ w), 0.1)
        return x

    x = tf.random.normal([256, 64])
    given, saved = [], []
    for wrap in (lambda f: f, tf.recompute_grad):
        tf.random.set_seed(5)
        with tf.GradientTape() as tape:
            h = x
            for v in w:
                h = wrap(block)(h, v)
            loss = tf.reduce_mean(h)
        saved.append(tape.saved().own_bytes)
        given.append([g.numpy().tobytes() for g in tape.gradient(loss, w)])
    assert given[0] == given[1]
    assert saved[1] < 0.3 * saved[0]


def test_recompute_takes_structures_and_says_what_it_cannot():
    v = tf.Variable(3.0)
    f = tf.recompute_grad(lambda pair, scale=1.0: pair["a"] * pair["b"] * v * scale)
    a, b = tf.Variable(2.0), tf.constant(5.0)
    with tf.GradientTape() as tape:
        y = f({"a": a, "b": b}, scale=2.0)
    assert [float(g) for g in tape.gradient(y, [a, v])] == [30.0, 20.0]
    with pytest.raises(NotImplementedError, match="one result"), tf.GradientTape():
        tf.recompute_grad(lambda x: (x, x))(a)


def test_stop_gradient():
    x = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        y = x * tf.stop_gradient(x)
    assert float(tape.gradient(y, x)) == 3.0
    assert np.isfinite(float(y))
