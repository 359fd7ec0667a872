"""Whether the layers that are being called are trained: what a layer hands on to those that its ``call`` calls."""

import contextlib
import threading


class _Context(threading.local):
    training = None


_context = _Context()


def training():
    """What the layers around say; None outside of all."""
    return _context.training


@contextlib.contextmanager
def calling(training):
    """The inside of a call."""
    before, _context.training = _context.training, training
    try:
        yield
    finally:
        _context.training = before
