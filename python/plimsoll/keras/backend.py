"""``tf.keras.backend``."""

from .. import _core
from ..missing import missing as _missing
from . import naming


def clear_session(free_memory=True):
    """Lets names begin anew, and drops the programs of all functions, which record anew when they are called. What was dropped
    before has given its memory back already."""
    naming.forget()
    _core.clear_session()


def floatx():
    return "float32"


def epsilon():
    return 1e-7


__getattr__ = _missing("keras.backend")
