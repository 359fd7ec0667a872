"""Whether the layers that are being called are trained: what a layer hands on to those that its ``call`` calls."""

import contextlib
import threading


class _Context(threading.local):
    training = None
    has_added = False


_context = _Context()


def training():
    """What the layers around say; None outside of all."""
    return _context.training


def has_added():
    """Whether any layer of this thread has added a loss outside of runs."""
    return _context.has_added


def note_added():
    _context.has_added = True


@contextlib.contextmanager
def calling(training):
    """The inside of a call."""
    before, _context.training = _context.training, training
    try:
        yield
    finally:
        _context.training = before
