"""Layers: what they give for TensorFlow's weights, and what they say of themselves. TensorFlow's values are recorded by
``record/tensorflow_values.py``."""

import json
import pathlib
import sys

import numpy as np
import plimsoll as tf
import pytest
from plimsoll import keras
from plimsoll.keras import layers

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "record"))

import networks  # noqa: E402

RECORDED = json.loads((HERE / "recorded" / "tensorflow.json").read_text())


def check(name, layer, call, seed):
    recorded = RECORDED["layers"][name]
    call()
    assert [list(w.shape) for w in layer.get_weights()] == recorded["weights"], name
    layer.set_weights(networks.random_weights(recorded["weights"], seed))
    again = layer.get_weights()
    for given, kept in zip(networks.random_weights(recorded["weights"], seed), again):
        np.testing.assert_array_equal(kept, given.astype("float32"))
    found = call().numpy()
    assert list(found.shape) == recorded["shape"]
    # Both compute in float32, in another order: a few units in the last place of numbers near one.
    np.testing.assert_allclose(found.reshape(-1), recorded["values"], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", list(networks.layers(tf)))
def test_layers_with_tensorflows_weights_give_its_values(name):
    seed = list(networks.layers(tf)).index(name)
    layer, shape = networks.layers(tf)[name]
    x = networks.random_input(shape, seed)
    check(name, layer, lambda: layer(x), seed)


@pytest.mark.parametrize("name", list(networks.attention(tf)))
def test_attention_with_tensorflows_weights_gives_its_values(name):
    seed = list(networks.attention(tf)).index(name)
    layer, shapes, options = networks.attention(tf)[name]
    given = [tf.constant(networks.random_input(shape, seed + i)) for i, shape in enumerate(shapes)]
    check(name, layer, lambda: layer(given[0], given[-1], **options), seed)


@pytest.mark.parametrize("name", list(networks.metrics(tf)))
def test_metrics_tell_what_tensorflow_tells(name):
    metric = networks.metrics(tf)[name]
    for (labels, chances, weights), expected in zip(networks.truths(), RECORDED["metrics"][name]):
        metric.update_state(labels, chances, sample_weight=weights)
        # TensorFlow adds up in float32.
        assert float(metric.result()) == pytest.approx(expected, rel=1e-6)
    metric.reset_state()
    assert float(metric.result()) == 0.0


def test_names_are_keras_names():
    keras.backend.clear_session()
    assert [layers.Dense(1).name, layers.Dense(1).name, layers.Conv2D(1, 1).name, layers.LSTM(1).name] == [
        "dense", "dense_1", "conv2d", "lstm"]  # fmt: skip
    assert layers.Dense(1, name="head").name == "head" and layers.GlobalAveragePooling2D().name == "global_average_pooling2d"
    model = keras.Sequential([layers.Dense(2, input_shape=(3,)), layers.Dense(2, name="head"), layers.BatchNormalization()])
    assert model.name == "sequential"
    assert [w._name for w in model.weights] == [
        "dense.kernel", "dense.bias", "head.kernel", "head.bias", "batch_normalization.gamma", "batch_normalization.beta",
        "batch_normalization.moving_mean", "batch_normalization.moving_variance"]  # fmt: skip
    assert len(model.trainable_weights) == 6 and len(model.non_trainable_weights) == 2
    keras.backend.clear_session()
    assert layers.Dense(1).name == "dense"


def test_a_layer_is_built_by_what_it_is_called_with():
    layer = layers.Dense(4, activation="relu", kernel_initializer="ones", bias_initializer=keras.initializers.Constant(-2.0))
    assert not layer.built and layer.weights == []
    assert layer(np.ones((2, 3))).numpy().tolist() == [[1.0] * 4] * 2
    assert layer.kernel.shape == (3, 4) and layer.bias.shape == (4,) and layer.output_shape == (None, 4)
    assert layer.count_params() == 16
    other = layers.Dense(4)
    other.build((None, 3))
    assert other.built and [w.shape for w in other.weights] == [(3, 4), (4,)]
    with pytest.raises(AttributeError):
        layers.Dense(4).kernel


def test_dropout_drops_when_it_is_told_to_train():
    layer, x = layers.Dropout(0.5), np.ones((100, 100), "float32")
    assert np.array_equal(layer(x).numpy(), x)
    assert 0.4 < np.mean(layer(x, training=True).numpy() == 0.0) < 0.6
    model = keras.Sequential([layer])
    with tf.GradientTape():
        assert np.array_equal(model(x).numpy(), x)


def test_frozen_layers_are_not_trained():
    model = keras.Sequential([layers.Dense(4, input_shape=(3,), trainable=False), layers.Dense(1)])
    assert [w._name for w in model.trainable_weights] == ["dense_1.kernel", "dense_1.bias"]
    model.compile("sgd", "mse")
    before = [w.numpy() for w in model.weights]
    x = np.ones((8, 3), "float32")
    model.fit(x, np.ones((8, 1)), verbose=0)
    changed = [not np.array_equal(a, b.numpy()) for a, b in zip(before, model.weights)]
    assert changed == [False, False, True, True]
    model.layers[0].trainable = True
    assert len(model.trainable_weights) == 4


def test_mixed_precision_keeps_masters():
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = keras.Sequential([layers.Dense(4, input_shape=(3,))])
        assert model.layers[0].compute_dtype == "float16" and model.layers[0].variable_dtype == "float32"
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert model(np.ones((2, 3), "float32")).dtype == tf.float16
    values = [np.full((3, 4), 1 / 3, "float32"), np.zeros(4, "float32")]
    model.set_weights(values)
    assert model.get_weights()[0].tobytes() == values[0].tobytes()
    assert model.weights[0].dtype == tf.float16
    model.compile("adam", "mse")
    history = model.fit(np.ones((8, 3)), np.zeros((8, 4)), epochs=5, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.Dense(4, activation="nonsense"), "there is no activation 'nonsense'; there are linear, relu"),
        (lambda: layers.Dense(4, activation=lambda x: x), "tf.keras.layers.Lambda"),
        (lambda: layers.Dense(4, kernel_initializer="nonsense"), "there is no initializer 'nonsense'"),
        (lambda: layers.Dense(4, wrong=1), "Dense has no argument wrong"),
        (lambda: layers.LSTM(4, return_state=True), "LSTM has no return_state=True"),
        (lambda: layers.Conv2D(4, 3, padding="causal"), "there are 'valid' and 'same'"),
        (lambda: layers.ConvLSTM2D, "Plimsoll has no tf.keras.layers.ConvLSTM2D; use a subclass of tf.keras.layers.Layer"),
        (lambda: keras.losses.get("nonsense"), "there is no loss 'nonsense'"),
        (lambda: keras.optimizers.get("nonsense"), "there is no optimizer 'nonsense'; there are sgd, adam"),
        (lambda: keras.datasets.mnist.load_data(), "never does. Fetch mnist.npz by hand"),
        (lambda: layers.Dense(2)(np.float32(1.0)), "needs at least one dimension"),
        (lambda: keras.Sequential([layers.Dense(2, input_shape=(3,))]).set_weights([np.ones((3, 2))]), "was given"),
        (lambda: layers.MultiHeadAttention(2, 5)(tf.zeros([1, 3, 8])), "which is key_dim 4"),
    ],
)
def test_errors_say_what_would_work(make, message):
    with pytest.raises(Exception, match=message.replace("(", r"\(")):
        make()


def test_schedules_tell_the_rates_that_the_optimizer_uses():
    of = keras.optimizers.schedules
    for schedule in (
        of.ExponentialDecay(0.1, 3, 0.5), of.ExponentialDecay(0.1, 3, 0.5, staircase=True), of.CosineDecay(0.1, 5, alpha=0.1),
        of.PolynomialDecay(0.1, 4, 0.01, power=2.0), of.PiecewiseConstantDecay([2, 4], [0.3, 0.2, 0.1]),
    ):  # fmt: skip
        variable = tf.Variable([0.0])
        optimizer = keras.optimizers.SGD(schedule)
        for step in range(7):
            before = float(variable.numpy()[0])
            optimizer.apply_gradients([(tf.constant([1.0]), variable)])
            assert before - float(variable.numpy()[0]) == pytest.approx(schedule(step), rel=1e-5)


def test_the_summary_counts_weights_and_bytes(capsys):
    model = keras.Sequential([layers.Dense(1024, activation="relu", input_shape=(784,)), layers.Dense(10)], name="mlp")
    model.summary(batch_size=32)
    printed = capsys.readouterr().out
    assert 'Model: "mlp"' in printed and "(None, 1024)" in printed and "803,840" in printed
    assert "Total params: 814,090 (3,256,360 B)" in printed
    assert f"Saved for backward at a batch of 32: {32 * (784 + 1024) * 4:,} B" in printed


def test_weights_go_through_files(tmp_path):
    model = keras.Sequential([layers.Conv2D(3, 2, input_shape=(4, 4, 2)), layers.Flatten(), layers.Dense(2)])
    model.save_weights(tmp_path / "model.safetensors")
    other = keras.Sequential([layers.Conv2D(3, 2, input_shape=(4, 4, 2)), layers.Flatten(), layers.Dense(2)])
    other.load_weights(tmp_path / "model.safetensors")
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), other.get_weights()))
    with pytest.raises(tf.errors.OpError if hasattr(tf.errors, "OpError") else Exception):
        keras.Sequential([layers.Dense(2, input_shape=(3,))]).load_weights(tmp_path / "model.safetensors")
