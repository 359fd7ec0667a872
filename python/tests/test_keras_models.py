"""Graphs of layers, layers and models of one's own, copies and pickles."""

import copy
import gc
import pickle
import weakref

import numpy as np
import plimsoll as tf
import pytest
from conftest import in_use
from plimsoll import keras
from plimsoll.keras import layers
from test_keras_fit import bits, blobs, compiled

X, Y = blobs(64)


def two_towers():
    left, right = keras.Input((8,), name="left"), keras.Input((5,), name="right", dtype="int32")
    shared = layers.Dense(6, activation="relu", name="shared")
    text = layers.Flatten()(layers.Embedding(20, 4)(right))
    both = layers.Concatenate()([shared(left), shared(layers.Dense(8)(text))])
    return keras.Model([left, right], [layers.Dense(3, name="kind")(both), layers.Dense(1, name="price")(both)])


def two_tower_data():
    generator = np.random.default_rng(1)
    inputs = [X, generator.integers(0, 20, (64, 5))]
    return inputs, {"kind": Y, "price": generator.standard_normal(64).astype("float32")[:, None]}


def test_a_graph_with_several_inputs_and_outputs_and_a_shared_layer():
    model = two_towers()
    assert model.output_names == ["kind", "price"] and len(model.layers) == 7
    assert [w._name for w in model.weights].count("shared.kernel") == 1
    inputs, labels = two_tower_data()
    model.compile("adam", {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "price": "mse"},
                  loss_weights={"price": 0.5}, metrics={"kind": ["accuracy"]})  # fmt: skip
    history = model.fit(inputs, labels, epochs=5, verbose=0)
    assert list(history.history) == ["loss", "kind_accuracy"]
    assert history.history["loss"][-1] < history.history["loss"][0]
    kind, price = model(dict(left=inputs[0], right=inputs[1]))
    assert kind.shape == (64, 3) and price.shape == (64, 1)
    said = model.predict(inputs)
    assert said[0].tobytes() == kind.numpy().tobytes()


def test_a_graph_says_what_is_wrong_with_it():
    x, other = keras.Input((3,)), keras.Input((3,))
    with pytest.raises(ValueError, match="an Input that is not among the inputs"):
        keras.Model(x, layers.Add()([x, other]))
    with pytest.raises(TypeError, match="goes through layers"):
        np.asarray(x)
    with pytest.raises(ValueError, match="each extent of an example must be a number"):
        keras.Input((None, 3))
    assert (x + other).shape == (None, 3)


class Scale(layers.Layer):
    """A weight for each feature."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="scale")

    def call(self, inputs):
        return inputs * self.scale


class Classifier(keras.Model):
    def __init__(self, width=16):
        super().__init__()
        self.scale = Scale()
        self.hidden = [layers.Dense(width, activation="relu") for _ in range(2)]
        self.dropout = layers.Dropout(0.3)
        self.head = layers.Dense(3)
        self.calls = 0

    def call(self, inputs, training=None):
        self.calls += 1
        x = self.scale(inputs)
        for layer in self.hidden:
            x = layer(x)
        return self.head(self.dropout(x))


LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def native_twin():
    return keras.Sequential([layers.Dense(16, activation="relu", input_shape=(8,)), layers.Dense(16, activation="relu"),
                             layers.Dropout(0.3), layers.Dense(3)])  # fmt: skip


@pytest.mark.parametrize("limit", [None, "16MiB"])
def test_a_model_of_ones_own_is_recorded_once_and_trained_by_the_run(limit):
    model = compiled(Classifier(), loss=LOGITS)
    with tf.limit(limit):
        history = model.fit(X, Y, batch_size=16, epochs=10, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    # Once to build it, once for each kind of batch, and once for the look at the first: not for each of forty steps.
    assert model.calls <= 4
    assert sorted(w._name for w in model.weights) == [
        "dense.bias", "dense.kernel", "dense_1.bias", "dense_1.kernel", "dense_2.bias", "dense_2.kernel", "scale.scale"]  # fmt: skip
    assert not np.array_equal(model.scale.scale.numpy(), np.ones(8))


def test_a_model_of_ones_own_has_the_bits_of_a_native_one():
    class Plain(Classifier):
        def call(self, inputs):
            x = inputs
            for layer in self.hidden:
                x = layer(x)
            return self.head(self.dropout(x))

    runs = []
    for make in (native_twin, lambda: Plain()):
        tf.random.set_seed(4)
        model = make()
        if isinstance(model, Plain):
            del model.scale
        model(X)
        compiled(model, loss=LOGITS)
        tf.random.set_seed(5)
        model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        runs.append(bits(model))
    assert runs[0] == runs[1]


def test_a_layer_of_ones_own_inside_a_sequential_and_a_lambda():
    model = compiled(keras.Sequential([Scale(), layers.Lambda(lambda x: tf.nn.tanh(x)), layers.Dense(3)]), loss=LOGITS)
    model.fit(X, Y, epochs=2, verbose=0)
    assert model(X).shape == (64, 3) and len(model.trainable_weights) == 3


def test_what_call_raises_comes_out_of_fit():
    class Broken(Classifier):
        def call(self, inputs):
            if self.built and self.broken:
                raise ZeroDivisionError("in call")
            return super().call(inputs)

    model = compiled(Broken(), loss=LOGITS)
    model.broken = False
    model(X)
    model._ensure_native([8], ["float32"])
    model.broken = True
    with pytest.raises(ZeroDivisionError, match="in call"):
        model.fit(X, Y, verbose=0)
    model.broken = False
    model.fit(X, Y, verbose=0)


def test_a_train_step_of_ones_own():
    class Doubled(Classifier):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = 2.0 * self.compute_loss(y=y, y_pred=self(x, training=True))
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            return {"loss": loss, "twice": loss}

    model = compiled(Doubled(), loss=LOGITS, metrics=[])
    history = model.fit(X, Y, epochs=4, batch_size=16, verbose=0, validation_data=(X, Y))
    assert list(history.history) == ["loss", "twice", "val_loss"] and model.optimizer.iterations == 16
    assert history.history["val_loss"][-1] < history.history["val_loss"][0]


def test_batches_one_by_one_and_from_iterables():
    model = compiled(Classifier(), loss=LOGITS)
    loss, accuracy = model.train_on_batch(X, Y)
    assert loss > 0.0 and 0.0 <= accuracy <= 1.0
    assert model.metrics[0].name == "accuracy"
    model.reset_metrics()
    assert model.test_on_batch(X, Y, return_dict=True) == pytest.approx(model.evaluate(X, Y, verbose=0, return_dict=True))
    one_hot = compiled(native_twin(), loss=keras.losses.CategoricalCrossentropy(from_logits=True))
    _, accuracy = one_hot.train_on_batch(X, keras.utils.to_categorical(Y, 3))
    assert type(one_hot.metrics[0]) is keras.metrics.CategoricalAccuracy
    batches = [(X[at : at + 16], Y[at : at + 16]) for at in range(0, 64, 16)]
    expected = model.predict(X, batch_size=16)
    assert model.predict(batch for batch in batches).tobytes() == expected.tobytes()
    assert model.predict(iter(batches), steps=2).tobytes() == expected[:32].tobytes()
    assert model.evaluate(batches, verbose=0) == pytest.approx(model.evaluate(X, Y, batch_size=16, verbose=0))


def test_a_model_may_run_eagerly_at_every_step():
    model = compiled(Classifier(), loss=LOGITS, run_eagerly=True)
    model.fit(X, Y, batch_size=16, epochs=2, verbose=0)
    assert model.calls >= 8
    seen = []

    class Reading(Classifier):
        def call(self, inputs):
            seen.append(float(tf.reduce_sum(inputs)))
            return super().call(inputs)

    # Recorded, there is no value to read: the error names the line and what to do, as TensorFlow's does.
    model = compiled(Reading(), loss=LOGITS)
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError, match=r"test_keras_models.py:\d+.*run_eagerly=True"):
        model.fit(X, Y, batch_size=16, epochs=2, verbose=0)
    model = compiled(Reading(), loss=LOGITS, run_eagerly=True)
    model.fit(X, Y, batch_size=16, epochs=2, verbose=0)
    assert len(set(seen)) >= 4


def test_a_train_step_without_labels_sees_every_example_in_another_order():
    seen = []

    class Autoencoder(Classifier):
        def train_step(self, data):
            seen.append(data.numpy())
            return {"loss": 0.0}

    model = compiled(Autoencoder(), loss=None, metrics=[])
    model.fit(X, batch_size=16, epochs=2, verbose=0)
    epochs = np.concatenate(seen[:4]), np.concatenate(seen[4:])
    assert not np.array_equal(*epochs) and not np.array_equal(epochs[0], X)
    for epoch in epochs:
        assert np.array_equal(np.sort(epoch, axis=0), np.sort(X, axis=0))


@pytest.mark.parametrize("make", [native_twin, two_towers, Classifier])
@pytest.mark.parametrize("how", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_have_the_values_and_go_their_own_way(make, how):
    model = make()
    inputs = two_tower_data()[0] if make is two_towers else X
    first = model(inputs)
    twin = how(model)
    assert bits(twin) == bits(model)
    for a, b in zip(first, twin(inputs)) if make is two_towers else [(first, twin(inputs))]:
        assert a.numpy().tobytes() == b.numpy().tobytes()
    twin.set_weights([array + 1 for array in twin.get_weights()])
    assert bits(twin) != bits(model)


def test_a_run_goes_on_in_a_copy_with_the_state_of_its_optimizer():
    model = compiled(native_twin(), loss=LOGITS)
    model.fit(X, Y, shuffle=False, verbose=0)
    twin = pickle.loads(pickle.dumps(model))
    runs = []
    for one in (model, twin):
        tf.random.set_seed(9)
        one.fit(X, Y, shuffle=False, verbose=0)
        runs.append(bits(one))
    assert runs[0] == runs[1]


def test_a_model_that_is_dropped_is_gone_at_once():
    gc.disable()
    try:
        for make in (native_twin, Classifier, two_towers):
            before = in_use()
            model = make()
            inputs, labels = two_tower_data() if make is two_towers else (X, Y)
            model.compile("adam", [LOGITS, "mse"] if make is two_towers else LOGITS)
            model.fit(inputs, labels, verbose=0)
            alive = weakref.ref(model)
            del model
            assert alive() is None and in_use() == before, make
    finally:
        gc.enable()
