"""`tf.experimental`."""

from ..missing import missing as _missing
from . import dlpack  # noqa: F401

__getattr__ = _missing("experimental")
