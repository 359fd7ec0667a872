"""The runs behind ``fit``, ``evaluate``, ``predict`` and ``plan``.

``fit`` is one call of the framework's ``Trainer``, without the GIL; an observer is told of epochs. A model that has a
``train_step`` of its own is trained by a loop in Python, with the same callbacks.
"""

import numpy as np

from .. import _core
from ..memory import parse_bytes
from ..tape import GradientTape
from ..tensor import Value
from . import losses, metrics, twins
from .callbacks import CallbackList, History
from .data import Arrays, adapt, unpack
from .layers.base import as_tensor, as_tensors
from .progress import Progress
from .structure import leaves, map_structure
from .tensors import to_numpy

PROGRESS_MS = 100


class Compiled:
    """What ``compile`` was told: losses and metrics, for one output or for several."""

    def __init__(self, loss, weights, asked_metrics):
        self.loss, self.weights, self.asked_metrics = loss, weights, asked_metrics
        self.objects = None

    def _per_output(self, model, given, default=None):
        """What is said of each output, by name or place: (key of the output, its name, what is said)."""
        outputs = model._native.output_shapes()
        names = model.output_names
        if isinstance(outputs, dict):
            given = given if isinstance(given, dict) else dict(zip(outputs, given)) if isinstance(given, (list, tuple)) else given
            return [(name, name, given.get(name, default) if isinstance(given, dict) else given) for name in outputs]
        if isinstance(given, dict):
            given = [given.get(name, default) for name in names]
        given = given if isinstance(given, (list, tuple)) else [given] * len(outputs)
        return [(str(place), name, said) for place, (name, said) in enumerate(zip(names, given))]

    def of_run(self, model):
        """The loss as a run takes it."""
        if self.loss is None:
            raise ValueError(f"{model.name} was compiled without a loss")
        if isinstance(model._native.output_shapes(), list):
            return losses.of_run(self.loss[0] if isinstance(self.loss, tuple) else self.loss)
        weights = self._per_output(model, self.weights if self.weights is not None else 1.0, 1.0)
        said = self._per_output(model, self.loss)
        return [(key, float(weight), losses.of_run(loss)) for (key, _, loss), (_, _, weight) in zip(said, weights) if loss]

    def metrics_of_run(self, model, labels):
        """The metrics as a run takes them, and their names."""
        outputs = model._native.output_shapes()
        shapes = map_structure(lambda tensor: list(tensor._shape[1:]), labels)
        if isinstance(outputs, list):
            asked = list(leaves(self.asked_metrics))
            found = [metrics.get(metric, shapes if isinstance(shapes, list) else [], outputs) for metric in asked]
            return [metrics.of_run(metric, None) for metric in found], [metrics.name_of(metric) for metric in found]
        of_run, names = [], []
        for key, name, asked in self._per_output(model, self.asked_metrics or None, None):
            part = outputs[key] if isinstance(outputs, dict) else outputs[int(key)]
            of_labels = shapes[key] if isinstance(shapes, dict) else shapes[int(key)]
            for metric in leaves(asked if asked is not None else []):
                found = metrics.get(metric, of_labels, part)
                of_run.append(metrics.of_run(found, key))
                names.append(f"{name}_{metrics.name_of(found)}")
        return of_run, names

    def of(self, y_true, y_pred, sample_weight=None):
        """The loss of labels and predictions, in a loop of one's own."""
        if isinstance(y_pred, Value):
            loss = self.loss[0] if isinstance(self.loss, tuple) else self.loss
            return _called(loss, y_true, y_pred, sample_weight)
        total = None
        pairs = [(y_true[k], y_pred[k]) for k in y_pred] if isinstance(y_pred, dict) else list(zip(y_true, y_pred))
        said = [self.loss[k] for k in y_pred] if isinstance(self.loss, dict) else list(leaves(self.loss)) * len(pairs)
        for (labels, predictions), loss in zip(pairs, said):
            part = _called(loss, labels, predictions, sample_weight)
            total = part if total is None else total + part
        return total

    def total(self, model, y_true, y_pred, sample_weight=None):
        loss = self.of(y_true, y_pred, sample_weight)
        for penalty in model.losses:
            loss = loss + penalty
        return loss


def _called(loss, y_true, y_pred, sample_weight):
    if isinstance(loss, losses.Loss):
        return loss(y_true, y_pred, sample_weight)
    found = as_tensor(loss(as_tensor(y_true), as_tensor(y_pred)))
    if sample_weight is not None:
        found = found * as_tensor(sample_weight)
    return _core.reduce("mean", found, None, False)


def metric_objects(model):
    """The metrics of a model that are objects: compiled ones, and attributes."""
    found = [value for value in vars(model).values() if isinstance(value, metrics.Metric)]
    compiled = model._compiled
    if compiled is None:
        return found
    return found + [m for m in compiled.objects or [] if isinstance(m, metrics.Metric) and m not in found]


def update_metrics(model, y_true, y_pred):
    """Tells the compiled metrics of a batch, in a loop of one's own; returns what they say."""
    compiled = model._compiled
    if compiled is None or not isinstance(y_pred, Value):
        return {}
    if compiled.objects is None:
        labels, outputs = as_tensor(y_true)._shape[1:], y_pred._shape[1:]
        compiled.objects = [metrics.get(metric, labels, outputs) for metric in leaves(compiled.asked_metrics)]
    objects = [metric for metric in compiled.objects if isinstance(metric, metrics.Metric)]
    for metric in objects:
        metric.update_state(y_true, y_pred)
    return {metric.name: float(metric.result()) for metric in objects}


def prepare(model, data):
    """Builds the model for data, if it is not built; gives them as it takes them."""
    x, _ = data.example()
    if isinstance(data, Arrays):
        data.parts = (model._by_place(data.parts[0]), *(_arranged(model, part) for part in data.parts[1:]))
        x = data.parts[0]
    shapes = map_structure(lambda tensor: list(tensor._shape[1:]), x)
    model._ensure_native(shapes, [leaf._dtype for leaf in leaves(x)])
    return data.prepared(model)


def _arranged(model, labels):
    """Labels by name as a tuple, where the model gives a tuple."""
    outputs = model.outputs
    names = model.output_names if isinstance(outputs, (list, tuple)) else None
    return model._by_place(labels, names) if names else labels


def penalties(model):
    """The penalties of regularizers, by the names of variables in the model."""
    pairs = model._penalties()
    names = model._native.names_of([weight for weight, _ in pairs])
    return [(name, regularizer.l1, regularizer.l2) for name, (_, regularizer) in zip(names, pairs) if name is not None]


class _Observer:
    """What a run tells, for the callbacks of Keras."""

    def __init__(self, model, callbacks, progress, names, epochs, n_batches):
        self.model, self.callbacks, self.progress, self.names = model, callbacks, progress, names
        self.first, self.last = epochs
        self.n_batches = n_batches
        self._seen = 0

    def begin(self, epoch):
        self.progress.epoch_begins(epoch)
        self.callbacks.tell("on_epoch_begin", epoch, {})
        if self.callbacks.wants_batches:
            self.callbacks.tell_batch("begin", 0, {})

    def logs(self, loss, values, prefix=""):
        return {f"{prefix}{name}": value for name, value in zip(["loss", *self.names], [loss, *values])}

    def on_progress(self, batch, n_batches, loss, values):
        self.progress.moves(batch, n_batches, self.logs(loss, values))

    def on_batch(self, batch, n_batches, loss, values):
        self._seen = batch + 1
        self.callbacks.tell_batch("end", batch, self.logs(loss, values))
        if not self.model.stop_training and batch + 1 != n_batches:
            self.callbacks.tell_batch("begin", batch + 1, {})
        return self.model.stop_training

    def on_epoch(self, epoch, loss, values, held_out):
        logs = self.logs(loss, values)
        if held_out is not None:
            logs |= self.logs(*held_out, prefix="val_")
        epoch += self.first
        self.progress.epoch_ends(self.n_batches or self._seen or 1, logs)
        self.callbacks.tell("on_epoch_end", epoch, logs)
        if not self.model.stop_training and epoch + 1 < self.last:
            self.begin(epoch + 1)
        return self.model.stop_training


def fit(model, x, y, batch_size, epochs, verbose, callbacks, validation_split, validation_data, shuffle, sample_weight,
        initial_epoch, steps_per_epoch, validation_steps, validation_batch_size, class_weight):  # fmt: skip
    compiled = model._compiled_or_raise()
    sample_weight = weights_of(class_weight, y, sample_weight)
    data = adapt(x, y, sample_weight, batch_size, shuffle, steps_per_epoch)
    held_out = None
    if validation_data is not None:
        held_out = _held_out(validation_data, validation_batch_size or batch_size, validation_steps)
    elif validation_split:
        if not isinstance(data, Arrays):
            raise ValueError("validation_split is for arrays; an iterable is told by validation_data")
        data, held_out = data.split(validation_split)
    data = prepare(model, data)
    held_out = None if held_out is None else prepare(model, held_out)
    verbose = 1 if verbose == "auto" else int(verbose)
    history = History()
    params = {"epochs": epochs, "verbose": verbose, "steps": _n_batches(data, steps_per_epoch)}
    callbacks = CallbackList([*(callbacks or []), history], model, params)
    model.stop_training, model.history = False, history
    progress = Progress(verbose, epochs)
    callbacks.tell("on_train_begin", {})
    if _has_own_step(model) or _is_evaluated_by_steps(model) and (held_out is not None or _has_own_metrics(model)):
        _fit_by_steps(model, data, held_out, (initial_epoch, epochs), callbacks, progress, params["steps"])
    elif initial_epoch < epochs:
        _, labels = data.example()
        of_run, names = compiled.metrics_of_run(model, labels)
        observer = _Observer(model, callbacks, progress, names, (initial_epoch, epochs), params["steps"])
        model.optimizer._restore(model.trainable_variables)
        run = {
            "model": model._native, "optimizer": model.optimizer._native, "loss": compiled.of_run(model),
            "penalties": penalties(model), "metrics": of_run, "data": data.native(steps_per_epoch),
            "held_out": None if held_out is None else held_out.native(validation_steps), "epochs": epochs - initial_epoch,
            "observer": observer, "per_batch": callbacks.wants_batches, "progress": PROGRESS_MS if verbose == 1 else None,
        }  # fmt: skip
        observer.begin(initial_epoch)
        if not model.stop_training:
            _core.keras.fit(run)
    callbacks.tell("on_train_end", {})
    return history


def _held_out(given, batch_size, steps):
    if isinstance(given, (list, tuple)) and len(given) in (2, 3):
        return adapt(*unpack(given), batch_size=batch_size, steps=steps)
    return adapt(given, batch_size=batch_size, steps=steps)


def _n_batches(data, steps):
    known = data.n_batches() if isinstance(data, Arrays) else data.n_batches
    return known if steps is None else steps


def evaluate(model, x, y, batch_size, verbose, sample_weight, steps, return_dict):
    model._compiled_or_raise()
    logs = evaluate_prepared(model, prepare(model, adapt(x, y, sample_weight, batch_size, False, steps)), steps)
    if verbose in (1, 2, "auto"):
        print(" - ".join(f"{name}: {value:.4f}" for name, value in logs.items()))
    if return_dict:
        return logs
    values = list(logs.values())
    return values[0] if len(values) == 1 else values


def predict(model, x, batch_size, steps):
    data = adapt(x, None, None, batch_size, False, steps)
    if isinstance(data, Arrays):
        data = prepare(model, data)
        return map_structure(to_numpy, model._native.predict(data.parts[0], data.batch_size))
    outputs = [model(inputs, training=False) for inputs, _, _ in data.batches()]
    parts = [leaves(map_structure(to_numpy, output)) for output in outputs]
    joined = iter([np.concatenate(part) for part in zip(*parts)])
    return map_structure(lambda _: next(joined), outputs[0])


def plan(model, x, y, batch_size, epochs, validation_split, validation_data, shuffle, sample_weight, validation_batch_size, as_,
         limit):  # fmt: skip
    compiled = model._compiled_or_raise()
    if _has_own_step(model) or _is_evaluated_by_steps(model):
        raise ValueError(
            f"{model.name} has a train_step, a test_step or metrics of its own, whose steps run eagerly: no plan can promise what they need"
        )
    data = adapt(x, y, sample_weight, batch_size, shuffle)
    if not isinstance(data, Arrays):
        raise ValueError("a plan needs arrays: their shapes say what a run with them will need")
    held_out = None
    if validation_data is not None:
        held_out = prepare(model, _held_out(validation_data, validation_batch_size or batch_size, None))
    elif validation_split:
        data, held_out = data.split(validation_split)
    data = prepare(model, data)
    of_run, _ = compiled.metrics_of_run(model, data.parts[1])
    alive = []
    return _core.keras.plan({
        "build": lambda: twins.built(model, alive), "optimizer": model.optimizer._native, "loss": compiled.of_run(model),
        "penalties": penalties(model), "metrics": of_run, "data": data.planned(),
        "held_out": None if held_out is None else held_out.planned(), "epochs": epochs, "as_device": as_,
        "limit": None if limit is None else parse_bytes(limit)})  # fmt: skip


# Weights of classes.


def weights_of(class_weight, y, sample_weight):
    """The weights of examples, with those of their classes; a class that is not named has weight 1."""
    if class_weight is None:
        return sample_weight
    if not isinstance(y, (np.ndarray, Value, list)):
        raise NotImplementedError("class_weight is for labels in an array; batches of an iterable may be (inputs, labels, weights)")
    classes = np.asarray(y)
    if classes.ndim > 1:
        classes = classes.argmax(-1) if classes.shape[-1] > 1 else classes[..., 0]
    if classes.ndim != 1:
        raise ValueError(f"class_weight needs one class for each example, and the labels are of shape {np.shape(y)}")
    weights = np.array([class_weight.get(int(c), 1.0) for c in classes], dtype="float32")
    return weights if sample_weight is None else weights * np.asarray(sample_weight, dtype="float32")


# Steps in Python.


def _has_own_step(model):
    from .model import Model

    return type(model).train_step is not Model.train_step


def _has_own_metrics(model):
    return any(metrics.is_own(metric) for metric in leaves(model._compiled.asked_metrics))


def _is_evaluated_by_steps(model):
    """Whether what is told of data is computed by Python: by a ``test_step`` or metrics of the user's own."""
    from .model import Model

    return type(model).test_step is not Model.test_step or _has_own_metrics(model)


def train_step(model, data):
    """A step as ``fit`` makes it, in Python: what a ``train_step`` of one's own may call."""
    x, y, sample_weight = unpack(data)
    with GradientTape() as tape:
        y_pred = model(x, training=True)
        loss = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        scaled = model.optimizer.scale_loss(loss)
    variables = model.trainable_variables
    model.optimizer.apply_gradients(zip(tape.gradient(scaled, variables), variables))
    return {"loss": loss, **model.compute_metrics(x, y, y_pred, sample_weight)}


def test_step(model, data):
    """The loss and the metrics of one batch, in Python: what a ``test_step`` of one's own may call."""
    x, y, sample_weight = unpack(data)
    y_pred = model(x, training=False)
    loss = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=False)
    return {"loss": loss, **model.compute_metrics(x, y, y_pred, sample_weight)}


def train_on_batch(model, x, y, sample_weight, return_dict):
    batch = tuple(as_tensors(part) for part in (x, y, sample_weight) if part is not None)
    logs = {name: float(value) for name, value in model.train_step(batch).items()}
    return logs if return_dict else logs["loss"] if len(logs) == 1 else list(logs.values())


def _fit_by_steps(model, data, held_out, epochs, callbacks, progress, n_batches):
    observer = _Observer(model, callbacks, progress, [], epochs, n_batches)
    for epoch in range(*epochs):
        if model.stop_training:
            break
        progress.epoch_begins(epoch)
        callbacks.tell("on_epoch_begin", epoch, {})
        model.reset_metrics()
        logs, told = {}, _Told(_has_own_step(model))
        for batch, parts in enumerate(_batches(data, epoch)):
            if callbacks.wants_batches:
                callbacks.tell_batch("begin", batch, {})
            logs = told.of(model.train_step(parts), parts)
            observer._seen = batch + 1
            if callbacks.wants_batches:
                callbacks.tell_batch("end", batch, logs)
            if model.stop_training:
                break
        if held_out is not None:
            found = evaluate_prepared(model, held_out)
            logs |= {f"val_{name}": value for name, value in found.items()}
        progress.epoch_ends(n_batches or observer._seen or 1, logs)
        callbacks.tell("on_epoch_end", epoch, logs)


def _batches(data, epoch):
    if isinstance(data, Arrays):
        # Inputs without labels come by themselves, as in Keras.
        yield from (parts if len(parts) > 1 else parts[0] for parts in data.batches())
    else:
        for x, y, weights in data.epoch(epoch):
            yield (x, y) if weights is None else (x, y, weights)


class _Told:
    """What steps tell of an epoch. A step of the user's own says what it has seen so far; of others the loss is that of a batch, and the
    mean over all examples is told."""

    def __init__(self, is_own):
        self._is_own, self._total, self._n = is_own, 0.0, 0

    def of(self, logs, parts):
        logs = {name: float(value) for name, value in logs.items()}
        if not self._is_own:
            n = leaves(parts)[0]._shape[0]
            self._total, self._n = self._total + n * logs["loss"], self._n + n
            logs["loss"] = self._total / self._n
        return logs


def _evaluate_by_steps(model, data, steps):
    from .model import Model

    model.reset_metrics()
    logs, told = {}, _Told(type(model).test_step is not Model.test_step)
    for number, parts in enumerate(_batches(data, 0)):
        if number == steps:
            break
        logs = told.of(model.test_step(parts), parts)
    return logs


def evaluate_prepared(model, data, steps=None):
    """The loss and metrics on data that are as the model takes them."""
    compiled = model._compiled_or_raise()
    if _is_evaluated_by_steps(model):
        return _evaluate_by_steps(model, data, steps)
    _, labels = data.example()
    of_run, names = compiled.metrics_of_run(model, labels)
    loss, values = _core.keras.evaluate({"model": model._native, "loss": compiled.of_run(model), "penalties": penalties(model),
                                         "metrics": of_run, "data": data.native(steps)})  # fmt: skip
    return dict(zip(["loss", *names], [loss, *values]))
