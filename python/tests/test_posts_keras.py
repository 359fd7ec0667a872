"""The posts' programs that need Keras, unchanged but for the import line, with the figures that must be true of them."""

import os
import subprocess
import sys
import time

import numpy as np
import plimsoll as tf
import pytest
from conftest import in_use, run_post
from plimsoll import keras
from plimsoll.keras import layers


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch):
    """The posts sleep so that one can look at another program; what they wait for has happened before."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def test_001_2_memory_is_a_fixed_part_and_one_for_each_example(monkeypatch):
    after_forward, fixed, losses = [], [], []
    original = tf.GradientTape.gradient
    start = []

    def normal(shape, *arguments, _draw=tf.random.normal):
        # A batch begins with its inputs.
        if tuple(shape)[1:] == (784,):
            start[:] = [in_use()]
        return _draw(shape, *arguments)

    def gradient(self, loss, variables):
        after_forward.append(in_use() - start[0])
        losses.append(float(loss))
        gradients = original(self, loss, variables)
        fixed.append(sum(g.numpy().nbytes for g in gradients))
        return gradients

    monkeypatch.setattr(tf.random, "normal", normal)
    monkeypatch.setattr(tf.GradientTape, "gradient", gradient)
    names = run_post("post_001_2")
    assert names["optimizer"].iterations == 3 and np.isfinite(losses).all()
    rows = tf.stats()["rows"]
    control = 8 * 8  # the optimizer's learning rate, step number and the like
    assert rows["parameters"] + rows["optimizer"] - control + fixed[-1] == 13_025_440
    # The program holds what it predicted for the batch before, and its inputs: 40 and 3,176 bytes for each example.
    held = [0, 32 * 3176 + 32 * 40, 128 * 3176 + 128 * 40]
    needs = [found + before for found, before in zip(after_forward, held)]
    per_example = (needs[2] - needs[1]) / (512 - 128)
    assert per_example in (7312, 7316), (per_example, after_forward)


def test_003_1_fifty_epochs_of_a_keras_model_are_flat():
    model = keras.Sequential([layers.Dense(16, activation="tanh", input_shape=(8,)), layers.Dense(1)])
    in_use_after = []

    class Watched(keras.optimizers.Adam):
        def apply_gradients(self, pairs):
            super().apply_gradients(pairs)
            in_use_after.append(in_use())

    batches = [{"inputs": tf.random.normal([64, 8]), "labels": tf.random.normal([64, 1])} for _ in range(4)]
    mse = keras.losses.MeanSquaredError()
    run_post("post_003_1", num_epochs=50, dataset=batches, model=model, optimizer=Watched(),
             loss_function=lambda predictions, labels: mse(labels, predictions))  # fmt: skip
    assert len(in_use_after) == 200
    # The first step has no gradients of a step before it.
    assert len(set(in_use_after[1:])) == 1


def test_003_3_mixed_precision_halves_activations_and_keeps_masters():
    def saved(model, batch):
        return model._native.saved_bytes(batch)[1]

    def pictures():
        return keras.Sequential([
            layers.Conv2D(16, 3, padding="same", activation="relu", input_shape=(32, 32, 3)),
            layers.Conv2D(16, 3, padding="same", activation="relu"), layers.Flatten(), layers.Dense(10)])  # fmt: skip

    def post_001_2():
        return keras.Sequential([layers.Dense(1024, activation="relu", input_shape=(784,)), layers.Dense(10)])

    full = [saved(pictures(), 32), post_001_2()]
    try:
        names = run_post("post_003_3")
        assert names["mixed_precision"].compute_dtype == "float16"
        mixed = [saved(pictures(), 32), post_001_2()]
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert mixed[0] <= 0.55 * full[0]
    # Where activations do not dominate: masters, copies, two moments, gradients and what a batch of 128 keeps.
    needs = []
    for model in (full[1], mixed[1]):
        parameters = sum(_bytes(w) for w in model.weights)
        gradients = sum(w.numpy().nbytes for w in model.weights)
        moments = 2 * 4 * model.count_params()
        needs.append(parameters + gradients + moments + saved(model, 128))
    assert needs == [13_951_136, 13_488_288]  # 0.97


def _bytes(weight):
    master = tf._core.keras.master(weight).numpy().nbytes
    own = weight.numpy().nbytes
    return own if weight.dtype == tf.float32 else own + master


IN_A_PROCESS_OF_ITS_OWN = """
import gc, resource, sys, time
sys.path.insert(0, {tests!r})
time.sleep = lambda seconds: None
import plimsoll as tf
from conftest import run_post

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

gc.disable()
create_and_dispose = run_post("post_004_1")["create_and_dispose"]
held = [(tf.stats()["in_use"], tf.stats()["committed"])]
for _ in range(9):
    create_and_dispose()
before = resident()
for _ in range(190):
    create_and_dispose()
    held.append((tf.stats()["in_use"], tf.stats()["committed"]))
print(set(held), resident() - before <= 1 << 20)
"""


def test_004_1_a_model_is_gone_when_the_function_returns():
    """Nothing is in use, and nothing is kept from the system, without a call to trim; 200 models grow the process by at most
    1 MiB."""
    program = IN_A_PROCESS_OF_ITS_OWN.format(tests=os.path.dirname(__file__))
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.splitlines()
    assert found == ["Model disposed..."] * 200 + ["{(0, 0)} True"]


def test_004_2_a_function_that_is_dropped_leaves_nothing(monkeypatch, capsys):
    """Graph and variables are gone when `del` returns, before the session is cleared."""
    at_sleep = []
    monkeypatch.setattr(time, "sleep", lambda seconds: at_sleep.append((in_use(), tf.stats()["rows"]["parameters"])))
    before = in_use()
    run_post("post_004_2")
    # Only x, which the program still holds.
    assert at_sleep == [(before + 40, 0)] * 2
    assert capsys.readouterr().out.splitlines() == ["Function disposed...", "Session cleared..."]
    assert in_use() == before


def test_clearing_the_session_drops_programs_and_functions_go_on():
    @tf.function
    def twice(x):
        return 2.0 * x

    assert float(twice(tf.constant(3.0))) == 6.0 and len(twice.programs()) == 1
    keras.backend.clear_session()
    assert len(twice.programs()) == 0
    assert float(twice(tf.constant(3.0))) == 6.0


def test_004_3_trains_on_raw_logits_as_keras_does_and_gives_all_back(monkeypatch, capsys):
    losses = []
    original = tf.GradientTape.gradient

    def gradient(self, loss, variables):
        losses.append(float(loss))
        return original(self, loss, variables)

    monkeypatch.setattr(tf.GradientTape, "gradient", gradient)
    before = in_use()
    names = run_post("post_004_3")
    assert capsys.readouterr().out.endswith("Training Complete within scope\n")
    # Logits are divided by their sum and clipped at 1e-7, so no loss is above -ln(1e-7).
    assert len(losses) == 5 and all(0.0 <= loss <= 16.2 for loss in losses)
    del names["data"]
    assert in_use() == before


def test_predictions_that_are_no_probabilities_are_clipped():
    said = tf.constant([[2.0, -1.0, 3.0]])
    loss = keras.losses.CategoricalCrossentropy()(tf.constant([[0.0, 1.0, 0.0]]), said)
    assert float(loss) == pytest.approx(-np.log(1e-7), rel=1e-5)
    loss = keras.losses.CategoricalCrossentropy()(tf.constant([[0.0, 0.0, 1.0]]), said)
    assert float(loss) == pytest.approx(-np.log(0.75), rel=1e-5)
