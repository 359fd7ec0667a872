"""`tf.compat`."""

from ..missing import missing as _missing
from . import v1  # noqa: F401

__getattr__ = _missing("compat")
