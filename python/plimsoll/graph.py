"""Graphs and sessions, as in TensorFlow 1: what is described first and run later.

In a graph, ops describe: tensors have a shape and no value. `Session.run` runs what leads to the fetches and nothing else. Shapes are
fixed, also those of placeholders.
"""

import threading

import numpy as np

from . import _core, dtypes
from .names import tensor
from .nest import flatten, pack
from .tensor import Operation, Tensor, Value

_open = threading.local()
_default = None


class Graph:
    """A computation that is described while it is the default graph, and run by sessions."""

    def __init__(self):
        self._core = _core.Graph()
        self._by_name = {}
        self._scopes = []
        # The Python functions that its gradients call, by number: see custom_gradient.py.
        self._functions = {}

    def as_default(self):
        """A context in which ops are added to this graph."""
        return _Entered(self)

    def __str__(self):
        return str(self._core)


class _Entered:
    def __init__(self, graph):
        self._graph, self._number = graph, None

    def __enter__(self):
        self._number = self._graph._core.enter()
        _graphs().append(self._graph)
        return self._graph

    def __exit__(self, *_):
        self._graph._core.leave(self._number)
        graphs = _graphs()
        del graphs[len(graphs) - 1 - graphs[::-1].index(self._graph)]


def _graphs():
    """The graphs that this thread has entered, outermost first."""
    if not hasattr(_open, "graphs"):
        _open.graphs = []
    return _open.graphs


def entered():
    """The graphs that ops are added to: one or none."""
    graph = _current()
    return [] if graph is None else [graph]


def _current():
    graphs = _graphs()
    return graphs[-1] if graphs else _default


def get_default_graph():
    """The graph that ops are added to."""
    graph = _current()
    if graph is None:
        raise RuntimeError(
            "There is no default graph, because eager execution is enabled: call tf.compat.v1.disable_eager_execution() first, "
            "or describe it in `with tf.Graph().as_default():`"
        )
    return graph


def disable_eager_execution():
    """From now on ops describe a graph, which sessions run."""
    global _default
    if _default is None:
        reset_default_graph(is_wanted=True)


def enable_eager_execution():
    """From now on ops run at once."""
    global _default
    _default = None
    _core.forget_default_graph()


def reset_default_graph(is_wanted=False):
    """Begins a new default graph; what held the old one decides how long it lives."""
    global _default
    if _graphs():
        raise AssertionError("the default graph cannot be replaced inside `with graph.as_default():`")
    if _default is not None or is_wanted:
        _default = Graph()
        _default._core.make_default()


def gradients(ys, xs, grad_ys=None, name=None, stop_gradients=None, unconnected_gradients="none", **ignored):
    """The gradients of the sum of ``ys`` with respect to each of ``xs``, as more of the graph; None where there is no connection.

    >>> import plimsoll as tf
    >>> with tf.Graph().as_default():
    ...     x = tf.compat.v1.placeholder(tf.float32, [])
    ...     (dx,) = tf.gradients(x * x, [x])
    ...     print(tf.compat.v1.Session().run(dx, {x: 3.0}))
    6.0
    """
    graph = _current()
    if graph is None:
        raise RuntimeError(
            "tf.gradients is not supported when eager execution is enabled. Use tf.GradientTape instead, or call "
            "tf.compat.v1.disable_eager_execution() first"
        )
    if stop_gradients is not None:
        raise NotImplementedError("tf.gradients has no stop_gradients here: use tf.stop_gradient where the values are made")
    targets = [tensor(y) for y in flatten(ys)]
    if grad_ys is not None:
        seeds = flatten(grad_ys)
        targets = [y if g is None else y * tensor(g) for y, g in zip(targets, seeds, strict=True)]
    sources = flatten(xs)
    given = _core.lending(graph._functions, lambda: graph._core.gradients(targets, sources))
    if str(getattr(unconnected_gradients, "value", unconnected_gradients)) == "zero":
        given = [_core.full(x._shape, 0.0, x._dtype) if g is None else g for g, x in zip(given, sources)]
    return given


def placeholder(dtype, shape=None, name=None):
    """A tensor whose value is fed: ``session.run(fetches, {placeholder: value})``."""
    graph = get_default_graph()
    if shape is None or any(extent is None for extent in shape):
        raise ValueError(
            f"tf.compat.v1.placeholder: shape {shape} has extents that are not known, and a graph has fixed shapes here; give the "
            "shape of what is fed (a graph for each batch size, or tf.function, which is recorded for each)"
        )
    made = graph._core.placeholder([int(extent) for extent in shape], dtypes.as_dtype(dtype).name)
    if name is not None:
        graph._core.set_name(made, name)
    return made


def global_variables():
    """The variables of the default graph."""
    return get_default_graph()._core.variables()


def trainable_variables():
    return [variable for variable in global_variables() if variable.trainable]


def global_variables_initializer():
    """An operation that gives all variables of the default graph their initial values."""
    return Operation([get_default_graph()._core.initializer()])


def group(*inputs, name=None):
    """An operation that does all of these.

    >>> import plimsoll as tf
    >>> with tf.Graph().as_default():
    ...     v, w = tf.Variable(1.0), tf.Variable(2.0)
    ...     both = tf.group(v.assign_add(1.0), w.assign_add(1.0))
    ...     session = tf.compat.v1.Session()
    ...     session.run(tf.compat.v1.global_variables_initializer())
    ...     session.run(both)
    ...     print(session.run([v, w]))
    [np.float32(2.0), np.float32(3.0)]
    """
    return Operation([token for operation in flatten(list(inputs)) for token in _fetches(operation)])


def no_op(name=None):
    """An operation that does nothing.

    >>> import plimsoll as tf
    >>> with tf.Graph().as_default():
    ...     print(tf.compat.v1.Session().run(tf.no_op()))
    None
    """
    return Operation([])


def _fetches(fetch):
    """What the extension module fetches for something that can be fetched."""
    if isinstance(fetch, Operation):
        return fetch.tokens
    if isinstance(fetch, Value):
        return [fetch]
    raise TypeError(f"a session fetches tensors, variables and operations, not {type(fetch).__name__}")


class Session:
    """Runs a graph. Values of variables are the variables', so sessions of a graph share them."""

    def __init__(self, target="", graph=None, config=None):
        self.graph = get_default_graph() if graph is None else graph
        self._core = _core.Session(self.graph._core)
        self._entered = None

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        """The values of the fetches as numpy arrays, in their structure; None for an operation."""
        if self._core is None:
            raise RuntimeError("Attempted to use a closed Session.")
        leaves = flatten(fetches)
        wanted = [_fetches(fetch) for fetch in leaves]
        feeds = [_feed(place, value) for place, value in _items(feed_dict)]
        values = iter(self._core.run([part for parts in wanted for part in parts], feeds))
        results = []
        for fetch, parts in zip(leaves, wanted):
            given = [next(values) for _ in parts]
            if not isinstance(fetch, Operation):
                results.append(given[0].numpy())
            else:
                results.append(None if fetch.variable is None else fetch.variable.numpy())
        return pack(fetches, iter(results))

    def plan(self, fetches):
        """What a run of these fetches will need, before it runs."""
        return self._core.plan([part for fetch in flatten(fetches) for part in _fetches(fetch)])

    def close(self):
        """Drops the programs of the session."""
        self._core = None

    def as_default(self):
        """A context in which `eval` and `run` of tensors and operations use this session."""
        return _DefaultSession(self)

    def __enter__(self):
        self._entered = self.graph.as_default(), self.as_default()
        for context in self._entered:
            context.__enter__()
        return self

    def __exit__(self, *_):
        for context in self._entered:
            context.__exit__()
        self._entered = None
        self.close()


class InteractiveSession(Session):
    """A session that is the default one as soon as it is made."""

    def __init__(self, target="", graph=None, config=None):
        super().__init__(target, graph, config)
        _sessions().append(self)

    def close(self):
        sessions = _sessions()
        if self in sessions:
            sessions.remove(self)
        super().close()


class _DefaultSession:
    def __init__(self, session):
        self._session = session

    def __enter__(self):
        _sessions().append(self._session)
        return self._session

    def __exit__(self, *_):
        _sessions().remove(self._session)


def _sessions():
    if not hasattr(_open, "sessions"):
        _open.sessions = []
    return _open.sessions


def get_default_session():
    sessions = _sessions()
    return sessions[-1] if sessions else None


def _evaluate(self, feed_dict=None, session=None):
    """Runs what leads to this in a session, by default the one that is entered."""
    session = get_default_session() if session is None else session
    if session is None:
        raise ValueError("Cannot evaluate: no default session. Use `with sess.as_default()` or pass a session")
    return session.run(self, feed_dict)


Tensor.eval = _evaluate
Operation.run = lambda self, feed_dict=None, session=None: _evaluate(self, feed_dict, session)


def _items(feed_dict):
    """Pairs of what is fed and its value; a placeholder is a key, or its `.ref()`."""
    return [(key.deref() if hasattr(key, "deref") else key, value) for key, value in (feed_dict or {}).items()]


def _feed(place, value):
    if not isinstance(place, Value):
        raise TypeError(f"what is fed is a placeholder, not {type(place).__name__}")
    if isinstance(value, Value):
        return place, value
    array = np.ascontiguousarray(np.asarray(value, place.dtype.as_numpy_dtype))
    return place, Tensor.from_buffer(list(np.shape(value)), place._dtype, array.reshape(-1).view(np.uint8), False)
