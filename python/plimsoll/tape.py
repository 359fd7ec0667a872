"""`tf.GradientTape`: what is recorded begins and ends with a with-statement."""

import logging
import threading

from . import _core, errors
from .names import tensor
from .nest import flatten, pack
from .tensor import Value, Variable

_LOG = logging.getLogger("plimsoll")


class UnconnectedGradients:
    """What `gradient` gives for a source that the target does not depend on."""

    NONE, ZERO = "none", "zero"


_open = threading.local()


def recording_tapes():
    """The tapes that this thread has entered, outermost first."""
    if not hasattr(_open, "tapes"):
        _open.tapes = []
    return _open.tapes


class GradientTape:
    """Records ops for backward. What it saves is what the gradients read, and ``saved()`` lists it."""

    def __init__(self, persistent=False, watch_accessed_variables=True):
        self._tape = _core.Tape(bool(persistent), bool(watch_accessed_variables))
        self._persistent, self._watches_what_is_read = bool(persistent), bool(watch_accessed_variables)
        self._scope = self._thread = None
        # The Python functions that its gradients call, by number: see custom_gradient.py.
        self._functions = {}

    def __enter__(self):
        if self._scope is not None:
            raise ValueError("this tape records already")
        self._scope, self._thread = self._tape.start(), threading.get_ident()
        recording_tapes().append(self)
        return self

    def __exit__(self, *_):
        if self._scope is not None:
            self._end()

    def _end(self):
        if self._thread != threading.get_ident():
            raise errors.TapeError("a tape stops recording on the thread that it began on, where it still records")
        self._scope.end()
        self._scope = None
        tapes = recording_tapes()
        if self in tapes:
            tapes.remove(self)

    def watch(self, tensor):
        """Watches a tensor or variable, or all of a structure. What is no float has no gradient, which is said and no error."""
        for source in flatten(tensor):
            if not isinstance(source, Value):
                raise ValueError(f"{type(source).__name__} cannot be watched; convert it by tf.constant first")
            if source.dtype.is_floating:
                self._tape.watch(source)
            else:
                _LOG.warning("The dtype of the watched tensor must be floating (e.g. tf.float32), got %s: it has no gradient", source.dtype.name)

    def stop_recording(self):
        """A context in which nothing is recorded."""
        if self._scope is None:
            raise ValueError("this tape does not record")
        return _Paused(self._tape)

    def reset(self):
        """Forgets everything that was recorded."""
        self._tape.reset()
        self._functions.clear()

    def watched_variables(self):
        return tuple(self._tape.watched_variables())

    def saved(self):
        """What the tape keeps for backward: op, form, bytes and line of each value."""
        return self._tape.saved()

    def gradient(self, target, sources, output_gradients=None, unconnected_gradients=UnconnectedGradients.NONE):
        """The gradients of the targets, added up, in the structure of the sources; None where there is no connection."""
        zeros = _is_zero(unconnected_gradients)
        self._before_use()
        targets = [tensor(t) for t in flatten(target)]
        leaves = flatten(sources)
        for source in leaves:
            if not isinstance(source, Value):
                raise TypeError(f"a source is a tensor or a variable, not {type(source).__name__}")
        seeds = None
        if output_gradients is not None:
            given = flatten(output_gradients)
            seeds = [_core.full(t._shape, 1.0, t._dtype) if g is None else tensor(g) for t, g in zip(targets, given, strict=True)]
        floats = [i for i, source in enumerate(leaves) if source.dtype.is_floating]
        kept = [i for i, t in enumerate(targets) if t.dtype.is_floating]
        for i in kept:
            if self._watches_what_is_read and isinstance(targets[i], Variable) and targets[i].trainable:
                self._tape.watch(targets[i])  # it is read here
        with self._uses():
            given = self._lending(
                lambda: self._tape.gradient(
                    [targets[i] for i in kept],
                    [leaves[i] for i in floats],
                    None if seeds is None else [seeds[i] for i in kept],
                    zeros,
                )
            )
        gradients = [None] * len(leaves)
        for i, gradient in zip(floats, given, strict=True):
            gradients[i] = gradient
        return pack(sources, iter(gradients))

    def jacobian(self, target, sources, unconnected_gradients=UnconnectedGradients.NONE, parallel_iterations=None,
                 experimental_use_pfor=True):  # fmt: skip
        """The derivative of every element of the target by every element of each source; None where there is no connection.

        It takes one pass of backward per element of the target; ``parallel_iterations`` and ``experimental_use_pfor`` change nothing.

        >>> import plimsoll as tf
        >>> x = tf.Variable([2.0, 3.0])
        >>> with tf.GradientTape() as tape:
        ...     y = x * x
        >>> print(tape.jacobian(y, x).numpy())
        [[4. 0.]
         [0. 6.]]
        """
        is_zero = _is_zero(unconnected_gradients)
        self._before_use()
        target, leaves = tensor(target), [tensor(source) for source in flatten(sources)]
        with self._uses():
            given = self._lending(lambda: self._tape.jacobians(target, leaves))
        if is_zero:
            zeros = lambda source: _core.full([*target._shape, *source._shape], 0.0, target._dtype)
            given = [zeros(source) if one is None else one for one, source in zip(given, leaves)]
        return pack(sources, iter(given))

    def batch_jacobian(self, target, source, unconnected_gradients=UnconnectedGradients.NONE, parallel_iterations=None,
                       experimental_use_pfor=True):  # fmt: skip
        """The same for each example of a batch by itself: ``[batch, ..target, ..source]``; zeros where there is no connection.

        >>> import plimsoll as tf
        >>> x = tf.Variable([[1.0], [3.0]])
        >>> with tf.GradientTape() as tape:
        ...     y = x * x
        >>> print(tape.batch_jacobian(y, x).numpy().reshape(-1))
        [2. 6.]
        """
        _is_zero(unconnected_gradients)
        self._before_use()
        target, source = tensor(target), tensor(source)
        for of, shape in (("target", target._shape), ("source", source._shape)):
            if len(shape) < 2:
                raise ValueError(f"batch_jacobian: the {of} must have rank at least 2, and its shape is {tuple(shape)}")
        if target._shape[0] != source._shape[0]:
            raise ValueError(
                f"batch_jacobian: Need first dimension of the target, of shape {tuple(target._shape)}, and of the source, of shape "
                f"{tuple(source._shape)}, to be the same number of examples"
            )
        with self._uses():
            given = self._lending(lambda: self._tape.batch_jacobian(target, source))
        return _core.full([*target._shape, *source._shape[1:]], 0.0, target._dtype) if given is None else given

    def _lending(self, compute):
        """Computes while the functions of custom gradients are lent; a tape for one gradient has no use for them afterwards."""
        given = _core.lending(self._functions, compute) if self._functions else compute()
        if not self._persistent:
            self._functions.clear()
        return given

    def _before_use(self):
        # Backward of a tape for one gradient is not recorded on it, as in TensorFlow.
        if self._scope is not None and not self._persistent:
            self._end()

    def _uses(self):
        return _OneUse(self._persistent)


def _is_zero(unconnected_gradients):
    """Whether zeros are wanted where there is no connection."""
    wanted = getattr(unconnected_gradients, "value", unconnected_gradients)
    if wanted not in (UnconnectedGradients.NONE, UnconnectedGradients.ZERO):
        raise ValueError(f"Unknown value for unconnected_gradients: {wanted!r}")
    return wanted == UnconnectedGradients.ZERO


class _OneUse:
    """Says of a tape's second use what TensorFlow's users look for."""

    def __init__(self, persistent):
        self._persistent = persistent

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if kind is errors.TapeError and not self._persistent and "has given its gradient" in error.message:
            raise errors.TapeError(
                "A non-persistent GradientTape can only be used to compute one set of gradients: gradient can only be "
                "called once, since it frees what the tape saved; tf.GradientTape(persistent=True) keeps it"
            ) from None


class _Paused:
    def __init__(self, tape):
        self._tape, self._scope = tape, None

    def __enter__(self):
        self._scope = self._tape.pause()

    def __exit__(self, *_):
        self._scope.end()
