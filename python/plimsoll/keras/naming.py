"""Names that layers and models get by themselves: the kind in lower case, with a number from the second one on, as Keras has it."""

import re

_used = {}


def kind_of(cls):
    """The name of a class in lower case, with underscores between words."""
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", cls.__name__)).lower()


def automatic(cls):
    """The next name for an object of a class."""
    return automatic_of(kind_of(cls))


def automatic_of(kind):
    """The next name for something of a kind."""
    number = _used.get(kind, 0)
    _used[kind] = number + 1
    return f"{kind}_{number}" if number else kind


def forget():
    """Begins to count anew."""
    _used.clear()
