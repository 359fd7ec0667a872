"""``Model``: layers that are trained together. Put together from symbolic tensors, or a subclass with ``call``.

``fit`` of such a model is the framework's train loop: see ``training``.
"""

import os


from . import context, data, losses, optimizers, summary, symbolic, training
from .layers.base import Layer, as_tensors
from .structure import example_shapes, leaves, map_structure
from .tensors import to_numpy


class Model(Layer):
    """A layer that can be trained: ``Model(inputs, outputs)`` of symbolic tensors, or a subclass with ``call``."""

    def __init__(self, inputs=None, outputs=None, name=None, **common):
        super().__init__(name=name, **common)
        self.optimizer = self.loss = None
        self.stop_training = self.run_eagerly = False
        self._compiled = None
        self._graph = None
        if inputs is not None:
            if outputs is None:
                raise ValueError("Model(inputs, outputs): the outputs are missing")
            self._graph = symbolic.Graph(inputs, outputs)
            self._native = self._graph.build()
            self.built = True

    # Calling.

    _is_network = property(lambda self: self._graph is not None)

    def __call__(self, inputs, *args, training=None, mask=None, **kwargs):
        if not self._is_network:
            given = {name: value for name, value in (("training", training), ("mask", mask)) if value is not None}
            return super().__call__(inputs, *args, **given, **kwargs)
        inputs = self._by_place(inputs)
        if symbolic.is_symbolic(inputs):
            return symbolic.call(self, inputs)
        inputs = as_tensors(inputs)
        self._forget_added()
        self._ensure_native(example_shapes(inputs), [leaf._dtype for leaf in leaves(inputs)])
        training = context.training() if training is None else training
        return self._native.forward(data.as_model_takes(self, inputs), bool(training))

    def call(self, inputs, training=None):
        if self._is_network:
            return Model.__call__(self, inputs, training=training)
        return super().call(inputs)

    def _ensure_native(self, shapes, tensor_dtypes):
        if self._graph is None:
            super()._ensure_native(shapes, tensor_dtypes)
        elif self._native is None:
            self._native, self.built = self._graph.build(), True

    def build(self, input_shape=None):
        """Builds the model for inputs of a shape, of which the first extent is that of the batch."""
        if self._is_network and input_shape is not None and self._native is None:
            self._ensure_native([int(n) for n in tuple(input_shape)[1:]], ["float32"])

    def _by_place(self, structure, names=None):
        """A dictionary as a tuple, where the graph has a tuple of that names."""
        of_graph = self._graph.inputs if self._graph is not None else None
        if names is None and isinstance(of_graph, (list, tuple)):
            names = [x.name for x in leaves(of_graph)]
        if isinstance(structure, dict) and names and set(structure) == set(names):
            return tuple(structure[name] for name in names)
        return structure

    @property
    def layers(self):
        return list(self._graph.layers) if self._graph is not None else self._layers_inside()

    def _layers_inside(self):
        return list(self._graph.layers) if self._graph is not None else super()._layers_inside()

    def _own_weights(self):
        return [] if self._is_network else super()._own_weights()

    @property
    def inputs(self):
        return self._graph.inputs if self._graph is not None else None

    @property
    def outputs(self):
        return self._graph.outputs if self._graph is not None else None

    @property
    def output_names(self):
        """The names of the outputs: those of a dictionary, or of the layers that give them."""
        outputs = self.outputs
        if isinstance(outputs, dict):
            return list(outputs)
        if isinstance(outputs, (list, tuple)):
            return [x.call.layer.name if x.call else x.name for x in leaves(outputs)]
        return [self.layers[-1].name] if self.layers else []

    def get_layer(self, name=None, index=None):
        if index is not None:
            return self.layers[index]
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise ValueError(f"there is no layer {name!r}; there are {', '.join(layer.name for layer in self.layers)}")

    # Training.

    def compile(self, optimizer="rmsprop", loss=None, loss_weights=None, metrics=None, weighted_metrics=None,
                run_eagerly=False, steps_per_execution=1, jit_compile="auto", auto_scale_loss=True):  # fmt: skip
        """Says how the model is trained."""
        if weighted_metrics:
            raise NotImplementedError("weighted_metrics are not there; metrics count all examples the same")
        self.optimizer = optimizers.get(optimizer)
        self.loss = loss
        if self.run_eagerly != bool(run_eagerly) and not self._is_network:
            self._native = None  # it is recorded otherwise
        self.run_eagerly = bool(run_eagerly)
        self._compiled = training.Compiled(map_structure(losses.get, loss), loss_weights, metrics or [])

    def fit(self, x=None, y=None, batch_size=None, epochs=1, verbose="auto", callbacks=None, validation_split=0.0,
            validation_data=None, shuffle=True, class_weight=None, sample_weight=None, initial_epoch=0, steps_per_epoch=None,
            validation_steps=None, validation_batch_size=None, validation_freq=1):  # fmt: skip
        """Trains the model; returns the history of its numbers."""
        if validation_freq != 1:
            raise NotImplementedError("fit has no validation_freq: a callback may call evaluate after some epochs")
        return training.fit(self, x, y, batch_size, epochs, verbose, callbacks, validation_split, validation_data, shuffle,
                            sample_weight, initial_epoch, steps_per_epoch, validation_steps, validation_batch_size,
                            class_weight)  # fmt: skip

    def evaluate(self, x=None, y=None, batch_size=None, verbose="auto", sample_weight=None, steps=None, callbacks=None,
                 return_dict=False):  # fmt: skip
        """The loss and the metrics of the model on some data."""
        return training.evaluate(self, x, y, batch_size, verbose, sample_weight, steps, return_dict)

    def predict(self, x, batch_size=None, verbose="auto", steps=None, callbacks=None):
        """The outputs for any number of inputs, as arrays."""
        return training.predict(self, x, batch_size, steps)

    def predict_on_batch(self, x):
        return map_structure(to_numpy, self(x, training=False))

    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, return_dict=False):
        """One step with one batch; returns its loss, and metrics."""
        return training.train_on_batch(self, x, y, training.weights_of(class_weight, y, sample_weight), return_dict)

    def test_on_batch(self, x, y=None, sample_weight=None, return_dict=False):
        n = leaves(as_tensors(x))[0]._shape[0]
        return training.evaluate(self, x, y, n, 0, sample_weight, None, return_dict)

    def train_step(self, data):
        """One step of training with a batch: what a subclass may say otherwise."""
        return training.train_step(self, data)

    def test_step(self, data):
        """What is told of one batch without training: what a subclass may say otherwise."""
        return training.test_step(self, data)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """The loss of what the model said, with the penalties of regularizers."""
        return self._compiled_or_raise().total(self, y, y_pred, sample_weight)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Tells the compiled metrics of a batch; returns what they say since the last reset."""
        return training.update_metrics(self, y, y_pred)

    def compiled_loss(self, y_true, y_pred, sample_weight=None, regularization_losses=None):
        """Keras 2's name: the loss without penalties, and those that it is given."""
        total = self._compiled_or_raise().of(y_true, y_pred, sample_weight)
        for loss in regularization_losses or []:
            total = total + loss
        return total

    @property
    def metrics(self):
        """The metrics that were compiled and are objects, and those that are attributes."""
        return training.metric_objects(self)

    def reset_metrics(self):
        for metric in self.metrics:
            metric.reset_state()

    def plan(self, x, y=None, batch_size=None, epochs=1, validation_split=0.0, validation_data=None, shuffle=True,
             sample_weight=None, validation_batch_size=None, as_=None, limit=None):  # fmt: skip
        """What ``fit`` with these arguments will need, to the byte, in a process of its own: nothing is computed.

        ``as_`` names a model of GPU, such as "h200", which need not be there: the plan is then that of model and data on it. ``limit`` is one to plan
        for instead of the present one; for a GPU that is what its driver leaves of its memory."""
        return training.plan(self, x, y, batch_size, epochs, validation_split, validation_data, shuffle, sample_weight,
                             validation_batch_size, as_, limit)  # fmt: skip

    def _compiled_or_raise(self):
        if self._compiled is None:
            raise ValueError(f"{self.name} has not been compiled: call compile(optimizer, loss) first")
        return self._compiled

    # Copies and pickles.

    def __getstate__(self):
        kept = {name: value for name, value in super().__getstate__().items() if name != "history"}
        if self._graph is None and self._native is not None:
            kept["_kept_shapes"] = (self._native.input_shapes(), self._native.input_dtypes())
        return kept

    def __setstate__(self, kept):
        kept = dict(kept)
        shapes = kept.pop("_kept_shapes", None)
        super().__setstate__(kept)
        if self._graph is not None:
            self._native = self._graph.build()
        elif shapes is not None:
            self._ensure_native(*shapes)

    # Files and tables.

    def save_weights(self, filepath, overwrite=True, **_):
        """Writes the weights into a safetensors file."""
        path = _weights_path(filepath)
        if not overwrite and os.path.exists(path):
            raise FileExistsError(f"{path} is there already")
        self._built_native().save_weights(path)

    def load_weights(self, filepath, **_):
        """Reads the weights from a safetensors file."""
        self._built_native().load_weights(_weights_path(filepath))

    def save(self, filepath, **_):
        raise NotImplementedError("a model is saved by its weights, save_weights('model.safetensors'), or pickled as a whole")

    def summary(self, line_length=None, positions=None, print_fn=None, batch_size=1, **_):
        """Prints the layers, their shapes and weights, and the bytes that each keeps for backward at a batch."""
        (print_fn or print)(summary.text(self, batch_size))


def _weights_path(filepath):
    path = os.fspath(filepath)
    if path.endswith((".h5", ".hdf5", ".keras")):
        raise ValueError(
            f"{path}: weights are saved as safetensors here, not as HDF5; use a name such as {path.split('.')[0]}.safetensors"
        )
    return path


