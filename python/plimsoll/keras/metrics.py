"""Metrics: numbers that are told of predictions, averaged over batches."""

from .. import _core
from ..dtypes import as_dtype
from ..missing import missing as _missing
from ..tensor import Variable
from .layers.base import as_tensor, refuse


class Metric:
    """A number that is told of predictions: what it has seen, since the last reset.

    One of the user's own has ``update_state`` and ``result``, and ``add_weight`` for what it has seen."""

    _kind, _number, _shown = None, 0.0, None

    def __init__(self, name=None, dtype=None):
        self.name = name or self._shown or self._kind or type(self).__name__.lower()
        self._weights = []
        self._make()

    def add_weight(self, shape=(), initializer="zeros", dtype=None, name=None):
        """A variable that is not trained, and begins anew at each reset."""
        if initializer not in (None, "zeros"):
            raise NotImplementedError(f"initializer={initializer!r}; what a metric has seen begins at zeros")
        weight = Variable(_core.full([int(n) for n in shape], 0.0, as_dtype(dtype or "float32").name), False, name=name or "weight")
        self._weights.append(weight)
        return weight

    variables = property(lambda self: list(self._weights))

    def __getstate__(self):
        # What it has seen is not kept: a copy begins anew.
        return {name: value for name, value in vars(self).items() if name != "_native"}

    def __setstate__(self, kept):
        vars(self).update(kept)
        self._make()

    def _make(self):
        if self._kind is not None:
            self._native = _core.keras.Metric(self._kind, float(self._number))

    def update_state(self, y_true, y_pred, sample_weight=None):
        weights = None if sample_weight is None else as_tensor(sample_weight)
        self._native.update(as_tensor(y_true), as_tensor(y_pred), weights)

    def result(self):
        return as_tensor(self._native.result())

    def reset_state(self):
        if self._kind is not None:
            self._native.reset()
        for weight in self._weights:
            weight.assign(_core.full(weight._shape, 0.0, weight._dtype))

    reset_states = property(lambda self: self.reset_state)

    def __call__(self, *args, **kwargs):
        self.update_state(*args, **kwargs)
        return self.result()

    def _of_run(self):
        return self._kind, float(self._number)


class Mean(Metric):
    """The mean of numbers."""

    _shown = "mean"

    def _make(self):
        self._native = _core.keras.MeanOfValues()

    def update_state(self, values, sample_weight=None):
        weights = None if sample_weight is None else as_tensor(sample_weight)
        self._native.update(as_tensor(values), weights)

    def reset_state(self):
        self._native.reset()

    def _of_run(self):
        raise ValueError("tf.keras.metrics.Mean is of numbers, not of labels and predictions; it is for loops of one's own")


def _plain(cls_name, kind):
    return type(cls_name, (Metric,), {"_kind": kind, "__doc__": f"Keras's ``{cls_name}``."})


Accuracy = _plain("Accuracy", "accuracy")
CategoricalAccuracy = _plain("CategoricalAccuracy", "categorical_accuracy")
SparseCategoricalAccuracy = _plain("SparseCategoricalAccuracy", "sparse_categorical_accuracy")
MeanSquaredError = _plain("MeanSquaredError", "mean_squared_error")
MeanAbsoluteError = _plain("MeanAbsoluteError", "mean_absolute_error")


class BinaryAccuracy(Metric):
    """How often a prediction is on the right side of a threshold."""

    _kind = "binary_accuracy"

    def __init__(self, name=None, dtype=None, threshold=0.5):
        self._number = float(threshold)
        super().__init__(name, dtype)


class TopKCategoricalAccuracy(Metric):
    """How often the right class is among the k that are predicted most."""

    _kind = "top_k_categorical_accuracy"

    def __init__(self, k=5, name=None, dtype=None):
        self._number = int(k)
        super().__init__(name, dtype)


class SparseTopKCategoricalAccuracy(TopKCategoricalAccuracy):
    _kind = "sparse_top_k_categorical_accuracy"


def _one_threshold(metric, thresholds, top_k, class_id):
    if top_k is not None or class_id is not None or isinstance(thresholds, (list, tuple)) and len(thresholds) != 1:
        raise NotImplementedError(f"{metric} is of all places at one threshold; it has no top_k, no class_id and no list of thresholds")
    if isinstance(thresholds, (list, tuple)):
        thresholds = thresholds[0]
    return 0.5 if thresholds is None else float(thresholds)


class Precision(Metric):
    """How many of the places that are said to be positive are so."""

    _kind = "precision"

    def __init__(self, thresholds=None, top_k=None, class_id=None, name=None, dtype=None):
        self._number = _one_threshold(type(self).__name__, thresholds, top_k, class_id)
        super().__init__(name, dtype)


class Recall(Precision):
    """How many of the positive places are said to be so."""

    _kind = "recall"


class AUC(Metric):
    """The area under the curve of "ROC", or of precision over recall, "PR"."""

    _kind = "auc"

    def __init__(self, num_thresholds=200, curve="ROC", summation_method="interpolation", name=None, dtype=None, thresholds=None,
                 multi_label=False, num_labels=None, label_weights=None, from_logits=False):  # fmt: skip
        if curve not in ("ROC", "PR"):
            raise ValueError(f"curve={curve!r}; there are 'ROC' and 'PR'")
        refused = {"summation_method": (summation_method, "interpolation"), "thresholds": (thresholds, None),
                   "multi_label": (multi_label, False), "num_labels": (num_labels, None), "label_weights": (label_weights, None),
                   "from_logits": (from_logits, False)}  # fmt: skip
        refuse("AUC", **refused)
        self._number = int(num_thresholds)
        if curve == "PR":
            self._kind = "auc_of_precision_and_recall"
        super().__init__(name or "auc", dtype)


_CLASSES = [Accuracy, BinaryAccuracy, CategoricalAccuracy, SparseCategoricalAccuracy, TopKCategoricalAccuracy,
            SparseTopKCategoricalAccuracy, MeanSquaredError, MeanAbsoluteError, Precision, Recall, AUC]  # fmt: skip
_BY_NAME = {name: cls for cls in _CLASSES for name in (cls._kind, cls.__name__)}
_SHORT = {"mse": MeanSquaredError, "MSE": MeanSquaredError, "mae": MeanAbsoluteError, "MAE": MeanAbsoluteError}
_AUTOMATIC = ("accuracy", "acc")


def get(identifier, labels, outputs):
    """The metric of a name, for labels and outputs of these shapes of examples: "accuracy" is that of the kind of labels."""
    if isinstance(identifier, str):
        if identifier in _AUTOMATIC:
            made = _accuracy(labels, outputs)()
        elif identifier in _BY_NAME or identifier in _SHORT:
            made = (_BY_NAME | _SHORT)[identifier]()
        else:
            raise ValueError(f"there is no metric {identifier!r}; there are accuracy, {', '.join(c._kind for c in _CLASSES[1:])}")
        made.name = identifier
        return made
    if isinstance(identifier, type):
        return identifier()
    return identifier


def _accuracy(labels, outputs):
    if list(outputs[-1:]) == [1] or not outputs:
        return BinaryAccuracy
    return CategoricalAccuracy if list(labels) == list(outputs) else SparseCategoricalAccuracy


def of_run(metric, output):
    """A metric as a run takes it: its kind, or a function of labels and predictions, its number, and the output it is of."""
    if isinstance(metric, Metric):
        kind, number = metric._of_run()
        if kind is None:
            raise NotImplementedError(
                f"{type(metric).__name__} is a metric of Python's own; the steps of fit take those of tf.keras.metrics, and functions of "
                "labels and predictions, whose mean they tell"
            )
        return kind, number, output
    return metric, 0.0, output


def is_own(metric):
    """Whether it is of a class of the user's, which Python computes after each batch."""
    return isinstance(metric, Metric) and metric._kind is None and not isinstance(metric, Mean)


def name_of(metric):
    return metric.name if isinstance(metric, Metric) else getattr(metric, "__name__", "metric")


__getattr__ = _missing("keras.metrics")
