"""`tf.GradientTape`: what is recorded begins and ends with a with-statement."""

import threading

from . import _core, errors
from .names import tensor
from .nest import flatten, pack
from .tensor import Value


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
        self._persistent = bool(persistent)
        self._scope = None
        # The Python functions that its gradients call, by number: see custom_gradient.py.
        self._functions = {}

    def __enter__(self):
        if self._scope is not None:
            raise ValueError("this tape records already")
        self._scope = self._tape.start()
        recording_tapes().append(self)
        return self

    def __exit__(self, *_):
        if self._scope is not None:
            self._end()

    def _end(self):
        scope, self._scope = self._scope, None
        tapes = recording_tapes()
        if self in tapes:
            tapes.remove(self)
        if not scope.end():
            raise errors.TapeError("a tape stops recording on the thread that it began on")

    def watch(self, tensor):
        """Watches a tensor or variable, or all of a structure."""
        for source in flatten(tensor):
            if not isinstance(source, Value):
                raise ValueError(f"{type(source).__name__} cannot be watched; convert it by tf.constant first")
            self._tape.watch(source)

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
        zeros = str(getattr(unconnected_gradients, "value", unconnected_gradients)) == UnconnectedGradients.ZERO
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

    def jacobian(self, target, sources, unconnected_gradients=UnconnectedGradients.NONE):
        """The derivative of every element of the target by every element of each source."""
        return self._each(self._tape.jacobian, target, sources)

    def batch_jacobian(self, target, source, unconnected_gradients=UnconnectedGradients.NONE):
        """The same for each example of a batch by itself."""
        return self._each(self._tape.batch_jacobian, target, source)

    def _each(self, derivative, target, sources):
        self._before_use()
        with self._uses():
            leaves = self._lending(lambda: [derivative(tensor(target), tensor(source)) for source in flatten(sources)])
        return pack(sources, iter(leaves))

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
