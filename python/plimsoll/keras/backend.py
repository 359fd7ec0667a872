"""``tf.keras.backend``."""

from . import naming


def clear_session(free_memory=True):
    """Lets names begin anew. There is nothing else to clear: what is dropped has given its memory back."""
    naming.forget()


def floatx():
    return "float32"


def epsilon():
    return 1e-7


def __getattr__(name):
    raise AttributeError(f"Plimsoll has no tf.keras.backend.{name}. docs/keras.md lists what is there")
