"""``add_loss``: numbers that layers add to the loss of a batch."""

import copy
import gc
import pickle

import numpy as np
import plimsoll as tf
import pytest
from plimsoll import keras
from plimsoll.keras import layers

X = np.random.default_rng(1).standard_normal((8, 3)).astype("float32")
Y = np.random.default_rng(2).standard_normal((8, 2)).astype("float32")


class Quiet(layers.Layer):
    """Gives what it is given, and adds its mean square to the loss."""

    def __init__(self, rate=0.5, **common):
        super().__init__(**common)
        self.rate = rate

    def call(self, inputs):
        self.add_loss(self.rate * tf.reduce_mean(tf.square(inputs)))
        return inputs


def model(rate=0.5):
    tf.random.set_seed(3)
    made = keras.Sequential([layers.Dense(2, input_shape=(3,)), Quiet(rate)])
    made.compile(keras.optimizers.SGD(0.1), "mse")
    return made


def by_hand(made, n):
    """The losses of steps without `add_loss`, and the weights afterwards."""
    kernel, bias = (tf.Variable(w) for w in made.get_weights())
    told = []
    for _ in range(n):
        with tf.GradientTape() as tape:
            y = tf.matmul(X, kernel) + bias
            loss = tf.reduce_mean(tf.reduce_mean(tf.square(Y - y), -1)) + 0.5 * tf.reduce_mean(tf.square(y))
        told.append(float(loss))
        for variable, gradient in zip((kernel, bias), tape.gradient(loss, [kernel, bias])):
            variable.assign_sub(0.1 * gradient)
    return told, [kernel.numpy(), bias.numpy()]


def test_it_is_part_of_the_loss_of_fit_and_evaluate():
    made = model()
    told, weights = by_hand(made, 4)
    found = made.fit(X, Y, batch_size=8, epochs=4, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(found, told, rtol=1e-6)  # sums in another order
    for own, expected in zip(made.get_weights(), weights):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-7)
    y = made.predict(X)
    alone = ((Y - y) ** 2).mean() + 0.5 * (y**2).mean()
    assert made.evaluate(X, Y, verbose=0) == pytest.approx(alone, rel=1e-6)


def test_fit_and_a_train_step_give_the_same_bits():
    class Own(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    native = model()
    own = Own([copy.deepcopy(layer) for layer in native.layers])
    own.build((None, 3))
    own.set_weights(native.get_weights())
    own.compile(keras.optimizers.SGD(0.1), "mse")
    told = [m.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"] for m in (native, own)]
    assert told[0] == told[1]
    for a, b in zip(native.get_weights(), own.get_weights()):
        np.testing.assert_array_equal(a, b)


def test_losses_are_those_of_the_last_call_and_go_with_the_model():
    before = tf.stats()["in_use"]
    made = model()
    for _ in range(3):
        y = made(X)
    assert [float(loss) for loss in made.losses] == [pytest.approx(0.5 * float(tf.reduce_mean(tf.square(y))))]
    twin = pickle.loads(pickle.dumps(made))
    assert twin.losses == []
    made.fit(X, Y, verbose=0)
    del made, twin, y
    gc.collect()
    assert tf.stats()["in_use"] == before


def test_a_subclassed_model_adds_losses_of_layers_that_its_call_makes():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.quiet = layers.Dense(2), Quiet(2.0)

        def call(self, inputs):
            y = self.quiet(self.dense(inputs))
            self.add_loss([tf.reduce_sum(y) * 0.0, 1.0])
            return y

    made = Model()
    made.compile(keras.optimizers.SGD(0.0), "mse")
    y = made(X)
    assert len(made.losses) == 3
    expected = ((Y - y.numpy()) ** 2).mean() + 2.0 * (y.numpy() ** 2).mean() + 1.0
    assert made.evaluate(X, Y, verbose=0) == pytest.approx(expected, rel=1e-5)
    assert made.fit(X, Y, verbose=0).history["loss"] == [pytest.approx(expected, rel=1e-5)]


def test_a_loss_that_is_no_number_is_refused():
    class Wide(layers.Layer):
        def call(self, inputs):
            self.add_loss(inputs)
            return inputs

    with pytest.raises(tf.errors.InvalidArgumentError, match="it must be one number, such as its mean"):
        Wide()(X)


def test_metrics_of_two_kinds_are_told_by_fit():
    made = keras.Sequential([layers.Dense(1, activation="sigmoid", input_shape=(3,))])
    of = keras.metrics
    made.compile("sgd", "binary_crossentropy", metrics=[of.Precision(), of.Recall(), of.AUC(), of.AUC(curve="PR", name="pr"), "accuracy"])
    truths = (X.sum(-1, keepdims=True) > 0).astype("float32")
    history = made.fit(X, truths, batch_size=4, epochs=2, validation_data=(X, truths), verbose=0).history
    assert list(history) == [f"{held}{name}" for held in ("", "val_") for name in ("loss", "precision", "recall", "auc", "pr", "accuracy")]
    found = dict(zip(["loss", "precision", "recall", "auc", "pr", "accuracy"], made.evaluate(X, truths, verbose=0)))
    said = made.predict(X) > 0.5
    right = (said & (truths == 1)).sum()
    assert found["precision"] == pytest.approx(right / max(said.sum(), 1)) and found["recall"] == pytest.approx(right / truths.sum())
    pairs = [(a > b) + 0.5 * (a == b) for a in made.predict(X)[truths == 1] for b in made.predict(X)[truths == 0]]
    assert found["auc"] == pytest.approx(np.mean(pairs), abs=0.02)  # thresholds are 1/199 apart
    assert [history[f"val_{name}"][-1] for name in ("auc", "pr")] == [found["auc"], found["pr"]]


def test_a_bidirectional_layer_is_copied_and_trained():
    made = keras.Sequential([layers.Bidirectional(layers.LSTM(4, kernel_regularizer="l2"), input_shape=(5, 3)), layers.Dense(1)])
    made.compile("adam", "mse")
    x, y = np.random.default_rng(5).standard_normal((6, 5, 3)), np.ones((6, 1))
    assert made.output_shape == (None, 1) and [w._name for w in made.weights[:2]] == [
        "bidirectional.forward.kernel", "bidirectional.forward.recurrent_kernel"] and len(made.losses) == 2  # fmt: skip
    twin = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(twin(x).numpy(), made(x).numpy())
    losses = made.fit(x, y, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    with pytest.raises(TypeError, match="Bidirectional is of an LSTM"):
        layers.Bidirectional(layers.Dense(3))
    with pytest.raises(NotImplementedError, match="merge_mode=None"):
        layers.Bidirectional(layers.LSTM(3), merge_mode=None)
