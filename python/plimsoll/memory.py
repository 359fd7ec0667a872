"""The line, and who holds the bytes below it."""

import html

from . import _core
from .function import Function

Report = _core.Report
Saved = _core.Saved
Footprint = _core.Footprint


def _html(self):
    return f"<pre>{html.escape(str(self))}</pre>"


Report._repr_html_ = Saved._repr_html_ = Footprint._repr_html_ = _html


def parse_bytes(bytes):
    """A number of bytes, which may be a text such as "64MiB"."""
    return _core.parse_bytes(bytes) if isinstance(bytes, str) else bytes


class limit:
    """Sets the most bytes that the pool of the current device may take: a number, or a text such as "64MiB"; None lifts it.

    It holds from the call on; as a context it ends with the block, and what held before holds again.
    """

    def __init__(self, bytes):
        self._before = stats()["limit"]
        _core.set_limit(parse_bytes(bytes))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        _core.set_limit(self._before)


def report(device=None):
    """Who holds the bytes in use, by owner and line; the rows add up."""
    return _core.report(device)


def stats(device=None):
    """The figures of the pool: bytes in use, committed, their peaks, and rows by owner; ``foreign`` is memory that others lent."""
    return _core.stats(device)


def plan(function, *args, **kwargs):
    """What a call of a function, or of a ``tf.function``, will need before it runs: its peak, who owns it, the least limit.

    Nothing runs. Tensors may be given as ``tf.TensorSpec``.
    """
    return (function if hasattr(function, "plan") else Function(function)).plan(*args, **kwargs)


def reset_peaks(device=None):
    """Lets peaks begin anew."""
    _core.reset_peaks(device)


def trim():
    """Gives free pages back to the system; returns how many bytes that was."""
    return _core.trim()
