"""`tf.function`: a Python function that is recorded once per signature and then runs from its program.

The Python object owns the function and lends it to the programs while they record; so dropping it frees programs and variables.
Under a tape, and inside another function that is being recorded, the Python function itself is called, so that its ops are seen.
"""

import functools
import inspect
import logging
import weakref

import numpy as np

from . import _core
from .nest import flatten, pack
from .signatures import describe, replace, words
from .specs import TensorSpec, spec_of
from .tensor import Value, convert_to_tensor

_runs_eagerly = False
# After so many recordings in a row there is a warning, as in TensorFlow.
_MANY_RECORDINGS = 5
_TENSOR = object()


def run_functions_eagerly(run_eagerly):
    """With True, functions are called as they are, for debugging: values can be read, and every line runs at every call."""
    global _runs_eagerly
    _runs_eagerly = bool(run_eagerly)


def functions_run_eagerly():
    return _runs_eagerly


def executing_eagerly():
    """Whether ops run at once: not inside a function that is being recorded, nor in a graph.

    >>> import plimsoll as tf
    >>> tf.executing_eagerly()
    True
    """
    return not _core.is_tracing()


def inside_function():
    """Whether a function is being recorded, or a graph described.

    >>> import plimsoll as tf
    >>> tf.inside_function()
    False
    """
    return _core.is_tracing()


class Programs:
    """The programs of a function, or of a method of one instance, and how their results are arranged."""

    def __init__(self):
        self.core = _core.Function()
        self.n_recorded = 0
        self._arrangements, self._numbers = [], {}
        self._n_in_a_row, self._last, self._has_warned = 0, None, False

    def lent(self, function, args, kwargs):
        """What the extension module is told of a call: the function of tensors, what distinguishes it, and the tensors."""
        text, tensors = [], []
        describe(args, text, tensors)
        describe(kwargs, text, tensors)

        def body(given):
            if _core.is_tracing():
                self._record(function, args, kwargs)
            given = iter(given)
            called, named = replace(args, given), replace(kwargs, given)
            return self._take_apart(function(*called, **named))

        return body, " ".join(text), tensors

    def run(self, function, args, kwargs):
        n_before = self.n_recorded
        tensors, number = self.core.call(*self.lent(function, args, kwargs))
        if n_before == self.n_recorded:
            self._n_in_a_row = 0
        return _put_together(self._arrangements[number], iter(tensors))

    def _take_apart(self, result):
        """The tensors of a result, and the number of its arrangement."""
        tensors = []
        arrangement = _arrangement(result, tensors)
        number = self._numbers.get(arrangement)
        if number is None:
            number = self._numbers[arrangement] = len(self._arrangements)
            self._arrangements.append(arrangement)
        return tensors, number

    def _record(self, function, args, kwargs):
        self.n_recorded += 1
        self._n_in_a_row += 1
        now = [words(arg) for arg in args] + [f"{key}={words(kwargs[key])}" for key in sorted(kwargs)]
        last, self._last = self._last, now
        if self._n_in_a_row < _MANY_RECORDINGS or self._has_warned or last is None:
            return
        self._has_warned = True
        differing = next(((i, b, a) for i, (b, a) in enumerate(zip(last, now)) if a != b), None)
        why = "" if differing is None else f", because argument {differing[0]} differs each time: {differing[1]}, then {differing[2]}"
        logging.getLogger("plimsoll").warning(
            "tf.function %s was recorded %d times in a row%s. Pass numbers that change as tensors, and pad shapes to a few",
            getattr(function, "__name__", function), self._n_in_a_row, why,
        )  # fmt: skip


def _arrangement(value, tensors):
    """How a result is arranged: something hashable from which it can be put together again. Its tensors go to a list."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return (type(value), None, tuple(_arrangement(part, tensors) for part in value))
    if isinstance(value, dict):
        keys = tuple(value)
        return (type(value), keys, tuple(_arrangement(value[key], tensors) for key in keys))
    tensors.append(_result(value))
    return _TENSOR


def _result(value):
    if isinstance(value, Value) or isinstance(value, (bool, int, float, np.ndarray, np.generic)):
        return convert_to_tensor(value)
    raise TypeError(
        f"a tf.function returns tensors, numbers, None, and lists, tuples and dicts of these, not {type(value).__name__}"
    )


def _put_together(arrangement, tensors):
    if arrangement is None:
        return None
    if arrangement is _TENSOR:
        return next(tensors)
    kind, keys, parts = arrangement
    parts = [_put_together(part, tensors) for part in parts]
    if keys is not None:
        return kind(zip(keys, parts))
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


class Function:
    """A function that runs from its programs. ``python_function`` is the one that was given."""

    def __init__(self, python_function, input_signature=None, programs=None):
        self.python_function = python_function
        self.input_signature = None if input_signature is None else tuple(input_signature)
        self._programs = Programs() if programs is None else programs
        self._instances = {}
        self._parameters = None
        functools.update_wrapper(self, python_function)

    def __call__(self, *args, **kwargs):
        args, kwargs = self._bind(args, kwargs)
        if _runs_eagerly or _core.is_tracing() or _core.is_recording():
            tensors = []
            arrangement = _arrangement(self.python_function(*args, **kwargs), tensors)
            return _put_together(arrangement, iter(tensors))
        return self._programs.run(self.python_function, args, kwargs)

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        key = id(instance)
        known = self._instances.get(key)
        if known is None:
            instances = self._instances
            try:
                reference = weakref.ref(instance, lambda _: instances.pop(key, None))
            except TypeError:
                raise TypeError(
                    f"tf.function on a method keeps programs for each instance, and one of {type(instance).__name__} cannot be "
                    "referred to weakly; add '__weakref__' to its __slots__"
                ) from None
            known = instances[key] = (reference, Programs())
        return Function(self.python_function.__get__(instance, owner), self.input_signature, known[1])

    def get_concrete_function(self, *args, **kwargs):
        """The function for arguments like these, recorded and planned without being run; tensors may be given as TensorSpec."""
        if not args and not kwargs and self.input_signature is not None:
            args = self.input_signature
        args, kwargs = self._bind(args, kwargs, is_spec=True)
        self._programs.core.prepare(*self._programs.lent(self.python_function, args, kwargs))
        return ConcreteFunction(self, args, kwargs)

    def plan(self, *args, **kwargs):
        """What a call with arguments like these will need, before it runs; tensors may be given as TensorSpec."""
        args, kwargs = self._bind(args, kwargs, is_spec=True)
        return self._programs.core.plan(*self._programs.lent(self.python_function, args, kwargs))

    @property
    def variables(self):
        """The variables that the function has made; they are its own."""
        return tuple(self._programs.core.variables())

    def programs(self):
        """The programs that are kept, the latest first: (signature, bytes on the heap, bytes on devices, calls)."""
        return self._programs.core.programs()

    def clear_programs(self):
        """Drops all programs; they are recorded again when they are wanted. Variables stay."""
        self._programs.core.clear()

    def experimental_get_tracing_count(self):
        """How often the Python function was recorded."""
        return self._programs.n_recorded

    def __repr__(self):
        return f"<tf.function {getattr(self, '__name__', self.python_function)!s}>"

    def _bind(self, args, kwargs, is_spec=False):
        """Arguments in one form, however they were passed: by place where they can be, with defaults."""
        if self._parameters is None:
            self._parameters = inspect.signature(self.python_function)
        if kwargs or len(args) != len(self._parameters.parameters):
            bound = self._parameters.bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        if self.input_signature is None:
            return args, kwargs
        if kwargs or len(args) != len(self.input_signature):
            raise TypeError(f"input_signature has {len(self.input_signature)} arguments, and {len(args) + len(kwargs)} are passed")
        return tuple(map(_checked, self.input_signature, args)), kwargs


def _checked(spec, value):
    """An argument converted to what a structure of specs says, or refused."""

    def one(spec, value):
        if not isinstance(value, (*Value, TensorSpec)):
            value = convert_to_tensor(value, spec.dtype)
        if not spec.is_compatible_with(value):
            raise TypeError(f"{spec!r} is wanted, and {words(spec_of(value))} was passed")
        return value if isinstance(value, TensorSpec) else convert_to_tensor(value)

    if isinstance(spec, TensorSpec):
        return one(spec, value)
    specs, values = flatten(spec), flatten(value)
    if len(specs) != len(values):
        raise TypeError(f"input_signature says {spec!r}, and {words(value)} was passed")
    return pack(value, iter(map(one, specs, values)))


class ConcreteFunction:
    """A function for arguments of one signature: what is no tensor has been chosen."""

    def __init__(self, function, args, kwargs):
        self._function = function
        self._args, self._kwargs = pack((args, kwargs), map(spec_of, flatten((args, kwargs))))
        self._leaves = flatten((self._args, self._kwargs))
        self._specs = [leaf for leaf in self._leaves if isinstance(leaf, TensorSpec)]

    @property
    def structured_input_signature(self):
        return self._args, self._kwargs

    def __call__(self, *args, **kwargs):
        """Takes the tensors alone, or all arguments of the function."""
        given = flatten((args, kwargs))
        if len(given) != len(self._specs):
            all_given = flatten(self._function._bind(args, kwargs))
            if len(all_given) != len(self._leaves):
                raise TypeError(f"this function takes {len(self._specs)} tensors, and {len(given)} arguments are passed")
            given = [value for value, leaf in zip(all_given, self._leaves) if isinstance(leaf, TensorSpec)]
        tensors = iter([_checked(spec, value) for spec, value in zip(self._specs, given)])
        return self._function(*replace(self._args, tensors), **replace(self._kwargs, tensors))


def function(func=None, input_signature=None, autograph=True, jit_compile=None, reduce_retracing=False, **experimental):
    """Makes a function run from programs that are recorded once per signature; a decorator, with or without arguments.

    Numbers, truth values and texts among the arguments belong to the signature, tensors by dtype and shape. There is no
    AutoGraph: a Python branch or loop runs while the function is recorded, and cannot depend on the value of a tensor.
    ``autograph``, ``jit_compile`` and ``reduce_retracing`` change nothing.

    >>> import plimsoll as tf
    >>> @tf.function
    ... def double(x):
    ...     return x + x
    >>> float(double(tf.constant(3.0)))
    6.0
    """
    if func is None:
        return lambda func: Function(func, input_signature)
    return Function(func, input_signature)
