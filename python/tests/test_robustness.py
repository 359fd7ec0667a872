"""Exits, forks, threads, exceptions and signals: no crash, no hang, no leak. What may end a process runs in one of its own."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import plimsoll as tf
import pytest


def run(program, **options):
    """Runs a program of Python; returns its status, output and errors. A hang is a failure."""
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    return done.returncode, done.stdout.strip(), done.stderr


@pytest.mark.parametrize(
    "program",
    [
        "x = tf.ones([1000])",
        "v = tf.Variable(tf.ones([1000])); tape = tf.GradientTape(); tape.__enter__(); y = v * v",
        "ds = tf.data.Dataset.range(10_000).repeat().batch(64).prefetch(4); it = iter(ds); x = next(it)",
        "f = tf.function(lambda x: x * 2.0); f(tf.ones([3])); f.me = f",
        "tf.compat.v1.disable_eager_execution(); x = tf.Variable(1.0); s = tf.compat.v1.Session(); "
        "s.run(tf.compat.v1.global_variables_initializer())",
        "g = tf.Graph().as_default(); g.__enter__(); x = tf.constant(1.0)",
        "limit = tf.limit('16MiB'); x = tf.ones([10]); device = tf.device('/CPU:0'); device.__enter__()",
        "import threading; threading.Thread(target=lambda: [tf.ones([100]) for _ in range(10_000)], daemon=True).start()",
        "import numpy as np\ndef g():\n    while True: yield np.ones(3)\nit = iter(tf.data.Dataset.from_generator(g, tf.float32)); next(it)",
        "class C: pass\nc = C(); c.x = tf.ones([10]); c.me = c",
    ],
)
def test_the_interpreter_exits_with_whatever_is_alive(program):
    status, printed, errors = run(f"import plimsoll as tf\n{program}\nprint('end')")
    assert (status, printed) == (0, "end"), errors


def test_an_import_opens_no_device_and_starts_no_thread():
    program = """
        import os, sys
        before = len(os.listdir("/proc/self/task"))
        import numpy
        with_numpy = len(os.listdir("/proc/self/task"))
        import plimsoll
        assert len(os.listdir("/proc/self/task")) == with_numpy
        assert not any("cuda" in line for line in open("/proc/self/maps"))
    """
    assert run(program)[0] == 0


def test_a_fork_after_the_first_tensor_is_refused_in_the_child():
    program = """
        import os
        import plimsoll as tf
        if {is_used}:
            tf.ones([1000]) + 1.0
        pid = os.fork()
        if pid == 0:
            try:
                tf.ones([1000]) + 1.0
                os._exit(7)
            except RuntimeError as error:
                os._exit(8 if "spawn" in str(error) else 9)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(float((tf.ones([3]) + 1.0)[0]))
    """
    assert run(program.format(is_used=True))[1].split() == ["8", "2.0"]
    assert run(program.format(is_used=False))[1].split() == ["7", "2.0"]


def test_ctrl_c_ends_a_loop_of_steps():
    program = """
        import os, signal, threading
        import plimsoll as tf
        w = tf.Variable(tf.ones([64, 64]))
        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(x @ w))
            w.assign_sub(0.01 * tape.gradient(loss, w))
            return loss
        x, n = tf.ones([64, 64]), 0
        try:
            while True:
                step(x)
                n += 1
                if n == 100:
                    os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            print("stopped", n, float(step(x)) >= 0.0)
    """
    status, printed, errors = run(program)
    assert (status, printed) == (0, "stopped 100 True"), errors


def test_an_interrupt_that_nobody_catches_ends_the_program():
    program = """
        import os, signal
        import plimsoll as tf
        for batch in tf.data.Dataset.range(1000).repeat().batch(8).prefetch(2):
            os.kill(os.getpid(), signal.SIGINT)
    """
    status, _, errors = run(program)
    assert status == -signal.SIGINT or "KeyboardInterrupt" in errors


def test_scopes_left_out_of_order_and_by_generators():
    program = """
        import plimsoll as tf
        def scopes():
            with tf.GradientTape() as tape, tf.device("/CPU:0"):
                yield tape
        one, other = scopes(), scopes()
        first, second = next(one), next(other)
        v = tf.Variable(2.0)
        y = v * v
        one.close()
        z = v * 3.0
        other.close()
        print(float(first.gradient(y, v)), float(second.gradient(z, v)), tf._core.is_recording())
    """
    assert run(program)[1] == "4.0 3.0 False"


def test_ctrl_c_during_evaluate_and_predict_leaves_a_model_that_goes_on():
    program = """
        import os, signal, threading, time
        import numpy as np
        import plimsoll as tf
        layers = tf.keras.layers
        model = tf.keras.Sequential([layers.Dense(64, activation="relu", input_shape=(32,)), layers.Dense(1)])
        model.compile("sgd", "mse")
        x, y = np.zeros((200_000, 32), np.float32), np.zeros((200_000, 1), np.float32)
        for run in (lambda: model.fit(x, y, epochs=1000, verbose=0), lambda: model.evaluate(x, y, verbose=0, batch_size=2),
                    lambda: model.predict(x, verbose=0, batch_size=2)):
            timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            try:
                while True:
                    run()
            except KeyboardInterrupt:
                print("stopped", end=" ")
            timer.join()
        print(model.predict(x[:3], verbose=0).shape)
    """
    status, printed, errors = run(program)
    assert (status, printed) == (0, "stopped stopped stopped (3, 1)"), errors


def test_a_worker_of_a_data_loader_that_was_forked_is_refused_and_the_parent_goes_on():
    program = """
        import multiprocessing
        import plimsoll as tf

        def load(n):
            return float(tf.ones([n])[0])

        tf.ones([3]) + 1.0
        with multiprocessing.get_context("fork").Pool(2) as pool:
            try:
                pool.map(load, [1, 2, 3])
            except RuntimeError as error:
                print("refused" if "spawn" in str(error) else error)
        print(float(tf.reduce_sum(tf.ones([3]))))
    """
    status, printed, errors = run(program)
    assert (status, printed) == (0, "refused\n3.0"), errors


def test_a_process_may_end_while_other_threads_train():
    program = """
        import threading, time
        import numpy as np
        import plimsoll as tf
        model = tf.keras.Sequential([tf.keras.layers.Dense(8, input_shape=(8,))])
        model.compile("sgd", "mse")
        x = np.zeros((64, 8), np.float32)
        for target in (lambda: model.fit(x, x, epochs=100_000, verbose=0), lambda: [tf.matmul(x, x.T) for _ in iter(int, 1)]):
            threading.Thread(target=target, daemon=True).start()
        time.sleep(0.3)
        print("end")
    """
    status, printed, errors = run(program)
    assert (status, printed) == (0, "end"), errors


# What follows runs in this process: nothing may be left behind, which the fixture of all tests asserts.


class Special(Exception):
    """Raised by a test's own code."""


class Fails(tf.keras.layers.Layer):
    """A layer whose call raises when it is told to."""

    wants_to = False

    def __init__(self):
        super().__init__()
        self.inner = tf.keras.layers.Dense(3)

    def call(self, x):
        y = self.inner(x)
        if self.wants_to:
            raise Special("in the layer")
        return y


@pytest.mark.valgrind
@pytest.mark.parametrize("is_eager", [False, True])
def test_what_a_layer_of_ones_own_raises_comes_out_of_fit_and_leaves_the_model_as_it_was(is_eager):
    layer = Fails()
    model = tf.keras.Sequential([layer, tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=is_eager)
    x, y = np.ones((8, 4), np.float32), np.ones((8, 1), np.float32)
    model.fit(x, y, batch_size=4, verbose=0)
    before = [weight.tobytes() for weight in model.get_weights()]
    layer.wants_to = True
    with pytest.raises(Special, match="in the layer"):
        model.fit(x[:6], y[:6], batch_size=3, verbose=0)
    assert [weight.tobytes() for weight in model.get_weights()] == before
    layer.wants_to = False
    model.fit(x[:6], y[:6], batch_size=3, verbose=0)
    assert [weight.tobytes() for weight in model.get_weights()] != before


@pytest.mark.valgrind
@pytest.mark.parametrize("of", ["loss", "metric"])
def test_what_a_loss_or_metric_of_ones_own_raises_comes_out(of):
    def fails(y_true, y_pred):
        raise Special(f"in the {of}")

    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
    model.compile("sgd", **({"loss": fails} if of == "loss" else {"loss": "mse", "metrics": [fails]}))
    with pytest.raises(Special, match=f"in the {of}"):
        model.fit(np.ones((8, 4), np.float32), np.ones((8, 1), np.float32), verbose=0)
    assert not tf._core.is_recording() and tf.executing_eagerly()


@pytest.mark.valgrind
@pytest.mark.parametrize("where", ["batch", "epoch"])
def test_what_a_callback_raises_leaves_nothing(where):
    class Raises(tf.keras.callbacks.Callback):
        def fail(self, *_):
            self.kept = tf.ones([100])
            raise Special

    setattr(Raises, f"on_{'train_batch' if where == 'batch' else 'epoch'}_end", Raises.fail)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
    model.compile("sgd", "mse")
    with pytest.raises(Special):
        model.fit(np.ones((8, 4), np.float32), np.ones((8, 1), np.float32), verbose=0, callbacks=[Raises()])


@pytest.mark.valgrind
def test_pipelines_that_are_not_finished_end_with_their_iterators():
    before = len(os.listdir("/proc/self/task"))
    for _ in range(5):
        native = iter(tf.data.Dataset.range(1000).batch(4).prefetch(2))
        mapped = iter(tf.data.Dataset.range(1000).map(lambda x: x * 2))
        next(native), next(mapped)
        del native, mapped
    assert len(os.listdir("/proc/self/task")) <= before + 2  # the workers of ops, which stay


@pytest.mark.valgrind
def test_scopes_end_in_any_order_on_the_thread_that_entered_them():
    first, second = tf.GradientTape(persistent=True), tf.GradientTape(persistent=True)
    outer, inner = tf.limit("64MiB"), tf.device("/CPU:0")
    v = tf.Variable(3.0)
    for scope in (first, outer, second, inner):
        scope.__enter__()
    y = v * v
    for scope in (first, inner, second, outer):
        scope.__exit__(None, None, None)
    assert float(first.gradient(y, v)) == float(second.gradient(y, v)) == 6.0
    assert not tf._core.is_recording() and tf.stats()["limit"] is None
    elsewhere = tf.GradientTape()
    elsewhere.__enter__()
    caught = []

    def leave():
        try:
            elsewhere.__exit__(None, None, None)
        except tf.errors.TapeError as error:
            caught.append(str(error))

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert len(caught) == 1 and "the thread that it began on" in caught[0]
    assert tf._core.is_recording()
    elsewhere.__exit__(None, None, None)
    assert not tf._core.is_recording()


@pytest.mark.valgrind
def test_threads_that_train_models_of_their_own_have_the_bits_of_one_thread():
    def train(seed, into):
        w = tf.Variable(np.random.default_rng(seed).normal(size=(16, 16)).astype(np.float32))
        x = tf.constant(np.random.default_rng(seed + 100).normal(size=(8, 16)).astype(np.float32))
        step = tf.function(lambda x: tf.reduce_mean(tf.square(tf.tanh(x @ w))))
        for n in range(10):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.tanh(x @ w)))
            w.assign_sub(0.1 * tape.gradient(loss, w))
            if n % 3 == 0:
                step(x)
        into[seed] = w.numpy().tobytes()

    alone, together = {}, {}
    for seed in range(4):
        train(seed, alone)
    threads = [threading.Thread(target=train, args=(seed, together)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert alone == together


@pytest.mark.valgrind
def test_exceptions_in_generators_of_tapes_leave_none_open():
    def recorded():
        v = tf.Variable(2.0)
        with tf.GradientTape() as tape:
            yield v * v
            yield tape

    for _ in range(3):
        running = recorded()
        next(running)
        with pytest.raises(Special):
            running.throw(Special)
    assert not tf._core.is_recording()
    unfinished = recorded()
    next(unfinished)
    del unfinished
    assert not tf._core.is_recording()
