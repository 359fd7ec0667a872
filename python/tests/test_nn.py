"""Convolutions and pools of `tf.nn`, against loops over every output, with TensorFlow's layouts and paddings."""

import itertools

import numpy as np
import plimsoll as tf
import pytest

RNG = np.random.default_rng(5)


def values(*shape):
    return RNG.standard_normal(shape).astype("float32")


def places(extent, window, stride, dilation, padding):
    """For each output the positions of the input that it reads, those outside among them."""
    reach = (window - 1) * dilation + 1
    if padding == "VALID":
        n, before = (extent - reach) // stride + 1, 0
    elif padding == "SAME":
        n = -(-extent // stride)
        before = max((n - 1) * stride + reach - extent, 0) // 2
    else:
        before, after = padding
        n = (extent + before + after - reach) // stride + 1
    return [[at * stride - before + tap * dilation for tap in range(window)] for at in range(n)]


def convolved(x, w, strides, padding, dilations):
    """The convolution of [batch, height, width, channels] by [height, width, channels / groups, out], by loops."""
    pads = [padding, padding] if isinstance(padding, str) else padding
    rows, cols = (places(x.shape[1 + a], w.shape[a], strides[a], dilations[a], pads[a]) for a in (0, 1))
    n_in, n_out = w.shape[2:]
    groups = x.shape[3] // n_in
    y = np.zeros((len(x), len(rows), len(cols), n_out))
    for b, r, c, o in np.ndindex(y.shape):
        first = o // (n_out // groups) * n_in
        for (i, row), (j, col) in itertools.product(enumerate(rows[r]), enumerate(cols[c])):
            if 0 <= row < x.shape[1] and 0 <= col < x.shape[2]:
                y[b, r, c, o] += x[b, row, col, first : first + n_in] @ w[i, j, :, o]
    return y


CONFIGS = [
    (1, "VALID", None), (1, "SAME", None), (2, "SAME", None), ([2, 1], "VALID", None), ([1, 2, 1, 1], "SAME", [1, 1, 2, 1]),
    (1, "SAME", 2), (1, [[0, 0], [2, 0], [1, 3], [0, 0]], None),
]  # fmt: skip


@pytest.mark.parametrize(("strides", "padding", "dilations"), CONFIGS)
def test_conv2d(strides, padding, dilations):
    x, w = values(2, 7, 6, 4), values(3, 2, 2, 6)
    pair = lambda given: [1, 1] if given is None else [given] * 2 if isinstance(given, int) else given[-3:-1] if len(given) == 4 else given
    widths = padding if isinstance(padding, str) else padding[1:-1]
    expected = convolved(x, w, pair(strides), widths, pair(dilations))
    found = tf.nn.conv2d(x, w, strides, padding, dilations=dilations).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)  # sums of 12 products of float32


def test_conv1d_is_a_convolution_of_one_line():
    x, w = values(2, 9, 3), values(4, 3, 5)
    for stride, padding in ((1, "SAME"), (2, "VALID"), (3, "SAME")):
        expected = convolved(x[:, None], w[None], [1, stride], padding, [1, 1])[:, 0]
        np.testing.assert_allclose(tf.nn.conv1d(x, w, stride, padding).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_depthwise_conv2d_convolves_each_channel_by_itself():
    x, w = values(2, 5, 6, 3), values(3, 3, 3, 2)
    parts = [convolved(x[..., c : c + 1], w[:, :, c : c + 1], [1, 1], "SAME", [1, 1]) for c in range(3)]
    found = tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME").numpy()
    np.testing.assert_allclose(found, np.concatenate(parts, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("extent", "stride", "padding"), [(7, 1, "SAME"), (8, 2, "SAME"), (7, 2, "SAME"), (7, 2, "VALID"), (8, 2, "VALID")])
def test_conv2d_transpose_is_the_gradient_of_conv2d(extent, stride, padding):
    """As TensorFlow defines it: for an output of that extent."""
    w = values(3, 3, 2, 4)
    x = tf.Variable(values(2, extent, extent, 2))
    with tf.GradientTape() as tape:
        y = tf.nn.conv2d(x, w, stride, padding)
    seed = values(*y.shape)
    expected = tape.gradient(y, x, output_gradients=tf.constant(seed)).numpy()
    found = tf.nn.conv2d_transpose(seed, w, [2, extent, extent, 2], stride, padding).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_conv1d_transpose_spreads_a_line():
    w = values(2, 3, 1)
    found = tf.nn.conv1d_transpose(np.float32([[[1.0], [2.0]]]), w, [1, 4, 3], 2).numpy()
    np.testing.assert_allclose(found[0], np.concatenate([w[..., 0], 2 * w[..., 0]]), rtol=1e-6)


def test_the_gradient_of_the_filters_has_their_layout():
    x, w = values(2, 5, 5, 3), tf.Variable(values(2, 2, 3, 4))
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(tf.nn.conv2d(x, w, 1, "VALID"))
    found = tape.gradient(y, w).numpy()
    expected = np.stack([[x[:, i : i + 4, j : j + 4].sum((0, 1, 2)) for j in range(2)] for i in range(2)])
    np.testing.assert_allclose(found, np.repeat(expected[..., None], 4, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("window", "stride", "padding"), [(2, 2, "VALID"), (3, 2, "SAME"), ([2, 3], [1, 2], "SAME"), (2, 1, "SAME")])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pools(kind, window, stride, padding):
    x = values(2, 7, 6, 3) - 5.0  # below zero, so that zeros would be seen
    (h, w), (s, t) = ([n, n] if isinstance(n, int) else n for n in (window, stride))
    rows, cols = places(7, h, s, 1, padding), places(6, w, t, 1, padding)
    inside = lambda at, extent: [n for n in at if 0 <= n < extent]
    reduce = np.max if kind == "max" else np.mean
    expected = np.stack([[reduce(x[:, inside(r, 7)][:, :, inside(c, 6)], axis=(1, 2)) for c in cols] for r in rows])
    found = getattr(tf.nn, f"{kind}_pool2d")(x, window, stride, padding).numpy()
    np.testing.assert_allclose(found, np.moveaxis(expected, 2, 0), rtol=1e-5)


def test_a_network_of_tf_nn_is_that_of_layers():
    """The same bits, forward and backward, as Keras's layers over the same variables."""
    conv = tf.keras.layers.Conv2D(4, 3, padding="same", activation="relu")
    x = tf.constant(values(2, 6, 6, 3))
    with tf.GradientTape() as tape:
        y = tf.keras.layers.MaxPooling2D(2)(conv(x))
    of_layers = tape.gradient(y, conv.trainable_variables)
    kernel, bias = (tf.Variable(w) for w in conv.get_weights())
    with tf.GradientTape() as tape:
        z = tf.nn.max_pool2d(tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias)), 2, 2, "VALID")
    of_nn = tape.gradient(z, [kernel, bias])
    assert y.numpy().tobytes() == z.numpy().tobytes()
    # A Keras layer's variables lie with the outputs first.
    np.testing.assert_array_equal(np.moveaxis(of_layers[0].numpy(), 0, -1), of_nn[0].numpy())
    np.testing.assert_array_equal(of_layers[1].numpy(), of_nn[1].numpy())


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME", data_format="NCHW"), "channels are last here"),
        (lambda x, w: tf.nn.conv2d(x, w, 1, "FULL"), "there are 'VALID', 'SAME'"),
        (lambda x, w: tf.nn.conv2d(x, w, [2, 1, 1, 1], "SAME"), "those of batch and channels are 1"),
        (lambda x, w: tf.nn.conv2d(x[0], w, 1, "SAME"), "takes tensors with 4 axes"),
        (lambda x, w: tf.nn.conv2d(x[..., :2], w, 1, "SAME"), "2 channels are no multiple of the 3"),
        (lambda x, w: tf.nn.conv2d_transpose(x, w, [1, 9, 9, 3], 1, "SAME"), "output_shape"),
        (lambda x, w: tf.nn.max_pool2d(x[0], 2, 2, "VALID"), "pools take pictures"),
    ],
)
def test_what_cannot_be_is_said(call, says):
    with pytest.raises((ValueError, NotImplementedError), match=says):
        call(tf.ones([1, 4, 4, 3]), tf.ones([2, 2, 3, 3]))
