"""The line, and who holds the bytes below it."""

import html
import os

from . import _core
from .function import Function

Report = _core.Report
Saved = _core.Saved
Footprint = _core.Footprint
GrowthWatch = _core.GrowthWatch
Plan = _core.keras.Plan


def html_of_text(self):
    """What a notebook shows: the text, as it is printed in a terminal."""
    return f"<pre>{html.escape(str(self))}</pre>"


for _shown in (Report, Saved, Footprint, GrowthWatch, Plan):
    _shown._repr_html_ = html_of_text


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
    """Who holds the bytes in use, by owner and line; the rows add up.

    >>> import plimsoll as tf
    >>> x = tf.ones([1000])
    >>> report = tf.report()
    >>> report.in_use == sum(row[1] for row in report.rows)
    True
    """
    return _core.report(device)


def stats(device=None):
    """The figures of the pool: bytes in use, committed, their peaks, and rows by owner; ``foreign`` is memory that others lent.

    >>> import plimsoll as tf
    >>> stats = tf.stats()
    >>> stats["in_use"] == sum(stats["rows"].values())
    True
    """
    return _core.stats(device)


def plan(function, *args, **kwargs):
    """What a call of a function, or of a ``tf.function``, will need before it runs: its peak, who owns it, the least limit.

    Nothing runs. Tensors may be given as ``tf.TensorSpec``.

    >>> import plimsoll as tf
    >>> plan = tf.plan(lambda x: tf.reduce_sum(tf.exp(x)), tf.TensorSpec([1000]))
    >>> plan.peak == sum(plan.rows.values())
    True
    """
    return (function if hasattr(function, "plan") else Function(function)).plan(*args, **kwargs)


def reset_peaks(device=None):
    """Lets peaks begin anew.

    >>> import plimsoll as tf
    >>> tf.reset_peaks()
    >>> tf.stats()["peak_in_use"] == tf.stats()["in_use"]
    True
    """
    _core.reset_peaks(device)


def trim():
    """Gives free pages back to the system; returns how many bytes that was.

    >>> import plimsoll as tf
    >>> tf.trim() >= 0
    True
    """
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

    _repr_html_ = html_of_text
