"""`tf.compat.v1`: what programs of TensorFlow 1 use that is not in `tf` itself."""

import math as _math

from ... import _core, dtypes as _dtypes, graph as _graph
from ...graph import (  # noqa: F401
    Graph, InteractiveSession, Session, disable_eager_execution, enable_eager_execution, get_default_graph, get_default_session,
    global_variables, global_variables_initializer, gradients, group, no_op, placeholder, reset_default_graph, trainable_variables,
)  # fmt: skip
from ...missing import missing as _missing
from ...tensor import Variable as _Variable, convert_to_tensor as _convert_to_tensor

AUTO_REUSE = "auto_reuse"


class variable_scope:
    """A context in which `get_variable` puts a name before others; with ``reuse`` it gives variables that are there."""

    def __init__(self, name_or_scope, default_name=None, reuse=None, **ignored):
        self.name = getattr(name_or_scope, "name", name_or_scope) or default_name
        self.reuse = reuse

    def __enter__(self):
        self._graph = _graph.get_default_graph()
        self._graph._scopes.append(self)
        return self

    def __exit__(self, *_):
        self._graph._scopes.remove(self)


def get_variable(name, shape=None, dtype=_dtypes.float32, initializer=None, trainable=True, **ignored):
    """The variable of that name in the default graph, made if it is not there; Glorot's uniform values unless told otherwise."""
    here = _graph.get_default_graph()
    path = "/".join([scope.name for scope in here._scopes] + [name])
    reuse = next((scope.reuse for scope in reversed(here._scopes) if scope.reuse is not None), None)
    known = here._by_name.get(path)
    if known is not None:
        if not reuse:
            raise ValueError(f"Variable {path} already exists, disallowed. Did you mean to set reuse=True or reuse=tf.AUTO_REUSE?")
        return known
    if reuse is True:
        raise ValueError(f"Variable {path} does not exist, or was not created with get_variable(). Did you mean reuse=tf.AUTO_REUSE?")
    value = _initial(initializer, shape, _dtypes.as_dtype(dtype))
    made = here._by_name[path] = _Variable(value, trainable, name=path)
    return made


def _initial(initializer, shape, dtype):
    if initializer is not None and not callable(initializer):
        return _convert_to_tensor(initializer, dtype)
    if shape is None:
        raise ValueError("get_variable needs a shape, or a value as initializer")
    shape = [int(n) for n in (shape if isinstance(shape, (list, tuple)) else [shape])]
    if initializer is not None:
        initializer = initializer() if isinstance(initializer, type) else initializer
        return initializer(shape, dtype=dtype)
    if not dtype.is_floating:
        return _core.full(shape, 0.0, dtype.name)
    n_in, n_out = (shape[-2], shape[-1]) if len(shape) > 1 else (max(shape, default=1),) * 2
    receptive = _math.prod(shape[:-2])
    limit = _math.sqrt(6.0 / max(1, (n_in + n_out) * receptive))
    return _core.uniform(shape, -limit, limit, dtype.name)


disable_v2_behavior = disable_eager_execution
initialize_all_variables = global_variables_initializer


def __getattr__(name):
    """Whatever `tf` has."""
    import plimsoll

    try:
        return getattr(plimsoll, name)
    except AttributeError:
        return _missing("compat.v1")(name)


from . import train  # noqa: E402, F401
