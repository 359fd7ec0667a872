"""What Python computes after each batch: a `test_step` and metrics of the user's own; weights of classes; operators between symbolic tensors."""

import pickle

import numpy as np
import plimsoll as tf
import pytest
from plimsoll import keras
from plimsoll.keras import layers

RNG = np.random.default_rng(9)
X, Y = RNG.standard_normal((96, 8)).astype("float32"), RNG.integers(0, 3, 96)
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def classifier(cls=keras.Sequential):
    tf.random.set_seed(1)
    return cls([layers.Dense(16, activation="relu", input_shape=(8,)), layers.Dense(3)])


class Greatest(keras.metrics.Metric):
    """The greatest prediction so far."""

    def __init__(self, name="greatest"):
        super().__init__(name=name)
        self.greatest = self.add_weight(name="greatest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.greatest.assign(tf.maximum(self.greatest, tf.reduce_max(y_pred)))

    def result(self):
        return self.greatest


def test_a_metric_of_ones_own_is_told_beside_the_others():
    own, native = classifier(), classifier()
    own.compile("adam", LOGITS, metrics=[Greatest(), "accuracy"])
    native.compile("adam", LOGITS, metrics=["accuracy"])
    options = dict(batch_size=32, epochs=3, shuffle=False, verbose=0, validation_data=(X[:40], Y[:40]))
    found, expected = own.fit(X, Y, **options).history, native.fit(X, Y, **options).history
    assert list(found) == ["loss", "greatest", "accuracy", "val_loss", "val_greatest", "val_accuracy"]
    for name in expected:
        # The same steps; the means are of float64 here, of float32 there.
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)
    assert [w.numpy().tobytes() for w in own.weights] == [w.numpy().tobytes() for w in native.weights]
    logs = own.evaluate(X, Y, batch_size=32, verbose=0, return_dict=True)
    assert logs["greatest"] == pytest.approx(own.predict(X, verbose=0).max(), rel=1e-6)
    assert found["val_greatest"][-1] == pytest.approx(own.predict(X[:40], verbose=0).max(), rel=1e-6)
    with pytest.raises(ValueError, match="metrics of its own"):
        own.plan(X, Y)


def test_a_test_step_of_ones_own_is_what_evaluates():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.seen = layers.Dense(3), 0

        def call(self, inputs):
            return self.dense(inputs)

        def test_step(self, data):
            x, y = data
            self.seen += len(x)
            return {"loss": self.compute_loss(y=y, y_pred=self(x)), "seen": self.seen}

    model = Model()
    model.compile("sgd", LOGITS)
    assert model.evaluate(X, Y, batch_size=32, verbose=0, return_dict=True)["seen"] == 96
    history = model.fit(X, Y, epochs=2, verbose=0, validation_data=(X[:10], Y[:10])).history
    assert history["val_seen"] == [106, 116] and set(history) == {"loss", "val_loss", "val_seen"}


def test_weights_of_classes_are_weights_of_examples():
    weights = {0: 3.0, 2: 0.5}
    of_examples = np.float32([weights.get(c, 1.0) for c in Y])
    labels = {"sparse": (Y, LOGITS), "one hot": (np.eye(3, dtype="float32")[Y], keras.losses.CategoricalCrossentropy(from_logits=True))}
    for y, loss in labels.values():
        bits = []
        for options in ({"class_weight": weights}, {"sample_weight": of_examples}, {}):
            model = classifier()
            model.compile("adam", loss)
            model.fit(X, y, shuffle=False, verbose=0, **options)
            bits.append([w.numpy().tobytes() for w in model.weights])
        assert bits[0] == bits[1] != bits[2]
    with pytest.raises(NotImplementedError, match="class_weight is for labels in an array"):
        model.fit(tf.data.Dataset.from_tensor_slices((X, Y)).batch(8), class_weight=weights, verbose=0)


def test_operators_between_symbolic_tensors_and_others():
    x = keras.Input((4,))
    row = layers.Dense(1)(x)
    outputs = [x + 1.0, 2.0 - x, x / 4.0, -x, x[:, 1:3], x**2.0, x * row, x - row, x @ tf.eye(4), 1.0 / (x * x + 1.0)]
    model = keras.Model(x, outputs)
    given = RNG.standard_normal((5, 4)).astype("float32")
    r = given @ model.layers[[type(layer).__name__ for layer in model.layers].index("Dense")].kernel.numpy()
    expected = [given + 1, 2 - given, given / 4, -given, given[:, 1:3], given**2, given * r, given - r, given, 1 / (given * given + 1)]
    for found, value in zip(model(given), expected):
        np.testing.assert_allclose(found.numpy(), value, rtol=1e-5, atol=1e-6)  # a product of four, and powers
    copied = pickle.loads(pickle.dumps(model))
    assert [a.numpy().tobytes() for a in copied(given)] == [a.numpy().tobytes() for a in model(given)]
