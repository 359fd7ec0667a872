"""Losses: objects that are called with labels and predictions, and functions of the same names."""

from .. import _core
from ..missing import missing as _missing
from .layers.base import as_tensor


class Loss:
    """How far predictions are from labels. A loss of one's own has ``call(y_true, y_pred)``."""

    _kind = None

    def __init__(self, name=None, reduction="sum_over_batch_size", dtype=None):
        if reduction not in ("sum_over_batch_size", "auto", "mean", "none", None):
            raise NotImplementedError(f"reduction={reduction!r}; there are 'sum_over_batch_size' and 'none'")
        self.name, self._is_reduced = name or self._kind or type(self).__name__, reduction not in ("none", None)

    def call(self, y_true, y_pred):
        raise NotImplementedError(f"{type(self).__name__} has no method call")

    def __call__(self, y_true, y_pred, sample_weight=None):
        losses = as_tensor(self.call(as_tensor(y_true), as_tensor(y_pred)))
        if sample_weight is not None:
            losses = losses * as_tensor(sample_weight)
        return _core.reduce("mean", losses, None, False) if self._is_reduced else losses

    def _of_run(self):
        return self.call


class _Native(Loss):
    def __init__(self, options, name, reduction, dtype):
        super().__init__(name, reduction, dtype)
        self._options = options
        self._native = _core.keras.Loss(self._kind, options)

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "_native"}

    def __setstate__(self, kept):
        vars(self).update(kept)
        self._native = _core.keras.Loss(self._kind, self._options)

    def call(self, y_true, y_pred):
        return self._native.call(as_tensor(y_true), as_tensor(y_pred), None, False)

    def __call__(self, y_true, y_pred, sample_weight=None):
        weights = None if sample_weight is None else as_tensor(sample_weight)
        return self._native.call(as_tensor(y_true), as_tensor(y_pred), weights, self._is_reduced)

    def _of_run(self):
        return self._native


class MeanSquaredError(_Native):
    _kind = "mean_squared_error"

    def __init__(self, reduction="sum_over_batch_size", name=None, dtype=None):
        super().__init__({}, name, reduction, dtype)


class MeanAbsoluteError(MeanSquaredError):
    _kind = "mean_absolute_error"


class Huber(_Native):
    _kind = "huber"

    def __init__(self, delta=1.0, reduction="sum_over_batch_size", name=None, dtype=None):
        super().__init__({"delta": float(delta)}, name, reduction, dtype)


def _check_axis(axis):
    if axis != -1:
        raise NotImplementedError("the classes are along the last axis")


class BinaryCrossentropy(_Native):
    _kind = "binary_crossentropy"

    def __init__(self, from_logits=False, label_smoothing=0.0, axis=-1, reduction="sum_over_batch_size", name=None,
                 dtype=None):  # fmt: skip
        _check_axis(axis)
        options = {"from_logits": bool(from_logits), "label_smoothing": float(label_smoothing)}
        super().__init__(options, name, reduction, dtype)


class CategoricalCrossentropy(BinaryCrossentropy):
    _kind = "categorical_crossentropy"


class SparseCategoricalCrossentropy(_Native):
    _kind = "sparse_categorical_crossentropy"

    def __init__(self, from_logits=False, ignore_class=None, reduction="sum_over_batch_size", axis=-1, name=None,
                 dtype=None):  # fmt: skip
        _check_axis(axis)
        super().__init__({"from_logits": bool(from_logits), "ignore_class": ignore_class}, name, reduction, dtype)


def _function(cls):
    def apply(y_true, y_pred, **options):
        return cls(reduction="none", **options)(y_true, y_pred)

    apply.__name__ = cls._kind
    apply._loss = cls
    return apply


_CLASSES = [MeanSquaredError, MeanAbsoluteError, Huber, BinaryCrossentropy, CategoricalCrossentropy, SparseCategoricalCrossentropy]
_BY_NAME = {name: cls for cls in _CLASSES for name in (cls._kind, cls.__name__)}
_BY_NAME |= {"mse": MeanSquaredError, "MSE": MeanSquaredError, "mae": MeanAbsoluteError, "MAE": MeanAbsoluteError}
globals().update({cls._kind: _function(cls) for cls in _CLASSES})
mse, MSE, mae, MAE = (globals()[cls._kind] for cls in (MeanSquaredError,) * 2 + (MeanAbsoluteError,) * 2)


def get(identifier):
    """The loss of a name or class; a loss, or any function of labels and predictions, as it is."""
    if isinstance(identifier, str):
        if identifier not in _BY_NAME:
            raise ValueError(f"there is no loss {identifier!r}; there are {', '.join(sorted(set(c._kind for c in _CLASSES)))}")
        return _BY_NAME[identifier]()
    if hasattr(identifier, "_loss"):
        return identifier._loss()
    return identifier() if isinstance(identifier, type) else identifier


def of_run(loss):
    """A loss as a run takes it: a native one, or a function."""
    return loss._of_run() if isinstance(loss, Loss) else loss


__getattr__ = _missing("keras.losses")
