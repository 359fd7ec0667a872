"""What is written from the registry and the tables of names is what would be written now."""

import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parents[1]


def test_stubs_and_examples_are_current():
    """Of a package that was just imported: what tests have done to it is in no stub."""
    done = subprocess.run([sys.executable, HERE / "write_stubs.py", "--check"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


PROGRAM = """
import numpy as np
import plimsoll as tf
from plimsoll import keras

x = tf.ones([3, 4])
reveal_type(tf.reduce_sum(x @ tf.transpose(x), axis=1) + 2.0)
reveal_type(x.shape)
reveal_type(tf.why_alive().freed_by(x))
with tf.GradientTape(persistent=True) as tape, tf.limit("1GiB"):
    y = tf.math.exp(tf.Variable([1.0]))
reveal_type(tape)
reveal_type(keras.Sequential([keras.layers.Dense(3)]).fit(np.ones(3), np.ones(3)))
tf.nothing_like_it
tf.nn.relu()
"""


def test_a_type_checker_knows_the_package(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), "program.py"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300).stdout
    revealed = [line.rpartition('"')[0].rpartition('"')[2] for line in found.splitlines() if "Revealed type" in line]
    assert revealed == [
        "plimsoll._core.Tensor", "plimsoll.tensor.TensorShape", "int", "plimsoll.tape.GradientTape", "plimsoll.keras.callbacks.History",
    ]  # fmt: skip
    assert 'Module has no attribute "nothing_like_it"' in found and 'Missing positional argument "x" in call to "relu"' in found
    assert "Found 2 errors" in found
