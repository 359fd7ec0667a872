"""Layers and models that TensorFlow's values are recorded of, written once for both: ``tf`` is TensorFlow or Plimsoll."""

import numpy as np

N_STEPS = 50


def layers(tf):
    """Layers with the shape of their input: floats, or (shape, number of ids) of whole numbers."""
    of = tf.keras.layers
    return {
        "dense": (of.Dense(4, activation="gelu"), (3, 5)),
        "dense_softmax": (of.Dense(4, activation="softmax"), (3, 5)),
        "conv1d": (of.Conv1D(4, 3, padding="same", activation="relu"), (2, 7, 3)),
        "conv2d": (of.Conv2D(4, (3, 2), strides=2, padding="same"), (2, 7, 6, 3)),
        "conv2d_groups": (of.Conv2D(4, 3, groups=2), (2, 5, 5, 4)),
        "conv2d_dilated": (of.Conv2D(3, 3, dilation_rate=2), (2, 7, 7, 2)),
        "conv1d_transpose": (of.Conv1DTranspose(3, 4, strides=2), (2, 5, 2)),
        "conv2d_transpose": (of.Conv2DTranspose(3, 3, strides=2, padding="same"), (2, 4, 4, 2)),
        "depthwise_conv2d": (of.DepthwiseConv2D(3, depth_multiplier=2), (2, 5, 5, 3)),
        "simple_rnn": (of.SimpleRNN(4, return_sequences=True), (2, 5, 3)),
        "lstm": (of.LSTM(4), (2, 5, 3)),
        "lstm_sequences": (of.LSTM(4, return_sequences=True), (2, 5, 3)),
        "gru": (of.GRU(4, return_sequences=True), (2, 5, 3)),
        "batch_normalization": (of.BatchNormalization(), (4, 3)),
        "layer_normalization": (of.LayerNormalization(), (4, 3)),
        "group_normalization": (of.GroupNormalization(groups=2), (2, 5, 4)),
        "rms_normalization": (of.RMSNormalization(), (4, 3)),
        "embedding": (of.Embedding(7, 3), ((2, 4), 7)),
        "max_pooling2d": (of.MaxPooling2D(2), (2, 6, 6, 2)),
        "average_pooling2d": (of.AveragePooling2D((2, 3)), (2, 6, 6, 2)),
        "global_average_pooling2d": (of.GlobalAveragePooling2D(), (2, 3, 4, 2)),
        "reshape": (of.Reshape((2, -1)), (2, 6)),
        "flatten": (of.Flatten(), (2, 3, 2)),
        "bidirectional": (of.Bidirectional(of.LSTM(4, return_sequences=True)), (2, 5, 3)),
        "bidirectional_sum": (of.Bidirectional(of.GRU(3), merge_mode="sum"), (2, 5, 3)),
        "bidirectional_product": (of.Bidirectional(of.SimpleRNN(3, return_sequences=True), merge_mode="mul"), (2, 5, 3)),
    }


def attention(tf):
    """Attention layers, and what they are called with: a sequence, or two; causal or not."""
    made = tf.keras.layers.MultiHeadAttention
    return {
        "self_attention": (made(2, 3), [(2, 5, 6)], {}),
        "causal_attention": (made(2, 3, use_bias=False), [(2, 5, 6)], {"use_causal_mask": True}),
        "cross_attention": (made(2, 3), [(2, 5, 6), (2, 4, 8)], {}),
    }


def metrics(tf):
    """Metrics of what is positive and what is not."""
    of = tf.keras.metrics
    return {
        "precision": of.Precision(), "precision_at": of.Precision(thresholds=0.7), "recall": of.Recall(), "recall_at": of.Recall(0.2),
        "auc": of.AUC(), "auc_few": of.AUC(num_thresholds=11), "auc_pr": of.AUC(curve="PR"), "auc_pr_few": of.AUC(num_thresholds=7, curve="PR"),
    }  # fmt: skip


def truths(seed=11, n=60):
    """Batches of labels, probabilities that tell something of them, and weights or none."""
    generator = np.random.default_rng(seed)
    batches = []
    for is_weighted in (False, True):
        labels = generator.integers(0, 2, (n, 1)).astype("float32")
        chances = np.clip(0.5 * labels + generator.uniform(0, 0.6, (n, 1)), 0, 1).astype("float32")
        batches.append((labels, chances, generator.uniform(0.5, 2.0, n).astype("float32") if is_weighted else None))
    return batches


def random_input(shape, seed):
    """What goes into a layer."""
    generator = np.random.default_rng(seed)
    if isinstance(shape[0], tuple):
        return generator.integers(0, shape[1], shape[0])
    return generator.standard_normal(shape).astype("float32")


def random_weights(shapes, seed):
    """Values for weights; those of one axis are near one, so that they can be variances."""
    generator = np.random.default_rng(seed)
    return [generator.uniform(0.5, 1.5, s) if len(s) == 1 else 0.5 * generator.standard_normal(s) for s in shapes]


def dense(tf):
    of = tf.keras.layers
    model = tf.keras.Sequential([of.Dense(64, activation="relu", input_shape=(20,)), of.Dense(32, activation="tanh"), of.Dense(3)])
    return model, (20,), None


def conv(tf):
    of = tf.keras.layers
    model = tf.keras.Sequential([
        of.Conv2D(8, 3, activation="relu", padding="same", input_shape=(12, 12, 2)), of.MaxPooling2D(2),
        of.Conv2D(16, 3, activation="relu"), of.GlobalAveragePooling2D(), of.Dense(3)])  # fmt: skip
    return model, (12, 12, 2), None


def lstm(tf):
    of = tf.keras.layers
    model = tf.keras.Sequential([
        tf.keras.Input((9,), dtype="int32"), of.Embedding(30, 12), of.LSTM(16, return_sequences=True), of.LSTM(16),
        of.Dense(3)])  # fmt: skip
    return model, (9,), 30


def transformer(tf):
    of = tf.keras.layers
    tokens = tf.keras.Input((8,), dtype="int32")
    x = of.Embedding(30, 16)(tokens)
    for _ in range(2):
        normed = of.LayerNormalization()(x)
        x = of.Add()([x, of.MultiHeadAttention(2, 8)(normed, normed)])
        x = of.Add()([x, of.Dense(16)(of.Dense(32, activation="gelu")(of.LayerNormalization()(x)))])
    x = of.GlobalAveragePooling1D()(of.LayerNormalization()(x))
    return tf.keras.Model(tokens, of.Dense(3)(x)), (8,), 30


MODELS = {"dense": dense, "conv": conv, "lstm": lstm, "transformer": transformer}


def examples(shape, n_ids, n=64):
    """What a model is trained on: a batch, and one of three classes for each example."""
    generator = np.random.default_rng(7)
    if n_ids is None:
        x = generator.standard_normal((n, *shape))
    else:
        x = generator.integers(0, n_ids, (n, *shape))
    return x, generator.integers(0, 3, n)


def start(model, seed=3):
    """Gives a model weights that both frameworks can be given."""
    generator = np.random.default_rng(seed)
    shapes = [w.shape for w in model.get_weights()]
    model.set_weights([
        (1.0 if len(s) == 1 else 0.0) * generator.uniform(0.9, 1.1, s) if len(s) == 1 else
        generator.standard_normal(s) / np.sqrt(max(np.prod(s[:-1]), 1)) for s in shapes])  # fmt: skip


def optimizer(tf):
    """By which the models are trained. TensorFlow's Adam squares the parts of an embedding's gradient one by one, and computes
    its corrections in float32, so it is no yardstick."""
    return tf.keras.optimizers.SGD(0.05, momentum=0.9)
