"""Exits, forks and threads: no crash, no hang. Each program runs in a process of its own."""

import signal
import subprocess
import sys
import textwrap

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
