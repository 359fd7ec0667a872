"""The posts' programs beside what TensorFlow 2.21 prints and raises, recorded by ``record/tensorflow_posts.py``."""

import gc
import json
import pathlib
import sys

import plimsoll as tf
import pytest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "record"))

import posts  # noqa: E402

RECORDED = json.loads((HERE / "recorded" / "posts.json").read_text())["posts"]
# Where TensorFlow raises and the program runs here: what it prints then.
RUNS_HERE = {
    "003_3": "",  # Keras 3 has dropped `mixed_precision.experimental`, which the post uses
    "004_2": "Function disposed...\nSession cleared...\n",  # a tf.function of TensorFlow's may not make a model each time it is recorded
}


@pytest.mark.parametrize("name", posts.NAMES)
def test_a_program_prints_and_raises_what_tensorflow_does(name):
    try:
        found = posts.run(tf, name, "import plimsoll as tf")
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    gc.collect()
    recorded = RECORDED[name]
    if name in RUNS_HERE:
        assert recorded["raised"] is not None and found == {"printed": RUNS_HERE[name], "raised": None}
        return
    assert found["printed"] == recorded["printed"]
    if recorded["raised"] is None:
        assert found["raised"] is None
    else:
        # The same kind of error; the words are each one's own.
        assert found["raised"].split(":")[0] == recorded["raised"].split(":")[0]
