"""Functions of tensors that are called with symbolic tensors: layers of the graph, as in Keras."""

import copy
import pickle

import numpy as np
import plimsoll as tf
import pytest
from plimsoll import keras
from plimsoll.keras import layers

X = np.random.default_rng(3).standard_normal((4, 3, 5)).astype("float32")


@pytest.mark.parametrize("function", [
    lambda x: tf.reduce_mean(x, axis=-1),
    lambda x: tf.reduce_sum(x, axis=[1, 2], keepdims=True),
    lambda x: tf.nn.relu(x),
    lambda x: tf.math.log1p(tf.square(x)),
    lambda x: tf.concat([x, 2.0 * x], axis=-1),
    lambda x: tf.stack([x, -x], axis=1),
    lambda x: tf.transpose(x, perm=[0, 2, 1]),
    lambda x: tf.matmul(x, x, transpose_b=True),
    lambda x: tf.einsum("bij,bkj->bik", x, x),
    lambda x: tf.expand_dims(x, 2),
    lambda x: tf.cast(x > 0.0, tf.float32) if hasattr(x, "numpy") else tf.cast(tf.greater(x, 0.0), tf.float32),
    lambda x: tf.where(tf.greater(x, 0.0), x, tf.zeros_like(x)),
    lambda x: tf.maximum(x, np.zeros((3, 5), "float32")),
    lambda x: tf.nn.softmax(x, axis=1),
    lambda x: tf.nn.conv1d(x, np.ones((2, 5, 4), "float32"), stride=1, padding="SAME"),
    lambda x: tf.linalg.norm(x, axis=-1),
])  # fmt: skip
def test_a_function_of_a_symbolic_tensor_is_a_layer(function):
    x = keras.Input((3, 5))
    model = keras.Model(x, function(x))
    expected = function(tf.constant(X)).numpy()
    np.testing.assert_array_equal(model(X).numpy(), expected)
    np.testing.assert_array_equal(model.predict(X), expected)
    assert model.output_shape == (None, *expected.shape[1:])


def test_several_results_and_several_symbolic_tensors():
    x, y = keras.Input((6,)), keras.Input((6,))
    first, second = tf.split(x, 2, axis=1)
    model = keras.Model([x, y], [tf.subtract(first, second), tf.add_n([x, y, x])])
    given = np.arange(12.0, dtype="float32").reshape(2, 6), np.ones((2, 6), "float32")
    difference, total = model(given)
    assert difference.numpy().tolist() == [[-3.0] * 3] * 2 and np.array_equal(total.numpy(), 2 * given[0] + 1)


def test_such_a_model_trains_natively_and_is_copied_and_pickled():
    x = keras.Input((3, 5))
    out = layers.Dense(2)(tf.reduce_max(tf.tanh(layers.Dense(8)(x)), axis=1))
    model = keras.Model(x, out)
    assert [layer.name for layer in model.layers][1:3] == ["tanh", "reduce_max"]
    model.compile("adam", "mse")
    labels = np.random.default_rng(4).standard_normal((4, 2)).astype("float32")
    planned = model.plan(X, labels, batch_size=4, epochs=2)
    losses = model.fit(X, labels, batch_size=4, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0] and planned.peak_bytes == sum(planned.owners.values())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(twin(X).numpy(), model(X).numpy())


def test_what_loses_the_batch_is_refused():
    x = keras.Input((3, 5))
    with pytest.raises(ValueError, match=r"tf.reduce_mean of symbolic tensors gives \[\] for a batch of 1; the first axis is that of the batch"):
        tf.reduce_mean(x)
    with pytest.raises(ValueError, match="tf.shape of symbolic tensors"):
        tf.shape(x)


def test_functions_of_plain_tensors_are_as_before():
    keras.Input((3,))
    assert tf.reduce_sum([1.0, 2.0]).numpy() == 3.0 and tf.concat([[1], [2]], 0).numpy().tolist() == [1, 2]
    assert tf.exp.__name__ == "exp" and tf.exp is tf.math.exp
