"""Records TensorFlow's values: ``python tensorflow_values.py > ../recorded/tensorflow.json`` with ``pip install tensorflow``.

Of layers: what they give for weights and inputs that ``networks.py`` makes. Of metrics: what they tell after each of two batches. Of models: the losses of 50 steps from the same
weights, in float32 and in float64, whose difference is the yardstick of the tests.
"""

import json
import os
import subprocess
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import networks  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def rounded(array):
    return [float(f"{value:.7g}") for value in np.asarray(array, dtype="float64").reshape(-1)]


def layers():
    found = {}
    for seed, (name, (layer, shape)) in enumerate(networks.layers(tf).items()):
        x = networks.random_input(shape, seed)
        layer(x)
        layer.set_weights(networks.random_weights([w.shape for w in layer.get_weights()], seed))
        y = layer(x).numpy()
        found[name] = {"weights": [list(w.shape) for w in layer.get_weights()], "shape": list(y.shape), "values": rounded(y)}
    for seed, (name, (layer, shapes, options)) in enumerate(networks.attention(tf).items()):
        given = [networks.random_input(shape, seed + i) for i, shape in enumerate(shapes)]
        layer(given[0], given[-1], **options)
        layer.set_weights(networks.random_weights([w.shape for w in layer.get_weights()], seed))
        y = layer(given[0], given[-1], **options).numpy()
        found[name] = {"weights": [list(w.shape) for w in layer.get_weights()], "shape": list(y.shape), "values": rounded(y)}
    return found


def metrics():
    found = {}
    for name, metric in networks.metrics(tf).items():
        told = []
        for labels, chances, weights in networks.truths():
            metric.update_state(labels, chances, sample_weight=weights)
            told.append(float(metric.result()))
        found[name] = told
    return found


def losses(precision):
    tf.keras.backend.set_floatx(precision)
    found = {}
    for name, make in networks.MODELS.items():
        model, shape, n_ids = make(tf)
        networks.start(model)
        x, y = networks.examples(shape, n_ids)
        model.compile(networks.optimizer(tf), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        x = x.astype(precision) if n_ids is None else x
        history = model.fit(x, y, batch_size=len(x), epochs=networks.N_STEPS, shuffle=False, verbose=0)
        found[name] = history.history["loss"]
    return found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(losses(sys.argv[1])))
    else:
        runs = {p: json.loads(subprocess.check_output([sys.executable, __file__, p])) for p in ("float32", "float64")}
        print(json.dumps({"tensorflow": tf.__version__, "keras": tf.keras.__version__, "layers": layers(), "metrics": metrics(), "losses": runs}))
