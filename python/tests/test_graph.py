"""Graphs and sessions, as programs of TensorFlow 1 use them."""

import threading

import numpy as np
import plimsoll as tf
import pytest
from conftest import in_use

v1 = tf.compat.v1


@pytest.fixture
def graph_mode():
    v1.disable_eager_execution()
    yield
    v1.enable_eager_execution()


def test_with_eager_execution_tensorflows_own_advice_is_the_error():
    x = tf.Variable(1.0)
    with pytest.raises(RuntimeError, match="not supported when eager execution is enabled. Use tf.GradientTape instead"):
        tf.gradients(x * x, x)
    for make in (v1.Session, v1.global_variables_initializer, lambda: v1.placeholder(tf.float32, [1])):
        with pytest.raises(RuntimeError, match=r"disable_eager_execution\(\)"):
            make()


def test_a_graph_is_trained_by_a_session(graph_mode):
    assert not tf.executing_eagerly()
    x = v1.placeholder(tf.float32, shape=[4, 2], name="x")
    y = v1.placeholder(tf.float32, shape=(4,))
    w = tf.Variable([1.0, -1.0], name="w")
    b = v1.get_variable("b", shape=[], initializer=0.5)
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(x * w, 1) + b - y))
    train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    assert {v.name for v in v1.global_variables()} == {"w:0", "b:0"}
    data = np.arange(8, dtype=np.float32).reshape(4, 2) / 8
    target = data @ [2.0, 3.0] + 1.0
    with v1.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="initiali"):
            session.run(loss, {x: data, y: target})
        session.run(v1.global_variables_initializer())
        assert session.run([w, {"b": b}])[1]["b"] == np.float32(0.5)
        losses = []
        for _ in range(50):
            value, done = session.run((loss, train), feed_dict={x: data, y: target})
            assert done is None
            losses.append(value)
        assert losses[-1] < 0.3 * losses[0]
        assert loss.eval({x: data, y: target}) < losses[-1]
        with pytest.raises(tf.errors.InvalidArgumentError, match='"x"'):
            session.run(loss, {y: target})
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[3, 2\]"):
            session.run(loss, {x: data[:3], y: target})
        with pytest.raises(TypeError, match="fetches tensors"):
            session.run("loss:0")
    with pytest.raises(RuntimeError, match="closed"):
        session.run(loss)


def test_nothing_runs_while_a_graph_is_described(graph_mode):
    before = in_use()
    x = tf.Variable(tf.random.normal([1000, 1000]))
    y = tf.matmul(x, x)
    assert in_use() == before
    for read in (y.numpy, lambda: bool(tf.reduce_sum(y) > 0)):
        with pytest.raises(tf.errors.OperatorNotAllowedInGraphError, match="Session.run"):
            read()
    assert "without values" in repr(y)
    assert len({x: 1, y: 2}) == 2
    plan = v1.Session().plan([y])  # x has no memory before it is initialised
    assert plan.rows["temporary"] == 4_000_000 and plan.peak == sum(plan.rows.values())


def test_gradients_are_those_of_a_tape():
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [5, 3])
        w = tf.Variable(np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2))
        c = tf.constant([1.0, 2.0])
        y = tf.tanh(x @ w) * c
        dx, dw, dc, none = tf.gradients(y, [x, w, c, tf.constant(1.0)], grad_ys=[tf.ones([5, 2]) * 2.0])
        assert none is None
    assert tf.executing_eagerly()
    data = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    with v1.Session(graph=graph) as session:
        session.run(v1.global_variables_initializer())
        given = session.run([dx, dw, dc], {x: data})
    x, w, c = tf.constant(data), tf.Variable(np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)), tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch([x, c])
        y = tf.tanh(x @ w) * c
    wanted = tape.gradient(y, [x, w, c], output_gradients=tf.ones([5, 2]) * 2.0)
    for one, other in zip(given, wanted):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-6)


@pytest.mark.valgrind
def test_a_graph_is_gone_when_nobody_holds_it(graph_mode):
    before = in_use()
    w = tf.Variable(tf.ones([1000]))
    c = tf.constant(np.ones(1000, np.float32))
    session = v1.Session()
    session.run(v1.global_variables_initializer())
    assert session.run(w + c)[0] == 2.0
    assert in_use() == before + 8000
    del w, c, session
    v1.reset_default_graph()
    assert in_use() == before
    with pytest.raises(AssertionError, match="as_default"), tf.Graph().as_default():
        v1.reset_default_graph()


def test_scopes_name_variables_and_share_them(graph_mode):
    with v1.variable_scope("layer"):
        w = v1.get_variable("w", [3, 2])
        with pytest.raises(ValueError, match="already exists"):
            v1.get_variable("w", [3, 2])
    with v1.variable_scope("layer", reuse=True):
        assert v1.get_variable("w", [3, 2]) is w
        with pytest.raises(ValueError, match="does not exist"):
            v1.get_variable("v", [3, 2])
    with v1.variable_scope("layer", reuse=v1.AUTO_REUSE):
        assert v1.get_variable("v", [3], tf.int32).name == "layer/v:0"
    session = v1.InteractiveSession()
    v1.global_variables_initializer().run()
    assert np.abs(w.numpy()).max() <= (6 / 5) ** 0.5
    session.close()


def test_assignments_are_operations(graph_mode):
    n = tf.Variable(1.0)
    add, twice = n.assign_add(1.0), n.assign(n * 2.0)
    both = tf.group(add, tf.no_op())
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        assert session.run(add) == 2.0
        assert session.run(twice) == 4.0
        assert session.run(both) is None and session.run(n) == 5.0


def test_shapes_are_fixed_and_the_error_says_so(graph_mode):
    with pytest.raises(ValueError, match="fixed shapes"):
        v1.placeholder(tf.float32, [None, 784])


def test_a_function_and_a_tape_inside_a_graph(graph_mode):
    x = v1.placeholder(tf.float32, [2])
    square = tf.function(lambda x: x * x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(square(x))
    dx = tape.gradient(y, x)
    assert v1.Session().run(dx, {x: [3.0, 4.0]}).tolist() == [6.0, 8.0]


def test_a_thread_has_its_own_graph():
    seen = []
    with tf.Graph().as_default():
        thread = threading.Thread(target=lambda: seen.append(float(tf.constant(2.0) * 2.0)))
        thread.start()
        thread.join()
    assert seen == [4.0]
