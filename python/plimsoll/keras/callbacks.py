"""Callbacks: objects that ``fit`` tells of epochs, and of batches where one of them has a method for batches.

Python does not run in a step unless a callback wants batches. What these here do, they do between epochs.
"""

import csv
import warnings
import weakref

from ..missing import missing as _missing


class Callback:
    """Something that is told how a run goes on."""

    params = None
    _model = staticmethod(lambda: None)

    def set_params(self, params):
        self.params = params

    def set_model(self, model):
        # A model knows its history, so a history that held its model would keep both alive.
        self._model = weakref.ref(model)

    @property
    def model(self):
        """The model of the run, as long as somebody holds it."""
        return self._model()

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "_model"}

    def on_train_begin(self, logs=None):
        pass

    def on_train_end(self, logs=None):
        pass

    def on_epoch_begin(self, epoch, logs=None):
        pass

    def on_epoch_end(self, epoch, logs=None):
        pass

    def on_train_batch_begin(self, batch, logs=None):
        pass

    def on_train_batch_end(self, batch, logs=None):
        pass

    def on_batch_begin(self, batch, logs=None):
        pass

    def on_batch_end(self, batch, logs=None):
        pass

    def _wants_batches(self):
        names = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
        return any(getattr(type(self), name, None) is not getattr(Callback, name) or name in vars(self) for name in names)


class CallbackList:
    """All callbacks of a run."""

    def __init__(self, callbacks, model, params):
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            callback.set_params(params)
            callback.set_model(model)
        self.wants_batches = any(getattr(c, "_wants_batches", lambda: True)() for c in self.callbacks)

    def tell(self, what, *arguments):
        for callback in self.callbacks:
            getattr(callback, what)(*arguments)

    def tell_batch(self, what, batch, logs):
        for callback in self.callbacks:
            getattr(callback, f"on_train_batch_{what}")(batch, logs)
            getattr(callback, f"on_batch_{what}", lambda *_: None)(batch, logs)


class History(Callback):
    """The numbers of all epochs, by name."""

    def __init__(self):
        self.history, self.epoch = {}, []

    def on_epoch_end(self, epoch, logs=None):
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)


class LambdaCallback(Callback):
    """Functions that are called: ``LambdaCallback(on_epoch_end=lambda epoch, logs: ...)``."""

    def __init__(self, **functions):
        for name, function in functions.items():
            if not hasattr(Callback, name):
                raise TypeError(f"a callback has no {name}")
            if function is not None:
                setattr(self, name, function)


class _Monitor(Callback):
    """What watches a number for becoming better."""

    def __init__(self, monitor, mode, min_delta=0.0, baseline=None):
        if mode not in ("auto", "min", "max"):
            raise ValueError(f"mode={mode!r}; there are auto, min and max")
        is_greater_better = mode == "max" or (mode == "auto" and monitor.endswith(("acc", "accuracy", "auc")))
        self.monitor, self.min_delta = monitor, abs(min_delta)
        self._sign = 1.0 if is_greater_better else -1.0
        self.best, self._baseline = baseline, baseline

    def _value(self, logs):
        if self.monitor not in (logs or {}):
            warnings.warn(f"there is no {self.monitor!r} to watch; there are {', '.join(logs or {})}", stacklevel=3)
            return None
        return logs[self.monitor]

    def _is_better(self, value):
        return self.best is None or self._sign * (value - self.best) > self.min_delta


class EarlyStopping(_Monitor):
    """Ends a run that does not get better."""

    def __init__(self, monitor="val_loss", min_delta=0, patience=0, verbose=0, mode="auto", baseline=None,
                 restore_best_weights=False, start_from_epoch=0):  # fmt: skip
        super().__init__(monitor, mode, min_delta, baseline)
        self.patience, self.verbose, self.start_from_epoch = patience, verbose, start_from_epoch
        self.restore_best_weights = restore_best_weights

    def on_train_begin(self, logs=None):
        self.wait, self.stopped_epoch, self.best_epoch, self.best_weights, self.best = 0, 0, 0, None, self._baseline

    def on_epoch_end(self, epoch, logs=None):
        value = self._value(logs)
        if value is None or epoch < self.start_from_epoch:
            return
        if self.restore_best_weights and self.best_weights is None:
            self.best_weights = self.model.get_weights()
        self.wait += 1
        if self._is_better(value):
            self.best, self.best_epoch, self.wait = value, epoch, 0
            if self.restore_best_weights:
                self.best_weights = self.model.get_weights()
        if self.wait >= self.patience and epoch > 0:
            self.stopped_epoch, self.model.stop_training = epoch, True

    def on_train_end(self, logs=None):
        if self.stopped_epoch and self.verbose:
            print(f"Epoch {self.stopped_epoch + 1}: early stopping")
        if self.restore_best_weights and self.best_weights is not None:
            self.model.set_weights(self.best_weights)


class ReduceLROnPlateau(_Monitor):
    """Smaller steps when a run does not get better."""

    def __init__(self, monitor="val_loss", factor=0.1, patience=10, verbose=0, mode="auto", min_delta=1e-4, cooldown=0,
                 min_lr=0.0):  # fmt: skip
        super().__init__(monitor, mode, min_delta)
        self.factor, self.patience, self.verbose, self.cooldown, self.min_lr = factor, patience, verbose, cooldown, min_lr

    def on_train_begin(self, logs=None):
        self.wait, self.cooldown_counter, self.best = 0, 0, None

    def on_epoch_end(self, epoch, logs=None):
        value = self._value(logs)
        if value is None:
            return
        if self.cooldown_counter:
            self.cooldown_counter, self.wait = self.cooldown_counter - 1, 0
        if self._is_better(value):
            self.best, self.wait = value, 0
        elif not self.cooldown_counter:
            self.wait += 1
            rate = float(self.model.optimizer.learning_rate)
            if self.wait >= self.patience and rate > self.min_lr:
                self.model.optimizer.learning_rate = max(rate * self.factor, self.min_lr)
                self.cooldown_counter, self.wait = self.cooldown, 0
                if self.verbose:
                    print(f"Epoch {epoch + 1}: ReduceLROnPlateau reducing learning rate to {self.model.optimizer.learning_rate}.")


class LearningRateScheduler(Callback):
    """A learning rate that a function of the epoch, and of the present rate, gives."""

    def __init__(self, schedule, verbose=0):
        self.schedule, self.verbose = schedule, verbose

    def on_epoch_begin(self, epoch, logs=None):
        rate = float(self.model.optimizer.learning_rate)
        try:
            rate = self.schedule(epoch, rate)
        except TypeError:
            rate = self.schedule(epoch)
        self.model.optimizer.learning_rate = float(rate)
        if self.verbose:
            print(f"Epoch {epoch + 1}: LearningRateScheduler setting learning rate to {float(rate)}.")

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs["learning_rate"] = float(self.model.optimizer.learning_rate)


class ModelCheckpoint(_Monitor):
    """Saves the weights after epochs, in a safetensors file. The name may have fields: ``{epoch:02d}-{val_loss:.2f}``."""

    def __init__(self, filepath, monitor="val_loss", verbose=0, save_best_only=False, save_weights_only=True, mode="auto",
                 save_freq="epoch", initial_value_threshold=None):  # fmt: skip
        if save_freq != "epoch" or not save_weights_only:
            raise NotImplementedError("ModelCheckpoint saves weights, after epochs: save_weights_only=True, save_freq='epoch'")
        super().__init__(monitor, mode, baseline=initial_value_threshold)
        self.filepath, self.verbose, self.save_best_only = str(filepath), verbose, save_best_only

    def on_epoch_end(self, epoch, logs=None):
        if self.save_best_only:
            value = self._value(logs)
            if value is None or not self._is_better(value):
                return
            self.best = value
        path = self.filepath.format(epoch=epoch + 1, **(logs or {}))
        self.model.save_weights(path)
        if self.verbose:
            print(f"Epoch {epoch + 1}: saving weights to {path}")


class CSVLogger(Callback):
    """The numbers of all epochs as a file of comma-separated values."""

    def __init__(self, filename, separator=",", append=False):
        self.filename, self.separator, self.append = filename, separator, append

    def on_train_begin(self, logs=None):
        self._file = open(self.filename, "a" if self.append else "w", newline="")
        self._writer = None

    def on_epoch_end(self, epoch, logs=None):
        row = {"epoch": epoch, **(logs or {})}
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, list(row), delimiter=self.separator)
            if not self._file.tell():
                self._writer.writeheader()
        self._writer.writerow(row)
        self._file.flush()

    def on_train_end(self, logs=None):
        self._file.close()


class TerminateOnNaN(Callback):
    """Nothing: a loss that is not a number ends every run here, with an error that says what causes it."""


__getattr__ = _missing("keras.callbacks")
