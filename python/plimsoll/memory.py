"""The line, and who holds the bytes below it."""

import html
import os

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


class profile:
    """A context in which everything that takes and gives back memory is recorded to a file; afterwards it prints what is worth knowing.

    ``page(path)`` writes it as one HTML file: who held what, when.
    """

    def __init__(self, path):
        self._path, self._recording = os.fspath(path), None

    def __enter__(self):
        self._recording = _core.Profiler(self._path)
        return self

    def __exit__(self, *_):
        recording, self._recording = self._recording, None
        recording.finish()

    def explain(self):
        """What is worth knowing, in words."""
        return _core.explain_profile(self._path)

    def page(self, path):
        """Writes an HTML page of it."""
        _core.write_page(self._path, os.fspath(path))

    def __str__(self):
        return f"a recording to {self._path}" if self._recording is not None else self.explain()

    _repr_html_ = _html
