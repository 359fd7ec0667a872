"""The same model in Rust: `fit`, `train_step` and a bare tape give its bits. `rust_twin` builds and trains it in Rust."""

import pathlib
import sys

import plimsoll as tf
import pytest
from plimsoll import keras
from plimsoll.keras import layers

sys.path.insert(0, str(pathlib.Path(__file__).parent / "record"))

import networks  # noqa: E402

BATCH, EPOCHS = 16, 3
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def made(name):
    """The model, from the same seed, and an optimizer."""
    tf.random.set_seed(0)
    if name == "dense":
        model = keras.Sequential([layers.Dense(64, activation="relu", input_shape=(20,)), layers.Dropout(0.2),
                                  layers.Dense(32, activation="tanh"), layers.Dense(3)])  # fmt: skip
        shape, n_ids = (20,), None
    else:
        model, shape, n_ids = networks.MODELS[name](tf)
    x, y = networks.examples(shape, n_ids)
    model.compile(keras.optimizers.Adam(0.01), LOSS)
    return model, tf.constant(x.astype("float32") if n_ids is None else x), tf.constant(y)


def by_fit(model, x, y):
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)


def by_train_step(model, x, y):
    for _ in range(EPOCHS):
        for at in range(0, len(x), BATCH):
            model.train_step((x[at : at + BATCH], y[at : at + BATCH]))


def by_tape(model, x, y):
    for _ in range(EPOCHS):
        for at in range(0, len(x), BATCH):
            with tf.GradientTape() as tape:
                loss = LOSS(y[at : at + BATCH], model(x[at : at + BATCH], training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))


@pytest.mark.parametrize("train", [by_fit, by_train_step, by_tape])
@pytest.mark.parametrize("name", list(networks.MODELS))
def test_the_bits_are_those_of_the_same_model_in_rust(name, train):
    model, x, y = made(name)
    before = [w.numpy().tobytes() for w in model.weights]
    train(model, x, y)
    found = [w.numpy().tobytes() for w in model.weights]
    assert all(a != b for a, b in zip(before, found))
    assert found == [w.numpy().tobytes() for w in tf._core.keras.rust_twin(name, x, y, BATCH, EPOCHS)]
