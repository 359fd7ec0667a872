"""`tf.custom_gradient` and `tf.recompute_grad`.

The functions that a gradient needs are owned by the Python tapes that record, and lent by them while they compute gradients.
"""

import functools
import inspect
import itertools

import numpy as np

from . import _core, graph
from .names import tensor
from .nest import flatten, map_structure, pack
from .tape import GradientTape, recording_tapes
from .tensor import Value, convert_to_tensor

_next_number = itertools.count(1)


def _held(function):
    """What stands for a function on the tapes that record: a number, or itself where only the framework's own tape does."""
    keepers = [*recording_tapes(), *graph.entered()]
    if not keepers:
        return function
    number = next(_next_number)
    for keeper in keepers:
        keeper._functions[number] = function
    return number


def _is_float(leaf):
    return isinstance(leaf, Value) and leaf.dtype.is_floating


def custom_gradient(f=None):
    """A function with a gradient of its own: ``f`` returns its result and a function from its gradient to those of the arguments.

    Where ``f`` reads variables, that function takes ``variables=`` and returns the gradients of the arguments and theirs.

    >>> import plimsoll as tf
    >>> @tf.custom_gradient
    ... def clipped(x):
    ...     return x * x, lambda dy: dy * tf.clip_by_value(2.0 * x, -1.0, 1.0)
    >>> x = tf.Variable(3.0)
    >>> with tf.GradientTape() as tape:
    ...     y = clipped(x)
    >>> float(tape.gradient(y, x))
    1.0
    """
    if f is None:
        return custom_gradient

    @functools.wraps(f)
    def decorated(*args, **kwargs):
        # A variable among the arguments is a tensor inside, as in TensorFlow: its gradient is that of the argument.
        args = map_structure(lambda arg: convert_to_tensor(arg) if isinstance(arg, Value) else arg, list(args))
        inputs = [leaf for leaf in flatten(args) if _is_float(leaf)]
        scout = GradientTape()

        def forward():
            with scout:
                return f(*args, **kwargs)

        result, grad_fn = _core.without_tapes(forward)
        if not isinstance(result, (*Value, float, np.ndarray)):
            raise NotImplementedError(f"tf.custom_gradient is for a function with one result, not {type(result).__name__}")
        variables = [v for v in scout.watched_variables() if v.trainable]
        del scout
        result = _core.stop_gradient(convert_to_tensor(result))
        if variables and "variables" not in inspect.signature(grad_fn).parameters:
            names = ", ".join(v.name for v in variables)
            raise TypeError(
                f"the function given to tf.custom_gradient reads the variables {names}, so its gradient function takes "
                "variables= and returns the gradients of the arguments and theirs"
            )

        has_gradient = [_is_float(leaf) for leaf in flatten(args)] + [True] * len(variables)

        def backward(given):
            (dy,) = given
            if variables:
                gradients, of_variables = grad_fn(dy, variables=list(variables))
                given = [*flatten(gradients), *flatten(of_variables)]
            else:
                given = flatten(grad_fn(dy))
            if len(given) == len(has_gradient):  # one for each argument, also for those that have none
                given = [g for g, has in zip(given, has_gradient) if has]
            return [None if g is None else tensor(g) for g in given]

        return _core.custom_gradient([*inputs, *variables], result, _held(backward))

    return decorated


def recompute_grad(f):
    """The function with nothing of its inside saved for backward, which calls it again: activation checkpointing.

    Its result is one tensor. Random numbers are drawn as the first time, so the gradients are the same bits.

    >>> import plimsoll as tf
    >>> x = tf.Variable(tf.ones([1000]))
    >>> with tf.GradientTape() as tape:
    ...     y = tf.recompute_grad(lambda x: tf.reduce_sum(tf.exp(tf.sin(x))))(x)
    >>> tape.saved().own_bytes
    0
    """

    @functools.wraps(f)
    def decorated(*args, **kwargs):
        leaves = flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Value)]

        def function(given):
            filled = list(leaves)
            for place, value in zip(places, given, strict=True):
                filled[place] = value
            called, named = pack((args, kwargs), iter(filled))
            result = f(*called, **named)
            if not isinstance(result, Value):
                raise NotImplementedError(f"tf.recompute_grad is for a function with one result, not {type(result).__name__}")
            return convert_to_tensor(result)

        # What the tape keeps must not be the tensors: that would save them.
        inputs = [leaves[place] for place in places]
        for place in places:
            leaves[place] = None
        return _recomputed(inputs, function)

    return decorated


def _recomputed(inputs, function):
    held = _held(function)
    if held is function:
        return _core.recompute(inputs, function)
    return _core.lending({held: function}, lambda: _core.recompute(inputs, held))
