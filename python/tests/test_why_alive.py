"""Why memory is alive: rows that add up, who has a tensor in Python, cycles, and leaks named by their line."""

import functools
import gc
import inspect

import plimsoll as tf
import pytest
from conftest import in_use


def line():
    return inspect.currentframe().f_back.f_lineno


@pytest.fixture
def no_collection():
    """Cycles stay until somebody asks for a collection."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def row_of(made):
    """The row of the blocks that a line of this file made: its bytes and who holds them."""
    rows = [row for row in tf.why_alive().rows if (row[3], row[4]) == (__file__, made)]
    assert len(rows) == 1, rows
    return rows[0][1], rows[0][7]


class Node:
    """Something of a user's that has a tensor."""


KEPT = []


def test_rows_add_up_and_say_what_it_costs():
    v = tf.Variable(tf.ones([1000]), name="w")
    with tf.GradientTape() as tape:
        y = tf.exp(tf.sin(v)); made = line()  # fmt: skip
    why = tf.why_alive()
    assert why.in_use == sum(row[1] for row in why.rows) == tf.stats()["in_use"]
    assert sum(row[2] for row in why.rows) >= 2
    assert f"{why.in_use:,}" in str(why) and str(why) == repr(why)
    rendered = why._repr_html_()
    assert rendered.startswith("<pre>") and f"{__file__}:{made}" in rendered
    saved = [row for row in why.rows if row[0] == "saved" and row[4] == made]
    assert saved and saved[0][8] > 0 and saved[0][9] is None  # milliseconds to recompute
    parameters = [row for row in why.rows if row[0] == "parameters"]
    assert any("which only a checkpoint has" in row[9] for row in parameters)
    assert any("variable w" in name and bytes >= 4096 for name, bytes in why.holders)
    assert why.freed_by(tape) == 0  # y is still there
    assert why.freed_by(y) == why.freed_by([y], {"tape": tape}) == 4096
    assert why.freed_by(v, y, tape) == 8192
    before = tf.stats()["in_use"]
    del y
    assert before - tf.stats()["in_use"] == 4096
    with pytest.raises(TypeError, match="a tf.function, not int"):
        why.freed_by(3)


def test_a_function_is_a_holder_of_what_it_has_captured():
    f = tf.function(functools.partial(lambda c, x: x + c, tf.ones([1000])))
    f(tf.ones([1000]))
    why = tf.why_alive()
    assert why.freed_by(f) >= 0
    assert any("program" in row[7] for row in why.rows), why


def test_variables_of_modules_and_objects_are_named():
    KEPT.append(tf.ones([1000])); in_list = line()  # fmt: skip
    node = Node()
    node.x = tf.ones([1000]); in_object = line()  # fmt: skip
    KEPT.append(node)
    try:
        assert row_of(in_list) == (4096, f"handles in your code (a list of 2, KEPT of {__name__})")
        assert row_of(in_object) == (4096, f"handles in your code (Node.x, a list of 2, KEPT of {__name__})")
        # Looking has not changed what there is to see.
        assert row_of(in_object) == (4096, f"handles in your code (Node.x, a list of 2, KEPT of {__name__})")
    finally:
        KEPT.clear()


def test_locals_closures_generators_and_slots_are_told_apart():
    local = tf.ones([1000]); of_local = line()  # fmt: skip

    def closure():
        return inside

    inside = tf.ones([1000]); of_closure = line()  # fmt: skip
    first = closure.__code__.co_firstlineno

    def generator():
        x = tf.ones([1000])
        yield x.shape

    running = generator()
    next(running)
    of_generator = generator.__code__.co_firstlineno + 1

    class Slotted:
        __slots__ = ("x",)

    slotted = Slotted()
    slotted.x = tf.ones([1000]); of_slot = line()  # fmt: skip
    assert "a running function or native code" in row_of(of_local)[1]
    assert f"closure ({__file__}:{first})" in row_of(of_closure)[1] or "running function" in row_of(of_closure)[1]
    assert f"generator ({__file__}:{of_generator - 1})" in row_of(of_generator)[1].replace(f"{inspect.currentframe().f_code.co_qualname}.<locals>.", "")
    assert "a Slotted" in row_of(of_slot)[1]
    assert local.shape == (1000,)


def test_what_a_traceback_holds_is_named_by_its_function():
    def fails():
        x = tf.ones([1000])
        raise ValueError(x.shape)

    try:
        fails()
    except ValueError as error:
        KEPT.append(error)
    try:
        bytes, held = row_of(fails.__code__.co_firstlineno + 1)
        assert bytes == 4096 and "the frame of" in held and f"({__file__}:{fails.__code__.co_firstlineno})" in held
    finally:
        KEPT.clear()


CYCLES = {
    "an object that knows itself": "Node.x, in a cycle that gc.collect() frees: Node.me",
    "two objects": "Node.x, in a cycle that gc.collect() frees: Node.other -> Node.other",
    "a list in itself": "a list of 2, in a cycle that gc.collect() frees: a list of 2",
    "a tensor beside a cycle": "a dict of 1, Node.table, in a cycle that gc.collect() frees: Node.me",
}


def make_cycle(kind):
    if kind == "a list in itself":
        held = [tf.ones([1000])]; made = line()  # fmt: skip
        held.append(held)
        return made
    node = Node()
    if kind == "a tensor beside a cycle":
        node.table = {"x": tf.ones([1000])}; made = line()  # fmt: skip
    else:
        node.x = tf.ones([1000]); made = line()  # fmt: skip
    if kind == "two objects":
        node.other = Node()
        node.other.other = node
    else:
        node.me = node
    return made


@pytest.mark.parametrize("kind", CYCLES)
def test_cycles_are_named_with_their_line_and_go_with_a_collection(kind, no_collection):
    before = in_use()
    made = make_cycle(kind)
    assert row_of(made) == (4096, f"handles in your code ({CYCLES[kind]})")
    assert in_use() == before + 4000
    gc.collect()
    assert in_use() == before


def test_cycles_through_closures_tapes_and_functions_go_with_a_collection(no_collection):
    before = in_use()

    def closure():
        x = tf.ones([1000])

        def recursive(n):
            return x if n == 0 else recursive(n - 1)

        return recursive.__code__.co_firstlineno - 2

    made = closure()
    held = row_of(made)[1]
    assert "in a cycle that gc.collect() frees" in held and "recursive" in held

    @tf.custom_gradient
    def own(x):
        def backward(dy):
            return dy * x

        return x * x, backward

    def tape_in_a_cycle():
        v = tf.Variable(tf.ones([1000]))
        with tf.GradientTape() as tape:
            y = own(v)
        tape.me, tape.y = tape, y

    def function_in_a_cycle():
        x = tf.ones([1000])
        f = tf.function(lambda y: x + y)
        f(x)
        f.me = f

    tape_in_a_cycle()
    function_in_a_cycle()
    assert in_use() > before + 3 * 4000
    text = str(tf.why_alive())
    assert text.count("in a cycle that gc.collect() frees") >= 3, text
    gc.collect()
    assert in_use() == before


class Batches(tf.keras.callbacks.Callback):
    """A callback that keeps something of every batch."""

    def __init__(self, mark):
        self.kept, self.mark = [], mark

    def on_train_batch_end(self, batch, logs=None):
        self.kept.append(tf.ones([10]))
        self.mark()


def leaks():
    """Loops that leave something behind at each step: a name, and a function that is given what marks a step."""
    v = tf.Variable(tf.ones([64]))

    def losses(mark):
        kept = []
        for _ in range(16):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(v * v)
            tape.gradient(loss, v)
            kept.append(loss)
            mark()
        return kept, losses.__code__.co_firstlineno + 4

    def tapes(mark):
        kept = []
        for _ in range(16):
            with tf.GradientTape(persistent=True) as tape:
                y = tf.sin(v) * 2.0
                z = tf.exp(y)
            kept.append((tape, z))
            mark()
        return kept, tapes.__code__.co_firstlineno + 5

    def cycles(mark):
        for _ in range(16):
            node = Node()
            node.me, node.x = node, tf.ones([100])
            mark()
        return None, cycles.__code__.co_firstlineno + 3

    def closures(mark):
        kept = []
        for _ in range(16):
            x = tf.random.normal([50])
            kept.append(lambda x=x: x)
            mark()
        return kept, closures.__code__.co_firstlineno + 3

    def batches(mark):
        kept = []
        for batch in tf.data.Dataset.range(64).batch(4).map(lambda x: tf.cast(x, tf.float32) + 1.0):
            kept.append({"batch": batch})
            mark()
        return kept, batches.__code__.co_firstlineno + 2

    def callback(mark):
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
        model.compile("sgd", "mse")
        watch = Batches(mark)
        model.fit(tf.ones([64, 2]), tf.ones([64, 1]), batch_size=4, verbose=0, callbacks=[watch])
        return watch, Batches.on_train_batch_end.__code__.co_firstlineno + 1

    def generators(mark):
        kept = []

        def one():
            x = tf.zeros([33])
            yield x

        for _ in range(16):
            kept.append(one())
            next(kept[-1])
            mark()
        return kept, one.__code__.co_firstlineno + 1

    def variables(mark):
        kept = {}
        for n in range(16):
            kept[n] = tf.Variable(tf.ones([20]))
            mark()
        return kept, variables.__code__.co_firstlineno + 3

    return [losses, tapes, cycles, closures, batches, callback, generators, variables]


@pytest.mark.parametrize("place", range(8))
def test_leaks_are_named_with_their_line(place, no_collection, tmp_path):
    leak = leaks()[place]
    watch = tf.GrowthWatch()
    assert str(watch) == "nothing grows from step to step" and watch.rows == []
    kept, made = leak(watch.mark)
    assert {(row[3], row[4]) for row in watch.rows} == {(__file__, made)}, str(watch)
    assert f"{__file__}:{made}" in str(watch) and "a step" in watch._repr_html_()
    held = [row[7] for row in tf.why_alive().rows if (row[3], row[4]) == (__file__, made)]
    assert held and all(held), held
    del kept
    gc.collect()


def test_a_loop_that_leaves_nothing_behind_does_not_grow():
    watch = tf.GrowthWatch()
    v = tf.Variable(tf.ones([64]))
    for _ in range(30):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v * v)
        v.assign_sub(tape.gradient(loss, v) * 0.01)
        del tape, loss
        watch.mark()
    assert watch.rows == []
