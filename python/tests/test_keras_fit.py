"""`fit`, `evaluate` and `predict`: the framework's train loop under Keras's names."""

import os
import signal
import sys

import numpy as np
import plimsoll as tf
import pytest
from conftest import in_use
from plimsoll import keras
from plimsoll.keras import layers


def blobs(n=200, classes=3, width=8):
    generator = np.random.default_rng(0)
    y = generator.integers(0, classes, n)
    return (generator.standard_normal((n, width)) + 2.0 * y[:, None]).astype("float32"), y


def classifier(**options):
    return keras.Sequential([
        layers.Dense(16, activation="relu", input_shape=(8,)), layers.Dense(3, activation="softmax")], **options)  # fmt: skip


def compiled(model=None, **options):
    model = model or classifier()
    model.compile(**{"optimizer": "adam", "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **options})
    return model


def bits(model):
    return [array.tobytes() for array in model.get_weights()]


def test_a_model_learns_and_the_history_tells(capsys):
    x, y = blobs()
    model = compiled(optimizer=keras.optimizers.Adam(0.02))
    history = model.fit(x, y, epochs=12, validation_split=0.25, verbose=0)
    assert list(history.history) == ["loss", "accuracy", "val_loss", "val_accuracy"]
    assert history.epoch == list(range(12)) and model.history is history
    assert history.history["accuracy"][-1] > 0.9 and history.history["val_accuracy"][-1] > 0.9
    loss, accuracy = model.evaluate(x, y, verbose=0)
    assert model.evaluate(x, y, verbose=0, return_dict=True) == {"loss": loss, "accuracy": accuracy}
    said = model.predict(x, batch_size=64)
    assert said.shape == (200, 3) and said.dtype == np.float32
    assert np.mean(said.argmax(-1) == y) == pytest.approx(accuracy)
    assert said.tobytes() == model(x).numpy().tobytes()
    assert capsys.readouterr().out == ""


def test_the_loss_of_an_epoch_counts_every_example_once():
    x, y = blobs(50)
    model = compiled(optimizer=keras.optimizers.SGD(0.0))
    history = model.fit(x, y, batch_size=32, verbose=0)
    assert history.history["loss"][0] == pytest.approx(model.evaluate(x, y, verbose=0)[0], rel=1e-6)


def test_what_is_printed(capsys):
    x, y = blobs(64)
    model = compiled()
    model.fit(x, y, epochs=2, batch_size=32, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Epoch 1/2" and lines[1].startswith("2/2 - ") and " - loss: " in lines[1] and " - accuracy: " in lines[1]
    model.fit(x, y, batch_size=32)
    printed = capsys.readouterr().out
    assert printed.startswith("Epoch 1/1\n") and "2/2 ━━━━━━━━━━━━━━━━━━━━ " in printed
    model.evaluate(x, y)
    assert capsys.readouterr().out.startswith("loss: ")


def test_a_model_without_a_shape_is_built_by_its_first_batch():
    x, y = blobs()
    model = compiled(keras.Sequential([layers.Dense(4), layers.Dense(3, activation="softmax")]))
    assert not model.built and model.weights == []
    model.fit(x, y, verbose=0)
    assert model.built and [w.shape for w in model.weights] == [(8, 4), (4,), (4, 3), (3,)]
    with pytest.raises(AttributeError, match="has not been built"):
        keras.Sequential([layers.Dense(4)]).output_shape


@pytest.mark.parametrize("how", ["list", "generator", "endless", "tensors"])
def test_batches_of_an_iterable_train_as_arrays_do(how):
    x, y = blobs(96)
    batches = [(x[i : i + 32], y[i : i + 32]) for i in range(0, 96, 32)]

    def endless():
        while True:
            yield from batches

    tf.random.set_seed(0)
    expected = compiled()
    expected.fit(x, y, epochs=2, batch_size=32, shuffle=False, verbose=0)
    tf.random.set_seed(0)
    model = compiled()
    if how == "list":
        model.fit(batches, epochs=2, verbose=0)
    elif how == "generator":
        model.fit((batch for batch in batches + batches), epochs=2, steps_per_epoch=3, verbose=0)
    elif how == "endless":
        model.fit(endless(), epochs=2, steps_per_epoch=3, verbose=0)
    else:
        model.fit(tf.constant(x), tf.constant(y), epochs=2, batch_size=32, shuffle=False, verbose=0)
    assert bits(model) == bits(expected)


def test_shuffling_changes_the_order_and_a_seed_fixes_it():
    x, y = blobs()
    runs = []
    for seed, shuffle in ((1, True), (1, True), (1, False)):
        keras.utils.set_random_seed(seed)
        model = compiled()
        model.fit(x, y, epochs=2, shuffle=shuffle, verbose=0)
        runs.append(bits(model))
    assert runs[0] == runs[1] != runs[2]


def test_an_optimizer_is_one_object_for_fit_and_for_loops():
    x, y = blobs(64)
    optimizer = keras.optimizers.Adam(0.01)
    model = compiled(optimizer=optimizer)
    model.fit(x, y, batch_size=32, verbose=0)
    assert optimizer.iterations == 2
    with tf.GradientTape() as tape:
        loss = keras.losses.SparseCategoricalCrossentropy()(y, model(x, training=True))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    assert optimizer.iterations == 3
    assert sorted(v.name for v in optimizer.variables)[0].startswith("optimizer.control")


def test_fit_train_step_and_a_bare_tape_give_the_same_bits():
    x, y = blobs(64)

    class Own(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    def made(cls):
        tf.random.set_seed(0)
        model = cls([layers.Dense(16, activation="relu", input_shape=(8,)), layers.Dropout(0.2), layers.Dense(3)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        tf.random.set_seed(1)
        return model

    native, own, bare = made(keras.Sequential), made(Own), made(keras.Sequential)
    tf.random.set_seed(1)
    first = native.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    tf.random.set_seed(1)
    own.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    tf.random.set_seed(1)
    for step in range(12):
        at = step % 4 * 16
        with tf.GradientTape() as tape:
            loss = bare.compute_loss(y=y[at : at + 16], y_pred=bare(x[at : at + 16], training=True))
        bare.optimizer.apply_gradients(zip(tape.gradient(loss, bare.trainable_variables), bare.trainable_variables))
    assert bits(native) == bits(own) == bits(bare)
    assert len(first.history["loss"]) == 3


def test_sample_weights_weigh():
    x, y = blobs(64)
    weights = np.where(y == 0, 0.0, 1.0).astype("float32")
    model = compiled(optimizer=keras.optimizers.SGD(0.0), metrics=[])
    weighted = model.fit(x, y, sample_weight=weights, batch_size=64, verbose=0).history["loss"][0]
    each = keras.losses.sparse_categorical_crossentropy(y, model(x)).numpy()
    assert weighted == pytest.approx(float(np.mean(each * weights)), rel=1e-5)


def test_losses_and_metrics_of_pythons_own():
    x, y = blobs(64)
    calls = []

    def loss(y_true, y_pred):
        calls.append(y_true.shape)
        return tf.reduce_mean(tf.square(tf.one_hot(y_true, 3) - y_pred), axis=-1)

    def error(y_true, y_pred):
        return tf.reduce_mean(tf.abs(tf.one_hot(y_true, 3) - y_pred), axis=-1)

    model = compiled(loss=loss, metrics=[error])
    history = model.fit(x, y, batch_size=16, epochs=5, verbose=0)
    assert list(history.history) == ["loss", "error"]
    assert history.history["loss"][-1] < history.history["loss"][0]
    # It is called when a step is recorded, and not for each of the twenty.
    assert len(calls) <= 3


def test_regularizers_are_part_of_the_loss():
    x, y = blobs(64)
    plain = compiled(metrics=[])
    penalised = keras.Sequential([
        layers.Dense(16, activation="relu", input_shape=(8,), kernel_regularizer=keras.regularizers.L2(0.1)),
        layers.Dense(3, activation="softmax", kernel_regularizer="l1")])  # fmt: skip
    compiled(penalised, metrics=[])
    penalised.set_weights(plain.get_weights())
    kernels = [penalised.layers[0].kernel.numpy(), penalised.layers[1].kernel.numpy()]
    expected = 0.1 * np.square(kernels[0]).sum() + 0.01 * np.abs(kernels[1]).sum()
    assert float(sum(penalised.losses)) == pytest.approx(float(expected), rel=1e-5)
    difference = penalised.evaluate(x, y, verbose=0) - plain.evaluate(x, y, verbose=0)
    assert difference == pytest.approx(float(expected), rel=1e-4)


def test_an_array_that_does_not_fit_is_refused_by_name():
    x, y = blobs(64)
    with pytest.raises(ValueError, match="as many examples"):
        compiled().fit(x, y[:10], verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="batch 1 of epoch 1"):
        compiled().fit(x[:, :5], y, verbose=0)
    with pytest.raises(ValueError, match="has not been compiled"):
        classifier().fit(x, y)


def test_what_fit_takes_it_gives_back():
    x, y = blobs()
    before = in_use()
    model = compiled()
    model.fit(x, y, epochs=2, verbose=0)
    held = in_use()
    model.fit(x, y, epochs=2, verbose=0)
    assert in_use() == held
    parameters = sum(w.numpy().nbytes for w in model.weights)
    rows = tf.stats()["rows"]
    assert rows["parameters"] == parameters and rows["data"] == 0 and rows["graph"] == 0
    del model
    assert in_use() == before


def test_a_plan_is_the_run_to_the_byte():
    x, y = blobs(300)
    for options in ({}, {"validation_split": 0.3}, {"validation_data": blobs(70)}):
        for limit in (None, "8MiB"):
            tf.limit(limit)
            model = compiled(keras.Sequential([
                layers.Dense(256, activation="relu", input_shape=(8,)), layers.BatchNormalization(), layers.Dense(3)]),
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))  # fmt: skip
            plan = model.plan(x, y, batch_size=64, epochs=3, **options)
            tf.trim()
            tf.reset_peaks()
            model.fit(x, y, batch_size=64, epochs=3, verbose=0, **options)
            stats = tf.stats()
            assert plan.peak_bytes == stats["peak_in_use"]
            assert plan.fits and plan.committed_bytes <= stats["peak_committed"] and plan.limit == stats["limit"]
            assert sum(plan.owners.values()) == plan.peak_bytes
            assert "in use at a time" in str(plan)
            del model


def test_a_limit_that_cannot_be_kept_is_refused_before_the_first_step():
    x, y = blobs(4096)
    model = compiled(keras.Sequential([layers.Dense(2048, activation="relu", input_shape=(8,)), layers.Dense(3, activation="softmax")]))
    before = bits(model)
    with tf.limit("2MiB"):
        with pytest.raises(tf.errors.ResourceExhaustedError):
            model.fit(x, y, batch_size=4096, verbose=0)
    assert bits(model) == before


def test_the_same_bits_under_a_limit():
    x, y = blobs(1024)
    runs = {}
    for limit in (None, "18MiB"):
        tf.random.set_seed(3)
        tf.limit(limit)
        model = keras.Sequential([layers.Dense(512, activation="tanh", input_shape=(8,)), *(
            layer for _ in range(6) for layer in (layers.Dense(256, activation="tanh"), layers.Dropout(0.1))), layers.Dense(3)])  # fmt: skip
        compiled(model, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        tf.trim()
        tf.reset_peaks()
        model.fit(x, y, batch_size=1024, epochs=2, verbose=0)
        runs[limit] = (bits(model), tf.stats()["peak_committed"])
        tf.limit(None)
        del model
    assert runs[None][0] == runs["18MiB"][0]
    assert runs["18MiB"][1] <= 18 << 20 < runs[None][1]


def test_every_byte_has_a_line_of_this_file():
    x, y = blobs()
    lines = __file__
    model = compiled(keras.Sequential([
        layers.Dense(16, activation="relu", input_shape=(8,)),
        layers.Dense(3, activation="softmax")]))  # fmt: skip
    model.fit(x, y, verbose=0)
    rows = tf.report().rows
    assert {row[0] for row in rows} == {"parameters", "optimizer"}
    assert all(row[3] == lines for row in rows), rows
    with open(lines) as file:
        text = file.read().splitlines()
    described = sorted({text[row[4] - 1].strip() for row in rows if row[0] == "parameters"})
    assert described == ['layers.Dense(16, activation="relu", input_shape=(8,)),',
                         'layers.Dense(3, activation="softmax")]))  # fmt: skip']  # fmt: skip
    assert {text[row[4] - 1].strip() for row in rows if row[0] == "optimizer"} == {"model.fit(x, y, verbose=0)"}


def test_python_does_not_run_in_a_steady_step():
    def calls_of(n):
        x, y = blobs(n)
        model = compiled()
        model.fit(x, y, batch_size=8, verbose=0)
        calls = []
        sys.setprofile(lambda frame, event, argument: calls.append(event))
        try:
            model.fit(x, y, batch_size=8, verbose=0)
        finally:
            sys.setprofile(None)
        return len(calls)

    assert calls_of(800) == calls_of(80)


def test_ctrl_c_is_seen_within_a_step_and_the_model_can_go_on():
    x, y = blobs(64)
    model = compiled()
    seen = []

    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)
            if len(seen) == 3:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, batch_size=8, epochs=5, verbose=0, callbacks=[Interrupt()])
    assert len(seen) <= 4
    assert model.optimizer.iterations <= 4
    model.fit(x, y, verbose=0)


def test_a_dataset_without_python_in_it_is_read_natively():
    x, y = blobs()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    models = [compiled(), compiled()]
    models[1].set_weights(models[0].get_weights())
    models[0].fit(dataset, epochs=2, verbose=0)
    models[1].fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    assert bits(models[0]) == bits(models[1])
    prepared = keras.training.prepare(models[0], keras.data.adapt(dataset))
    assert isinstance(prepared.native(), tf._core.Dataset)
    # A map is Python's, and so are its batches; the numbers are the same.
    mapped = dataset.map(lambda x, y: (x, y))
    models[0].fit(mapped, verbose=0)
    models[1].fit(x, y, batch_size=32, shuffle=False, verbose=0)
    assert bits(models[0]) == bits(models[1])
    assert keras.training.prepare(models[0], keras.data.adapt(mapped)).native() is not None
