"""Models that are trained from the same weights as TensorFlow's: the losses of 50 steps. How far apart they may be is measured by
TensorFlow itself: three times the greatest difference of its own float32 and float64 runs."""

import json
import pathlib
import sys

import numpy as np
import plimsoll as tf
import pytest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "record"))

import networks  # noqa: E402

RECORDED = json.loads((HERE / "recorded" / "tensorflow.json").read_text())["losses"]


@pytest.mark.parametrize("name", list(RECORDED["float32"]))
def test_losses_are_tensorflows(name):
    model, shape, n_ids = networks.MODELS[name](tf)
    networks.start(model)
    x, y = networks.examples(shape, n_ids)
    model.compile(networks.optimizer(tf), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(x, y, batch_size=len(x), epochs=networks.N_STEPS, shuffle=False, verbose=0)
    single, double = (np.array(RECORDED[precision][name]) for precision in ("float32", "float64"))
    gap = np.abs(single - double).max()
    found = np.array(history.history["loss"])
    assert len(found) == networks.N_STEPS
    assert np.abs(found - single).max() <= 3 * gap, (np.abs(found - single).max(), gap)
