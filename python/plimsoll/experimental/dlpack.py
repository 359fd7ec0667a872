"""`tf.experimental.dlpack`: memory shared with other libraries."""

from ..missing import missing as _missing
from ..tensor import from_dlpack  # noqa: F401


def to_dlpack(tf_tensor):
    """A capsule over a copy of a tensor, for a library that takes capsules. ``numpy.from_dlpack(tensor)`` shares its memory instead."""
    return tf_tensor.__dlpack__()


__getattr__ = _missing("experimental.dlpack")
