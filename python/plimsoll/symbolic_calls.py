"""Functions of tensors that are called with symbolic tensors of ``tf.keras``: such a call is a layer of the graph.

With the first symbolic tensor, the public names of functions of tensors are wrapped, each once; before that, and in what modules of the package
call among themselves, they are the functions alone, so that code without such tensors pays nothing.
"""

import functools
import types

# The names of modules of TensorFlow's, and their paths below tf.
_spaces = []
# What wraps each function, under the first of its names.
_wrappers = {}

# Functions that take no tensor, or say something of one without its values.
_NOT = {"constant", "convert_to_tensor", "eye", "fill", "is_tensor", "linspace", "meshgrid", "name_scope", "ones", "print", "range", "zeros"}
_MODULES = {f"{__package__}.{name}" for name in ("array_ops", "clipping", "composed", "convolutions", "linalg", "math", "nn")}


def offer(names, space=""):
    """Says that a module's functions take symbolic tensors, once there are any."""
    _spaces.append((names, space))


def begin(applied):
    """From here on there are symbolic tensors. ``applied`` makes a layer of a call, and gives None for a call without any."""
    if _wrappers:
        return
    # What is in `tf` itself, which comes last, is called so.
    for names, space in reversed(_spaces):
        for name, value in list(names.items()):
            if isinstance(value, types.FunctionType) and value.__module__ in _MODULES and name not in _NOT and not name.startswith("_"):
                if value not in _wrappers:
                    _wrappers[value] = _wrapped(applied, f"{space}.{name}" if space else name, value)
                names[name] = _wrappers[value]


def _wrapped(applied, path, function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        found = applied(path, args, kwargs)
        return function(*args, **kwargs) if found is None else found

    return call
