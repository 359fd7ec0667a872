"""`tf.function`: recorded once per signature, with eager's bits, and gone when it is dropped."""

import collections
import gc
import logging
import threading
import weakref

import numpy as np
import plimsoll as tf
import pytest
from conftest import in_use


def bits(*tensors):
    return [tensor.numpy().tobytes() for tensor in tensors]


def test_the_python_function_runs_once_per_signature():
    seen = []

    @tf.function
    def double(x, twice=False):
        seen.append((x.shape, twice))
        return x * 4.0 if twice else x * 2.0

    assert [float(double(tf.constant(n))) for n in (1.0, 2.0, 3.0)] == [2.0, 4.0, 6.0]
    assert double(tf.ones([3])).numpy().tolist() == [2.0] * 3
    assert double(np.ones(3, np.float32)).numpy().tolist() == [2.0] * 3
    assert float(double(tf.constant(1.0), twice=True)) == float(double(tf.constant(1.0), True)) == 4.0
    assert seen == [((), False), ((3,), False), ((), True)]
    assert double.experimental_get_tracing_count() == 3
    assert [row[3] for row in double.programs()] == [2, 2, 3]


def test_numbers_truth_values_and_texts_belong_to_the_signature():
    seen = []

    @tf.function
    def scale(x, by, how="mul"):
        seen.append(by)
        return x * float(by) if how == "mul" else x / float(by)

    x = tf.constant(6.0)
    results = [float(scale(x, by, how)) for by in (2, 2.0, True, 2) for how in ("mul", "div")]
    assert results == [12.0, 3.0, 12.0, 3.0, 6.0, 6.0, 12.0, 3.0]
    assert seen == [2, 2, 2.0, 2.0, True, True]


def test_a_decorator_with_arguments_and_the_attributes_of_the_function():
    @tf.function(autograph=False, jit_compile=True, reduce_retracing=True)
    def add(a, b=1.0):
        """Adds."""
        return a + b

    assert (add.__name__, add.__doc__) == ("add", "Adds.")
    assert float(add(tf.constant(1.0))) == float(add(a=tf.constant(1.0), b=1.0)) == 2.0
    assert add.experimental_get_tracing_count() == 1
    assert float(add.python_function(tf.constant(1.0))) == 2.0
    assert "add" in repr(add)


Pair = collections.namedtuple("Pair", "first second")


def test_structures_go_in_and_come_out():
    @tf.function
    def rearrange(pair, table, nothing=None):
        assert nothing is None and isinstance(pair, Pair)
        (a, b), c = pair, table["c"]
        return {"sum": a + b + c, "parts": [a, (b, None)], "pair": Pair(c, 1)}

    one, two, three = (tf.constant(float(n)) for n in (1, 2, 3))
    for _ in range(2):
        result = rearrange(Pair(one, two), {"c": three, "a": [2]})
        assert list(result) == ["sum", "parts", "pair"]
        assert float(result["sum"]) == 6.0
        assert float(result["parts"][0]) == 1.0 and result["parts"][1][1] is None
        assert isinstance(result["pair"], Pair) and int(result["pair"].second) == 1
        assert result["pair"].second.dtype == tf.int32
    assert rearrange.experimental_get_tracing_count() == 1
    assert tf.function(lambda: None)() is None
    with pytest.raises(TypeError, match="returns tensors"):
        tf.function(lambda: object())()


def test_a_captured_tensor_is_held_and_a_captured_variable_is_read_anew():
    v, c = tf.Variable(1.0), tf.constant(10.0)
    f = tf.function(lambda x: x * v + c)
    assert float(f(tf.constant(2.0))) == 12.0
    v.assign(3.0)
    assert float(f(tf.constant(2.0))) == 16.0


def test_a_variable_as_an_argument_is_that_variable():
    @tf.function
    def add_to(v, x):
        v.assign_add(x)
        return v * 1.0

    a, b, one = tf.Variable(1.0), tf.Variable(10.0), tf.constant(1.0)
    assert [float(add_to(v, one)) for v in (a, b, a, b)] == [2.0, 11.0, 3.0, 12.0]
    assert (float(a), float(b)) == (3.0, 12.0)
    assert add_to.experimental_get_tracing_count() == 2


def test_variables_are_made_at_the_first_trace_alone():
    class Counter:
        def __init__(self):
            self.n = None

        @tf.function
        def __call__(self, x):
            if self.n is None:
                self.n = tf.Variable(0.0)
            self.n.assign_add(x)
            return self.n.read_value()

    counter = Counter()
    assert [float(counter(tf.constant(2.0))) for _ in range(3)] == [2.0, 4.0, 6.0]
    assert float(counter.n) == 6.0

    @tf.function
    def another(x):
        return tf.Variable(x) * 2.0

    before = in_use()
    assert [float(another(tf.constant(n))) for n in (1.0, 1.0)] == [2.0, 2.0]
    assert len(another.variables) == 1
    made = []

    @tf.function
    def more_each_time(x):
        made.extend(tf.Variable(1.0) for _ in x.shape)
        return x

    more_each_time(tf.ones([1]))
    with pytest.raises(ValueError, match="variable is made inside it"):
        more_each_time(tf.ones([1, 1]))
    made.clear()
    del another, more_each_time
    assert in_use() == before


def test_a_training_step_has_eagers_bits():
    def make():
        tf.random.set_seed(3)
        return tf.Variable(tf.random.normal([8, 4])), tf.random.normal([16, 8]), tf.random.normal([16, 4])

    def step(w, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.nn.dropout(tf.tanh(x @ w), 0.5) - y))
        gradient = tape.gradient(loss, w)
        w.assign_sub(0.1 * gradient)
        return loss, gradient

    trained = []
    for run in (step, tf.function(step)):
        w, x, y = make()
        losses = [bits(*run(w, x, y)) for _ in range(5)]
        trained.append((losses, bits(w)))
    assert trained[0] == trained[1]


def test_under_a_tape_the_function_is_differentiated():
    w = tf.Variable(3.0)
    f = tf.function(lambda x: w * x * x)
    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    assert [float(g) for g in tape.gradient(y, [x, w])] == [12.0, 4.0]
    outer = tf.function(lambda x: f(x) + 1.0)
    assert float(outer(x)) == 13.0


@pytest.mark.parametrize(
    "read, advice",
    [
        (lambda x: x.numpy(), "return the tensor"),
        (lambda x: float(x), "return the tensor"),
        (lambda x: 1 if x > 0 else 2, "no AutoGraph: use tf.where"),
        (lambda x: np.asarray(x), "return the tensor"),
        (lambda x: [1, 2][tf.cast(x, tf.int32)], "x.shape has extents"),
    ],
)
def test_reading_a_value_inside_is_an_error_with_the_line_and_the_way_out(read, advice):
    line = read.__code__.co_firstlineno
    f = tf.function(lambda x: tf.constant(float(np.asarray(read(x)))))
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError) as caught:
        f(tf.constant(1.0))
    text = str(caught.value)
    assert f"{__file__}:{line}" in text and advice in text
    assert "run_functions_eagerly(True)" in text
    assert isinstance(caught.value, TypeError)
    tf.config.run_functions_eagerly(True)
    try:
        assert tf.config.functions_run_eagerly()
        assert float(f(tf.constant(1.0))) in (1.0, 2.0)
    finally:
        tf.config.run_functions_eagerly(False)


def test_inside_a_function_nothing_is_executed_and_printing_shows_shapes():
    seen = []

    @tf.function
    def look(x):
        seen.append((tf.executing_eagerly(), tf.inside_function(), str(x), repr(x)))
        return x

    assert tf.executing_eagerly()
    look(tf.ones([2]))
    assert seen[0][:2] == (False, True)
    assert "shape=(2,)" in seen[0][2] and "without values" in seen[0][3]
    constant = tf.function(lambda: tf.constant([1.0, 2.0]).numpy().sum().item())
    assert float(constant()) == 3.0


def test_extents_are_known_while_a_function_is_recorded():
    @tf.function
    def flat(x):
        n = tf.shape(x)[0]
        return tf.reshape(x, [n, -1]), tf.zeros(tf.shape(x)[1:]), tf.size(x)

    rows, zeros, size = flat(tf.ones([4, 2, 3]))
    assert (rows.shape, zeros.shape, int(size)) == ((4, 6), (2, 3), 24)


def test_loops_over_tensors_unroll_and_functions_call_each_other():
    @tf.function
    def add(x, n):
        for i in tf.range(n):
            x = x + tf.cast(i, tf.float32)
        return x if n == 0 else add(x, n - 1)

    assert float(add(tf.constant(0.0), 3)) == 4.0
    assert add.experimental_get_tracing_count() == 1
    total = tf.function(lambda *xs, **named: sum(xs) + named.get("k", 0.0))
    one = tf.constant(1.0)
    assert float(total(one, one)) == 2.0 and float(total(one, k=one * 4.0)) == 5.0


def test_input_signature_converts_and_refuses():
    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([], tf.float32)])
    def f(x, by):
        return tf.reduce_sum(x) * by

    assert float(f([[1.0, 2.0]], 2)) == 6.0
    assert float(f(tf.ones([3, 2]), 2.0)) == 12.0
    assert f.experimental_get_tracing_count() == 2
    f(tf.ones([3, 2]), 5.0)
    assert f.experimental_get_tracing_count() == 2
    with pytest.raises(TypeError, match=r"TensorSpec\(shape=\(None, 2\)"):
        f(tf.ones([3, 3]), 2.0)
    with pytest.raises(TypeError):
        f(tf.ones([3, 2]))


def test_a_concrete_function_is_recorded_beforehand():
    seen = []

    @tf.function
    def f(x, twice):
        seen.append(1)
        return x * (2.0 if twice else 1.0)

    concrete = f.get_concrete_function(tf.TensorSpec([2], tf.float32), True)
    assert len(seen) == 1
    assert concrete(tf.ones([2])).numpy().tolist() == [2.0, 2.0]
    assert concrete(tf.ones([2]), True).numpy().tolist() == [2.0, 2.0]
    assert len(seen) == 1
    with pytest.raises(TypeError, match="TensorSpec"):
        concrete(tf.ones([3]))
    with pytest.raises(ValueError, match="fixed shapes"):
        f.get_concrete_function(tf.TensorSpec([None], tf.float32), True)
    assert concrete.structured_input_signature == ((tf.TensorSpec([2]), True), {})


def test_methods_have_programs_for_each_instance_and_do_not_keep_it():
    class Scale:
        def __init__(self, by):
            self.by = tf.Variable(tf.fill([1000], by))
            self.n = 0

        @tf.function
        def __call__(self, x):
            self.n += 1
            return x * self.by

    before = in_use()
    two, three = Scale(2.0), Scale(3.0)
    x = tf.constant(1.0)
    for _ in range(2):
        assert float(two(x)[0]) == 2.0 and float(three(x)[0]) == 3.0
    assert (two.n, three.n) == (1, 1)
    reference = weakref.ref(two)
    del two
    assert reference() is None  # without the collector
    call = three.__call__
    del three
    assert float(call(x)[0]) == 3.0
    del call, x
    assert in_use() == before and not Scale.__dict__["__call__"]._instances

    class Slotted:
        __slots__ = ()

        @tf.function
        def f(self):
            return 1

    with pytest.raises(TypeError, match="__weakref__"):
        Slotted().f()


@pytest.mark.valgrind
def test_dropping_the_function_frees_graph_and_variables():
    before = in_use()

    @tf.function
    def model(x):
        w = tf.Variable(tf.random.normal([10, 100]))
        return x @ w + tf.constant(np.ones(100, np.float32))

    x = tf.random.normal([1, 10])
    first = bits(model(x))
    rows = tf.stats()["rows"]
    assert rows["parameters"] >= 4000 and rows["graph"] >= 400
    tf._core.clear_session()
    assert model.programs() == [] and tf.stats()["rows"]["graph"] == 0
    assert bits(model(x)) == first and len(model.variables) == 1
    del model, x
    assert in_use() == before


def test_a_cycle_through_a_function_is_collected():
    class Model:
        def __init__(self):
            self.w = tf.Variable(tf.ones([1000]))
            self.f = tf.function(lambda x: x * self.w)

    before = in_use()
    model = Model()
    model.f(tf.constant(2.0))
    del model
    gc.collect()
    assert in_use() == before


def test_the_cache_is_bounded(caplog):
    f = tf.function(lambda x, n: tf.concat([x] * 50, 0) * float(n))
    x = tf.ones([1])
    with caplog.at_level(logging.WARNING, "plimsoll"):
        for n in range(300):
            f(x, n)
    assert sum(row[1] for row in f.programs()) <= 64 << 20
    [warning] = [record.getMessage() for record in caplog.records]
    assert "argument 1 differs each time: 3, then 4" in warning
    f.clear_programs()
    assert f.programs() == []


@pytest.mark.valgrind
def test_an_exception_while_recording_is_raised_and_leaves_nothing():
    class Special(Exception):
        pass

    is_broken = True

    @tf.function
    def f(x):
        with tf.GradientTape():
            y = x * 2.0
            if is_broken:
                raise Special("on purpose")
        return y

    before = in_use()
    x = tf.ones([10])
    for _ in range(2):
        with pytest.raises(Special):
            f(x)
    assert tf.executing_eagerly() and not tf._core.is_recording()
    is_broken = False
    assert f(x).numpy().tolist() == [2.0] * 10
    del x, f
    assert in_use() == before

    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tf.function(interrupted)(tf.ones([1]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="matmul"):
        tf.function(lambda x: x @ x)(tf.ones([2, 3]))


@pytest.mark.valgrind
def test_threads_share_a_function():
    f = tf.function(lambda x: tf.reduce_sum(x * 2.0))
    results = {}

    def work(n):
        results[n] = [float(f(tf.fill([n + 1], 1.0))) for _ in range(50)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [2.0 * (n + 1)] * 50 for n in range(4)}


def test_a_call_is_planned_to_the_byte_and_kept_under_a_limit():
    w = [tf.Variable(tf.random.normal([256, 256]) * 0.05) for _ in range(8)]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            h = x
            for v in w:
                h = tf.tanh(h @ v)
            loss = tf.reduce_mean(tf.square(h))
        return [loss, *tape.gradient(loss, w)]

    x = tf.random.normal([2048, 256])
    plan = step.plan(x)
    assert plan.peak == sum(plan.rows.values()) and "least limit" in str(plan)
    assert plan.peak == step.plan(tf.TensorSpec([2048, 256])).peak - x.numpy().nbytes
    tf.reset_peaks()
    free = bits(*step(x))
    assert tf.stats()["peak_in_use"] == plan.peak
    assert plan.least_limit < 0.8 * plan.committed
    tf.trim()
    with tf.limit(plan.least_limit):
        assert bits(*step(x)) == free
        assert tf.stats()["peak_committed"] <= plan.committed
    with pytest.raises(tf.errors.ResourceExhaustedError), tf.limit(plan.least_limit // 2):
        step(x)
