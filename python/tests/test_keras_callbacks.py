"""Callbacks: what they are told, and what they may do."""

import numpy as np
import plimsoll as tf
import pytest
from plimsoll import keras
from test_keras_fit import bits, blobs, compiled

X, Y = blobs(64)


class Told(keras.callbacks.Callback):
    def __init__(self):
        self.events = []

    def on_train_begin(self, logs=None):
        self.events.append("begin")

    def on_epoch_begin(self, epoch, logs=None):
        self.events.append(f"epoch {epoch}")

    def on_epoch_end(self, epoch, logs=None):
        self.events.append(f"end {epoch} {' '.join(logs)}")

    def on_train_end(self, logs=None):
        self.events.append("over")


def test_epochs_are_told_in_order():
    told = Told()
    model = compiled()
    model.fit(X, Y, epochs=3, initial_epoch=1, verbose=0, callbacks=[told])
    assert told.events == ["begin", "epoch 1", "end 1 loss accuracy", "epoch 2", "end 2 loss accuracy", "over"]
    assert told.params["epochs"] == 3 and told.params["steps"] == 2 and told.model is model


def test_batches_are_told_if_somebody_wants_them():
    events = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: events.append(("begin", batch)),
        on_train_batch_end=lambda batch, logs: events.append(("end", batch, sorted(logs))))  # fmt: skip
    compiled().fit(X, Y, batch_size=32, verbose=0, callbacks=[callback])
    names = ["accuracy", "loss"]
    assert events == [("begin", 0), ("end", 0, names), ("begin", 1), ("end", 1, names)]
    assert not Told()._wants_batches() and callback._wants_batches()


def test_what_a_callback_raises_comes_out_and_the_optimizer_is_back():
    model = compiled()

    def fail(epoch, logs):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        model.fit(X, Y, epochs=3, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=fail)])
    assert model.optimizer.iterations == 2
    model.fit(X, Y, verbose=0)


def test_what_an_iterable_raises_comes_out():
    def batches():
        yield X[:8], Y[:8]
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        compiled().fit(batches(), verbose=0)


def test_early_stopping_stops_and_restores():
    model = compiled(optimizer=keras.optimizers.SGD(0.0))
    stop = keras.callbacks.EarlyStopping("loss", patience=2, restore_best_weights=True)
    before = bits(model)
    history = model.fit(X, Y, epochs=10, verbose=0, callbacks=[stop])
    assert history.epoch == [0, 1, 2] and stop.stopped_epoch == 2 and bits(model) == before
    with pytest.warns(UserWarning, match="no 'val_loss' to watch; there are loss, accuracy"):
        model.fit(X, Y, verbose=0, callbacks=[keras.callbacks.EarlyStopping()])


def test_learning_rates_follow_callbacks_inside_a_run():
    model = compiled(optimizer=keras.optimizers.SGD(1.0))
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    history = model.fit(X, Y, epochs=3, verbose=0, callbacks=[schedule])
    assert history.history["learning_rate"] == [0.5, 0.25, 0.125]
    assert float(model.optimizer.learning_rate) == 0.125
    model = compiled(optimizer=keras.optimizers.SGD(0.0))
    model.optimizer.learning_rate.assign(1e-12)
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1)
    model.fit(X, Y, epochs=3, verbose=0, callbacks=[plateau])
    assert float(model.optimizer.learning_rate) == 2.5e-13


def test_a_rate_that_was_set_between_steps_is_used():
    def run(change):
        tf.random.set_seed(0)
        model = compiled(optimizer=keras.optimizers.SGD(0.1))
        model.fit(X, Y, batch_size=32, epochs=2, verbose=0, shuffle=False, callbacks=[change] if change else [])
        return model.get_weights()

    class Freeze(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.optimizer.learning_rate = 0.0

    tf.random.set_seed(0)
    one_step = compiled(optimizer=keras.optimizers.SGD(0.1))
    one_step.fit(X[:32], Y[:32], batch_size=32, verbose=0, shuffle=False)
    assert all(np.array_equal(a, b) for a, b in zip(run(Freeze()), one_step.get_weights()))


def test_weights_are_saved_and_epochs_logged(tmp_path):
    model = compiled()
    saved = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.safetensors", monitor="loss", save_best_only=True)
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[saved, log])
    assert (tmp_path / "log.csv").read_text().splitlines()[0] == "epoch,loss,accuracy"
    other = compiled()
    other.load_weights(tmp_path / "2.safetensors")
    assert bits(other) == bits(model)
    with pytest.raises(ValueError, match="safetensors here, not as HDF5"):
        model.save_weights("model.weights.h5")
