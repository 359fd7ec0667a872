"""``Layer``: what all layers have, and what layers of one's own are written with.

A layer that is shipped is described natively and built when the shape of its input is known. One of the user's own has ``build``,
``add_weight`` and ``call`` in Python. Both have ``_native``, the framework's built layer, which models are put together from.
"""

import inspect
import weakref

import numpy as np

from ... import _core, array_ops, dtypes
from ...missing import INSTEAD, message
from ...tensor import Value, Variable, convert_to_tensor
from .. import context, initializers, layouts, mixed_precision, naming, pickling, regularizers, symbolic
from ..structure import example_shapes, leaves, map_shapes, map_structure, with_batch


def as_tensor(value, floats="float32"):
    """A tensor; numpy's double precision becomes the precision of layers, as in Keras."""
    if isinstance(value, Value):
        return value
    array = np.asarray(value)
    return convert_to_tensor(array, floats if array.dtype == np.float64 else None)


def as_tensors(structure):
    """The structure with tensors at its leaves; a list of numbers is a tensor."""
    if isinstance(structure, (list, tuple)) and all(isinstance(leaf, (int, float, bool)) for leaf in leaves(structure)):
        return as_tensor(structure)
    return map_structure(as_tensor, structure)


class Layer:
    """A function with weights. A layer of one's own has ``call``, and ``build`` for weights that depend on the input's shape."""

    _kind = None

    def __init__(self, *, activity_regularizer=None, trainable=True, dtype=None, autocast=True, name=None, input_shape=None,
                 input_dim=None, batch_input_shape=None, **unknown):  # fmt: skip
        if unknown:
            raise ValueError(f"{type(self).__name__} has no argument {', '.join(unknown)}")
        if activity_regularizer is not None:
            raise NotImplementedError("activity_regularizer is not there; add the penalty to the loss")
        self._given_name = name
        self.name = name or naming.automatic(type(self))
        self.dtype_policy = mixed_precision.of_layer(dtype)
        self.built = False
        self._trainable = bool(trainable)
        self._place = _core.keras.user_line()
        self._native = self._seen = self._gives = None
        self._weights = []
        self._regularized, self._added = [], []
        self._n_before_build = None
        if batch_input_shape is not None:
            input_shape = batch_input_shape[1:]
        if input_dim is not None:
            input_shape = (input_dim,)
        self._given_input_shape = None if input_shape is None else [int(n) for n in input_shape]

    # What a layer of one's own says.

    def build(self, input_shape):
        """Makes weights that depend on the shape of the input, of which the first extent is None."""

    def call(self, inputs):
        raise NotImplementedError(f"{type(self).__name__} has no method call")

    def add_weight(self, shape=None, initializer=None, dtype=None, trainable=True, autocast=True, regularizer=None,
                   constraint=None, aggregation=None, name=None, **unknown):  # fmt: skip
        """Makes a weight."""
        if isinstance(shape, str):  # Keras 2 had the name first.
            name, shape, initializer = shape, initializer, dtype if not isinstance(dtype, (str, dtypes.DType)) else None
            dtype = None
        if constraint is not None or unknown:
            raise NotImplementedError(f"add_weight has no {', '.join(unknown) or 'constraint'}")
        policy = self.dtype_policy
        dtype = dtypes.as_dtype(dtype or policy.variable_dtype)
        initializer = initializer or ("glorot_uniform" if dtype.is_floating else "zeros")
        value = initializers.value(initializer, [int(n) for n in shape or ()], dtype)
        weight = Variable(value, trainable and self._trainable, name=name or f"weight_{len(self._weights)}")
        if dtype.is_floating and trainable and policy.compute_dtype != dtype.name:
            weight = _core.keras.mixed(weight, policy.compute_dtype)
        self._weights.append(weight)
        if regularizer is not None:
            self._regularized.append((weight, regularizers.get(regularizer)))
        return weight

    def add_loss(self, losses):
        """Adds a number, or several, to the loss of the batch that the layer is being called for; called inside ``call``.

        In ``fit`` and ``evaluate`` it is part of the loss. In a loop of one's own it is among ``losses`` until the next call.
        """
        for loss in leaves(losses):
            loss = as_tensor(loss)
            if not _core.keras.add_loss(loss):
                context.note_added()
                self._added.append(loss)

    # Calling.

    def _forget_added(self):
        """Forgets what was added in the last call, at the beginning of another one that no layer makes."""
        if context.has_added() and context.training() is None:
            self._drop_added()

    def _drop_added(self):
        self._added = []
        for layer in self._layers_inside():
            layer._drop_added()

    def __call__(self, inputs, *args, **kwargs):
        if symbolic.is_symbolic(inputs):
            if args or any(value is not None for name, value in kwargs.items() if name != "training"):
                raise NotImplementedError(f"{self.name} is given arguments besides its inputs, which a graph of layers cannot hold")
            return symbolic.call(self, inputs)
        inputs = as_tensors(inputs)
        self._forget_added()
        self._ensure_built(example_shapes(inputs))
        outputs = self._call(inputs, *args, **kwargs)
        if self._seen is None and all(isinstance(leaf, Value) and leaf._shape for leaf in leaves((inputs, outputs))):
            self._seen = (example_shapes(inputs), example_shapes(outputs))
        return outputs

    def _ensure_built(self, shapes):
        if not self.built:
            self._n_before_build = len(self._weights), len(self._regularized)
            self.build(with_batch(shapes))
            self.built = True

    def _call(self, inputs, *args, training=None, **kwargs):
        training = context.training() if training is None else bool(training)
        if "training" in inspect.signature(self.call).parameters:
            kwargs["training"] = bool(training)
        with context.calling(training):
            return self.call(map_structure(self._autocast, inputs), *args, **kwargs)

    def _autocast(self, tensor):
        return array_ops.cast(tensor, self.compute_dtype) if tensor.dtype.is_floating else tensor

    # The native layer.

    def _ensure_native(self, shapes, tensor_dtypes):
        """Builds the native layer for examples of these shapes. The call is tried once, on one example of zeros, so that layers
        that it makes or builds are there and the shape of what it gives is known."""
        if self._native is not None:
            return
        remaining = iter(tensor_dtypes)
        tried = map_shapes(lambda shape: array_ops.zeros([1, *shape], next(remaining)), shapes)
        self._ensure_built(shapes)
        outputs = as_tensors(self._call(tried, training=False))
        self._drop_added()
        self._gives = [leaf._dtype for leaf in leaves(outputs)]
        self._make_native(example_shapes(tried), example_shapes(outputs))

    def _make_native(self, shapes, outputs):
        parts = self._layers_inside()
        for part in parts:
            if part._native is None and part._seen is not None:
                part._make_native(*part._seen)
            if part._native is None:
                raise ValueError(f"{self.name} has the layer {part.name}, which its call does not call")
        weights = [(self._local_name(weight), weight) for weight in self._own_weights()]
        self._native = _core.keras.Model.python(
            self._given_name or naming.kind_of(type(self)), weakref.ref(self), shapes, outputs, weights, [part._native for part in parts],
            not getattr(self, "run_eagerly", False), self._place)  # fmt: skip
        # In a run, the layers inside are parts of this one.
        for part, native in zip(parts, self._native.parts()):
            part._native = native

    def _call_in_run(self, inputs, training):
        return as_tensors(self._call(inputs, training=training))

    def _local_name(self, weight):
        for name, value in vars(self).items():
            if value is weight and weight._name in ("Variable", ""):
                return name
        return weight._name.rsplit(".", 1)[-1]

    def _layers_inside(self):
        """The layers that are attributes, or in lists and dicts that are."""
        found = []
        for name, value in vars(self).items():
            if name != "_graph":
                found += [leaf for leaf in leaves(value) if isinstance(leaf, Layer) and leaf not in found]
        return found

    def _own_weights(self):
        """The weights that were added, and variables that are attributes."""
        found = list(self._weights)
        for name, value in vars(self).items():
            if name != "_weights" and not name.startswith("_regularized"):
                for leaf in leaves(value) if isinstance(value, (list, tuple, dict)) else [value]:
                    if isinstance(leaf, Variable) and not any(leaf is known for known in found):
                        found.append(leaf)
        return found

    # Weights.

    @property
    def weights(self):
        found = []
        for weight in [*self._own_weights(), *(w for layer in self._layers_inside() for w in layer.weights)]:
            if not any(weight is known for known in found):
                found.append(weight)
        return found

    @property
    def trainable_weights(self):
        return [weight for weight in self.weights if weight.trainable]

    @property
    def non_trainable_weights(self):
        return [weight for weight in self.weights if not weight.trainable]

    variables = property(lambda self: self.weights)
    trainable_variables = property(lambda self: self.trainable_weights)
    non_trainable_variables = property(lambda self: self.non_trainable_weights)

    def get_weights(self):
        """The values of the weights as arrays, in Keras's layouts. Under a mixed policy they are those in full precision."""
        own = [np.asarray(_core.keras.master(weight)) for weight in self._own_weights()]
        inside = [array for layer in self._layers_inside() for array in layer.get_weights()]
        return [*layouts.to_keras(self, own), *inside]

    def set_weights(self, weights):
        """Gives the weights the values of arrays in Keras's layouts."""
        rest = self._take_weights([np.asarray(array) for array in weights])
        if rest:
            raise ValueError(f"{self.name} was given {len(weights)} arrays and has {len(weights) - len(rest)} weights")

    def _take_weights(self, arrays):
        expected = layouts.to_keras(self, [np.broadcast_to(np.uint8(0), w._shape) for w in self._own_weights()])
        own, rest = arrays[: len(expected)], arrays[len(expected) :]
        if [a.shape for a in own] != [e.shape for e in expected]:
            raise ValueError(
                f"{self.name} has weights of the shapes {[e.shape for e in expected]} and was given {[a.shape for a in own]}"
            )
        for weight, array in zip(self._own_weights(), layouts.from_keras(self, own)):
            master = _core.keras.master(weight)
            weight.assign(convert_to_tensor(np.ascontiguousarray(array), master.dtype))
        for layer in self._layers_inside():
            rest = layer._take_weights(rest)
        return rest

    def count_params(self):
        """How many numbers the weights are."""
        return sum(int(np.prod(weight._shape, dtype=np.int64)) for weight in self.weights)

    @property
    def trainable(self):
        return self._trainable

    @trainable.setter
    def trainable(self, value):
        self._trainable = bool(value)
        if self._native is not None:
            self._native.set_trainable(self._trainable)
        for layer in self._layers_inside():
            layer.trainable = value

    @property
    def losses(self):
        """The penalties of regularizers, and what ``add_loss`` was told in the last call."""
        own = [regularizer(weight) for weight, regularizer in self._regularized if weight.trainable]
        return own + self._added + [loss for layer in self._layers_inside() for loss in layer.losses]

    def _penalties(self):
        return self._regularized + [pair for layer in self._layers_inside() for pair in layer._penalties()]

    # Copies and pickles. What is native is made again when it is wanted.

    def _state_before_build(self):
        """The attributes of a layer like this one that has not been built: without the weights that ``build`` makes."""
        n_weights, n_regularized = self._n_before_build or (len(self._weights), len(self._regularized))
        return {**vars(self), "_native": None, "_seen": None, "built": False, "_added": [], "_weights": self._weights[:n_weights],
                "_regularized": self._regularized[:n_regularized]}  # fmt: skip

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name not in ("_native", "_added")}

    def __setstate__(self, kept):
        vars(self).update(kept)
        self._native, self._added = None, []

    # What it says of itself.

    compute_dtype = property(lambda self: self.dtype_policy.compute_dtype)
    variable_dtype = property(lambda self: self.dtype_policy.variable_dtype)
    dtype = property(lambda self: self.dtype_policy.variable_dtype)

    @property
    def input_shape(self):
        return with_batch(self._built_native().input_shapes())

    @property
    def output_shape(self):
        return with_batch(self._built_native().output_shapes())

    def _built_native(self):
        if self._native is None:
            raise AttributeError(f"{self.name} has not been built: the shape of its input is not known yet")
        return self._native

    def __getattr__(self, name):
        of_class = getattr(type(self), name, None)
        if isinstance(of_class, property):
            return of_class.fget(self)  # it has raised this error, and says why
        if f"keras.Layer.{name}" in INSTEAD:
            raise AttributeError(message(f"keras.Layer.{name}"))
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __repr__(self):
        return f"<{type(self).__name__} name={self.name}, built={self.built}>"


class NativeLayer(Layer):
    """A layer that is shipped: its kind and its options."""

    def __init__(self, options, regularized=None, **common):
        super().__init__(**common)
        self._options = options
        self._regularizers = {name: regularizers.get(found) for name, found in (regularized or {}).items() if found is not None}
        self._describe()

    def _describe(self):
        self._description = _core.keras.Description(
            self._kind, self._options, self._given_name, self.dtype_policy.name, self._place)  # fmt: skip

    def build(self, input_shape):
        """Makes the weights, for inputs of which the first extent is that of the batch."""
        if not self.built:
            self._ensure_native(_examples(input_shape), ())

    def __call__(self, inputs, *args, training=None, **kwargs):
        inputs = self._native_inputs(inputs, *args, **kwargs)
        if symbolic.is_symbolic(inputs):
            return symbolic.call(self, inputs)
        inputs = as_tensors(inputs)
        self._ensure_native(example_shapes(inputs), ())
        training = context.training() if training is None else training
        return self._native.forward(inputs, bool(training))

    def _native_inputs(self, inputs, mask=None):
        if mask is not None:
            raise NotImplementedError(f"{type(self).__name__} takes no mask")
        return inputs

    def call(self, inputs, training=None):
        return self(inputs, training=training)

    def _ensure_native(self, shapes, tensor_dtypes):
        if self._native is None:
            self._native = self._description.build(shapes)
            named = self._native.named_variables()
            self._weights = [weight for _, weight in named]
            self._named = {name: weight for name, weight in named}
            for name, regularizer in self._regularizers.items():
                if name in self._named:
                    self._regularized.append((self._named[name], regularizer))
            self.built = True
            if not self._trainable:
                self._native.set_trainable(False)

    def _state_before_build(self):
        return {**super()._state_before_build(), "_weights": [], "_named": {}, "_regularized": []}

    def __getstate__(self):
        native = ("_native", "_added", "_description", "_weights", "_named", "_regularized")
        kept = {name: value for name, value in vars(self).items() if name not in native}
        if self._native is not None:
            kept["_kept"] = (self._native.input_shapes(), pickling.values_of(self))
        return kept

    def __setstate__(self, kept):
        shapes, values = kept.pop("_kept", (None, None))
        vars(self).update(kept)
        self._native, self._weights, self._regularized, self._added, options = None, [], [], [], self._options
        if shapes is not None:
            self._options = pickling.without_draws(options)
            self._describe()
            self._ensure_native(shapes, ())
            pickling.give_values(self, values)
        self._options = options
        self._describe()

    def __getattr__(self, name):
        named = self.__dict__.get("_named", {})
        if name in named:
            return named[name]
        return super().__getattr__(name)

    def _layers_inside(self):
        return []

    def _own_weights(self):
        return self._weights


def _examples(shape):
    """The shapes of examples, of a shape of batches or a structure of such."""
    if isinstance(shape, dict):
        return {key: _examples(part) for key, part in shape.items()}
    if shape and isinstance(shape[0], (list, tuple, dict)):
        return tuple(_examples(part) for part in shape)
    return [int(n) for n in tuple(shape)[1:]]


def refuse(layer, **given):
    """Refuses options that the framework has no other value for than Keras's default: name=(given, default)."""
    for name, (value, default) in given.items():
        if value != default:
            raise NotImplementedError(f"{layer} has no {name}={value!r}; {name}={default!r} is what there is")
