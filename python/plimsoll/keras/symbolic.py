"""Symbolic tensors: what ``Input`` gives, and layers give for it. A graph is the calls that lead from some to others."""

import functools
import itertools
import operator
import sys

from .. import _core, dtypes, symbolic_calls
from . import naming
from .structure import leaves, map_shapes, map_structure, with_batch

_counter = itertools.count()


class KerasTensor:
    """A tensor that is not there yet: its shape is known, its values are not."""

    def __init__(self, shape, dtype, call=None, name=None, index=0):
        symbolic_calls.begin(_applied)
        self.example_shape, self.dtype = list(shape), dtypes.as_dtype(dtype)
        self.call, self.index, self.name = call, index, name or "keras_tensor"

    @property
    def shape(self):
        return with_batch(self.example_shape)

    @property
    def ndim(self):
        return len(self.example_shape) + 1

    def __neg__(self):
        return _computed(operator.neg, [self])

    def __getitem__(self, key):
        return _computed(operator.itemgetter(key), [self])

    def __array__(self, *_, **__):
        raise TypeError("a symbolic tensor has no values; it goes through layers, and a function of tensors through layers.Lambda")

    def __bool__(self):
        raise TypeError("a symbolic tensor has no values, so nothing can be decided by it")

    def __repr__(self):
        return f"<KerasTensor shape={self.shape}, dtype={self.dtype.name}, name={self.name}>"


def _operator(name, merging=None):
    """An operator between symbolic tensors, or with numbers and tensors on one side, and the same with its sides exchanged."""
    function = getattr(operator, name)

    def method(self, other):
        from . import layers

        if not isinstance(other, KerasTensor):
            return _computed(_With(function, other, False), [self])
        if merging is not None and self.example_shape == other.example_shape:
            return getattr(layers, merging)()([self, other])
        return _computed(function, [self, other])

    return method, lambda self, other: _computed(_With(function, other, True), [self])


class _With:
    """A function of two with one side given. An object and no closure, so that models can be pickled."""

    def __init__(self, function, given, is_first):
        self.function, self.given, self.is_first = function, given, is_first

    def __call__(self, x):
        return self.function(self.given, x) if self.is_first else self.function(x, self.given)


class _Spread:
    """A function of several as a function of a list."""

    def __init__(self, function):
        self.function = function

    def __call__(self, values):
        return self.function(*values)


def _computed(function, inputs):
    """What a function gives for symbolic tensors, through a layer of it."""
    from . import layers

    return layers.Lambda(function)(inputs[0]) if len(inputs) == 1 else layers.Lambda(_Spread(function))(inputs)


for _name, _merging in (("add", "Add"), ("sub", "Subtract"), ("mul", "Multiply"), ("truediv", None), ("pow", None), ("matmul", None)):
    _method, _reversed = _operator(_name, _merging)
    setattr(KerasTensor, f"__{_name}__", _method)
    setattr(KerasTensor, f"__r{_name}__", _reversed)


class _Slot:
    """Where a symbolic tensor was among the arguments of a function."""

    def __init__(self, number):
        self.number = number


def _replaced(kind, value, function):
    """A value, or lists and tuples of values, with those of a kind replaced."""
    if isinstance(value, kind):
        return function(value)
    if type(value) in (list, tuple):
        return type(value)(_replaced(kind, part, function) for part in value)
    return value


class _Function:
    """A function of the package and its arguments, by name, so that models can be pickled."""

    def __init__(self, path, args, kwargs):
        self.path, self.args, self.kwargs = path, args, kwargs

    def __call__(self, values):
        values = values if isinstance(values, (list, tuple)) else (values,)
        fill = lambda value: _replaced(_Slot, value, lambda slot: values[slot.number])
        function = functools.reduce(getattr, self.path.split("."), sys.modules[__package__.rpartition(".")[0]])
        given = function(*map(fill, self.args), **{name: fill(value) for name, value in self.kwargs.items()})
        n = values[0]._shape[0]
        for found in leaves(given):
            if list(found._shape[:1]) != [n]:
                raise ValueError(
                    f"tf.{self.path} of symbolic tensors gives {list(found._shape)} for a batch of {n}; the first axis is that of the batch, and has "
                    "to stay (axis=... says along which others to work)"
                )
        return given


def _applied(path, args, kwargs):
    """A layer that calls a function of the package, where symbolic tensors are among its arguments; else None."""
    found = []

    def slot(tensor):
        found.append(tensor)
        return _Slot(len(found) - 1)

    args = [_replaced(KerasTensor, value, slot) for value in args]
    kwargs = {name: _replaced(KerasTensor, value, slot) for name, value in kwargs.items()}
    if not found:
        return None
    from . import layers

    named = naming.automatic_of(path.rpartition(".")[2])
    return layers.Lambda(_Function(path, args, kwargs), name=named)(found[0] if len(found) == 1 else found)


class Call:
    """A layer that is called with symbolic tensors. It does not hold what it gives, which holds it."""

    def __init__(self, layer, inputs, place):
        self.layer, self.inputs, self.place, self.number = layer, inputs, place, next(_counter)
        self.n_outputs = 0

    def shapes(self):
        """The shapes of examples that it is called with."""
        return map_structure(lambda x: list(x.example_shape), self.inputs)

    def output(self, shape):
        """What it gives next, for examples of that shape."""
        self.n_outputs += 1
        gives = self.layer._gives  # known of what was tried
        dtype = gives[self.n_outputs - 1] if gives else self.layer.compute_dtype
        return KerasTensor(shape, dtype, self, self.layer.name, self.n_outputs - 1)


def is_symbolic(structure):
    return any(isinstance(leaf, KerasTensor) for leaf in leaves(structure))


def call(layer, inputs):
    """What a layer gives for symbolic tensors. It is built for their shapes."""
    for leaf in leaves(inputs):
        if not isinstance(leaf, KerasTensor):
            raise TypeError(f"{layer.name} is given symbolic tensors and {type(leaf).__name__}; all must be symbolic")
    made = Call(layer, inputs, _core.keras.user_line())
    layer._ensure_native(made.shapes(), [x.dtype.name for x in leaves(inputs)])
    return map_shapes(made.output, layer._native.output_shapes())


def Input(shape=None, batch_size=None, dtype=None, name=None, batch_shape=None, tensor=None, sparse=None, **unknown):
    """A symbolic tensor for examples of a shape."""
    if sparse or tensor is not None or unknown:
        raise NotImplementedError("Input takes shape, batch_size, dtype and name")
    if batch_shape is not None:
        shape = batch_shape[1:]
    if shape is None or any(n is None for n in shape):
        raise ValueError(f"Input(shape={shape}): each extent of an example must be a number; only that of the batch is open")
    return KerasTensor([int(n) for n in shape], dtype or "float32", None, name)


class Graph:
    """The calls that lead from inputs to outputs, in the order in which they were made."""

    def __init__(self, inputs, outputs):
        self.inputs, self.outputs = inputs, outputs
        self.calls = _calls_between(leaves(inputs), leaves(outputs))
        self.layers = []
        for made in self.calls:
            if made.layer not in self.layers:
                self.layers.append(made.layer)

    def build(self):
        """The native model. Layers that are not built are built."""
        given = {id(x): number for number, x in enumerate(leaves(self.inputs))}
        first, n_values, calls = {}, len(given), []

        def number(x):
            return given[id(x)] if id(x) in given else first[x.call.number] + x.index

        for made in self.calls:
            made.layer._ensure_native(made.shapes(), [x.dtype.name for x in leaves(made.inputs)])
            calls.append((self.layers.index(made.layer), map_structure(number, made.inputs), made.place))
            first[made.number], n_values = n_values, n_values + made.n_outputs
        shapes = map_structure(lambda x: list(x.example_shape), self.inputs)
        outputs = map_structure(number, self.outputs)
        return _core.keras.Model.functional([layer._native for layer in self.layers], calls, shapes, outputs)


def _calls_between(inputs, outputs):
    given = {id(x) for x in inputs}
    found, waiting = {}, [x for x in outputs if id(x) not in given]
    while waiting:
        made = waiting.pop().call
        if made is None:
            raise ValueError("an output depends on an Input that is not among the inputs of the model")
        if made.number not in found:
            found[made.number] = made
            waiting += [x for x in leaves(made.inputs) if id(x) not in given]
    return [found[number] for number in sorted(found)]
