"""`model.plan` of models with the user's own layers, of frozen and nested ones, and for GPUs that are not there."""

import gc

import numpy as np
import plimsoll as tf
import pytest
from plimsoll import keras
from plimsoll.keras import layers

RNG = np.random.default_rng(2)
X, Y = RNG.standard_normal((300, 8)).astype("float32"), RNG.integers(0, 3, 300)
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Scale(layers.Layer):
    """A weight of ``__init__``, one of ``build``, a variable that is not trained, and a tensor."""

    def __init__(self, width=256):
        super().__init__()
        self.width = width
        self.offset = self.add_weight(shape=(1,), initializer="zeros", name="offset")
        self.seen, self.two = tf.Variable(0.0, trainable=False), tf.constant([2.0])

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1], self.width), initializer="ones", name="scale",
                                     regularizer=keras.regularizers.l2(0.01))  # fmt: skip

    def call(self, inputs):
        return tf.matmul(inputs, self.scale) * tf.cast(self.two, inputs.dtype) + self.offset


class Classifier(keras.Model):
    """Layers in a list and as an attribute, and a function of tensors between them."""

    def __init__(self):
        super().__init__()
        self.hidden = [layers.Dense(128, activation="relu"), Scale()]
        self.drop, self.head = layers.Dropout(0.2), layers.Dense(3)

    def call(self, inputs, training=False):
        x = inputs
        for layer in self.hidden:
            x = tf.nn.tanh(layer(x))
        return self.head(self.drop(x, training=training))


def sequential():
    return keras.Sequential([Scale(), layers.Lambda(lambda x: tf.nn.tanh(x) * x), layers.Dense(3)])


def functional():
    shared = layers.Dense(8, activation="tanh")
    x = keras.Input((8,))
    inner = keras.Sequential([layers.Dense(64, activation="relu", input_shape=(8,)), layers.Dense(8)])
    y = layers.Add()([inner(shared(x)), shared(shared(x))])
    return keras.Model(x, layers.Dense(3)(Scale(32)(y)))


def nested():
    x = keras.Input((8,))
    inner = keras.Model(x, layers.BatchNormalization()(layers.Dense(64)(x)))
    return keras.Sequential([inner, layers.Dense(3)])


def frozen():
    model = keras.Sequential([layers.Dense(256, activation="relu", input_shape=(8,)), layers.Dense(256, activation="relu"), layers.Dense(3)])
    for layer in model.layers[:2]:
        layer.trainable = False
    return model


def mixed():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        return keras.Sequential([Scale(), layers.Dense(3, dtype="float32")])
    finally:
        keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize("limit", [None, "8MiB"])
@pytest.mark.parametrize("make", [Classifier, sequential, functional, nested, frozen, mixed])
def test_a_plan_is_the_run_to_the_byte(make, limit):
    tf.limit(limit)
    model = make()
    model.compile("adam", LOGITS, metrics=["accuracy"])
    plan = model.plan(X, Y, batch_size=64, epochs=2)
    tf.trim()
    tf.reset_peaks()
    model.fit(X, Y, batch_size=64, epochs=2, verbose=0)
    assert plan.peak_bytes == tf.stats()["peak_in_use"]
    assert plan.fits and plan.committed_bytes <= tf.stats()["peak_committed"]
    assert sum(plan.owners.values()) == plan.peak_bytes


def test_a_plan_changes_nothing_of_the_model():
    model = Classifier()
    model.compile("adam", LOGITS)
    model.evaluate(X, Y, verbose=0)
    weights = [(w.name, w.numpy().tobytes()) for w in model.weights]
    gc.collect()
    held = tf.stats()["in_use"]
    tf.random.set_seed(3)
    expected = tf.random.normal([1]).numpy()
    tf.random.set_seed(3)
    model.plan(X, Y, batch_size=64)
    assert tf.random.normal([1]).numpy() == expected
    gc.collect()
    assert tf.stats()["in_use"] == held
    assert [(w.name, w.numpy().tobytes()) for w in model.weights] == weights


def test_frozen_layers_need_no_state_of_an_optimizer():
    plans = []
    for make in (frozen, lambda: keras.Sequential([layers.Dense(256, activation="relu", input_shape=(8,)),
                                                   layers.Dense(256, activation="relu"), layers.Dense(3)])):  # fmt: skip
        model = make()
        model.compile("adam", LOGITS)
        plans.append(model.plan(X, Y).owners["optimizer"])
    head, all_of_them = 256 * 3 + 3, 8 * 256 + 256 + 256 * 256 + 256 + 256 * 3 + 3
    assert plans[1] - plans[0] >= 8 * (all_of_them - head)


def test_a_gpu_that_is_not_there():
    model = Classifier()
    model.compile("adam", LOGITS)
    plan = model.plan(X, Y, batch_size=64, as_="h200")
    assert plan.fits and 100 << 30 < plan.limit < 160 << 30 and sum(plan.owners.values()) == plan.peak_bytes
    assert plan.owners["parameters"] == 4 * model.count_params() and tf.stats()["limit"] is None
    with pytest.raises(tf.errors.InvalidArgumentError, match='as_="nonsense": the models are h200'):
        model.plan(X, Y, as_="nonsense")


@pytest.mark.parametrize("as_", [None, "h200"])
def test_a_limit_may_be_planned_for_without_being_set(as_):
    model = keras.Sequential([*(layers.Dense(512, activation="tanh", input_shape=(8,)) for _ in range(8)), Scale(3)])
    model.compile("sgd", LOGITS)
    free = model.plan(X, Y, batch_size=300, as_=as_)
    if as_ is None:
        limit = free.committed_bytes - (2 << 20)
        less = model.plan(X, Y, batch_size=300, limit=limit)
        assert less.fits and less.limit == limit >= less.committed_bytes and less.peak_bytes < free.peak_bytes
    # Weights alone are more than that, which is met while the model is built.
    refused = model.plan(X, Y, batch_size=300, as_=as_, limit="2MiB")
    assert not refused.fits and refused.limit == 2 << 20 and "out of memory" in refused.refusal
    assert refused.peak_bytes == free.peak_bytes and tf.stats()["limit"] is None


def test_what_has_no_plan_says_why():
    class Stepped(Classifier):
        def train_step(self, data):
            return super().train_step(data)

    model = Stepped()
    model.compile("adam", LOGITS)
    with pytest.raises(ValueError, match="has a train_step, a test_step or metrics of its own"):
        model.plan(X, Y)

    class Reads(keras.Model):
        def call(self, inputs):
            return inputs[:, :3] if self.is_planned and float(tf.reduce_sum(inputs)) > 0 else inputs[:, :3]

    model = Reads()
    model.is_planned = False
    model.compile("sgd", LOGITS)
    model(X)
    model._ensure_native([8], ["float32"])
    model.is_planned = True
    with pytest.raises(Exception, match="test_keras_plan.py"):
        model.plan(X, Y)
