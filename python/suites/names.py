"""`tensorflow.python.*` as test files import it, over this package.

Any module below `tensorflow` can be imported. A name in one is what this file defines for it, or what `plimsoll` has under that name in one of its
namespaces; any other name is a stand-in that, when it is used, notes that the test asked for it and raises.
"""

import contextlib
import functools
import gc
import importlib.abc
import importlib.machinery
import sys
import types
import unittest

import numpy as np
import plimsoll as tf

_missing = []


def taken():
    """The missing names that were used since the last call."""
    used, _missing[:] = list(dict.fromkeys(_missing)), []
    return used


class NotThere(NotImplementedError):
    """A test used a name that this package has not."""


class Missing:
    """Stands for a name that is not there, until it is used."""

    def __init__(self, name):
        self._name = name

    def _refuse(self, *_, **__):
        _missing.append(self._name)
        raise NotThere(self._name)

    __call__ = __iter__ = __int__ = __float__ = __add__ = __getitem__ = _refuse

    def __getattr__(self, member):
        if member.startswith("__"):
            raise AttributeError(member)
        self._name = f"{self._name}.{member}"
        self._refuse()


# Functions over tapes that TensorFlow's own tests use: not its users' names, so they are made here of a tape.


def _sources(args, params):
    """Arguments as tensors, each an object of its own, and those of which the gradients are wanted."""
    made = [tf.identity(arg) for arg in args]
    return made, [made[place] for place in (range(len(made)) if params is None else params)]


def make_vjp(f, params=None, persistent=True):
    def decorated(*args):
        with tf.GradientTape(persistent=persistent) as tape:
            made, sources = _sources(args, params)
            tape.watch(sources)
            result = f(*made)
            if result is None:
                raise ValueError(f"Cannot differentiate a function that returns None; did you forget to return a value from {f.__name__}?")
            results = [tf.identity(part) if any(part is source for source in sources) else part for part in tf.nest.flatten(result)]

        def vjp(dy=None):
            given = None if dy is None else tf.nest.flatten(dy)
            return tape.gradient(results, sources, output_gradients=given)

        return result, vjp

    return decorated


def val_and_grad_function(f, params=None):
    def decorated(*args, dy=None):
        result, vjp = make_vjp(f, params, persistent=False)(*args)
        return result, vjp(dy)

    return decorated


def gradients_function(f, params=None):
    def decorated(*args, dy=None):
        return val_and_grad_function(f, params)(*args, dy=dy)[1]

    return decorated


def implicit_val_and_grad(f):
    def decorated(*args):
        with tf.GradientTape() as tape:
            result = f(*args)
        if result is None:
            raise ValueError(f"Cannot differentiate a function that returns None; did you forget to return a value from {f.__name__}?")
        variables = list(tape.watched_variables())
        return result, list(zip(tape.gradient(result, variables), variables))

    return decorated


def implicit_grad(f):
    return lambda *args: implicit_val_and_grad(f)(*args)[1]


class TestCase(unittest.TestCase):
    """What TensorFlow's test cases have besides unittest's."""

    def evaluate(self, structure):
        session = tf.compat.v1.get_default_session()
        if session is not None:
            return session.run(structure)
        return tf.nest.map_structure(lambda leaf: leaf.numpy() if hasattr(leaf, "numpy") else leaf, structure)

    @contextlib.contextmanager
    def cached_session(self, **options):
        with tf.compat.v1.Session(**options) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            yield session

    session = cached_session

    def assertAllEqual(self, a, b, msg=None):
        a, b = (self._plain(side) for side in (a, b))
        if a is None or b is None or isinstance(a, (list, tuple)) and any(part is None for part in a):
            self.assertEqual(a, b, msg)
        else:
            np.testing.assert_array_equal(a, b)

    def assertAllClose(self, a, b, rtol=1e-6, atol=1e-6, msg=None):
        a, b = (tf.nest.flatten(self._plain(side)) for side in (a, b))
        if len(a) != len(b):
            a, b = [np.asarray(a)], [np.asarray(b)]
        for left, right in zip(a, b):
            np.testing.assert_allclose(left, right, rtol=rtol, atol=atol)

    def assertLen(self, container, n, msg=None):
        self.assertEqual(len(container), n, msg)

    def _plain(self, side):
        return self.evaluate(side)


def _as_it_is(*arguments):
    """A decorator that changes nothing, with arguments of its own or without."""
    if len(arguments) == 1 and callable(arguments[0]):
        return arguments[0]
    return lambda test: test


def _gives_all_back(test):
    """After the test there are as many bytes in use as before, and no cycle had to be collected for it."""

    @functools.wraps(test)
    def decorated(self, *args, **kwargs):
        gc.collect()
        before = tf.stats()["in_use"]
        gc.disable()
        try:
            test(self, *args, **kwargs)
            self.assertEqual(tf.stats()["in_use"], before)
        finally:
            gc.enable()

    return decorated


class MemoryChecker:
    """Bytes in use at the end are those at the beginning."""

    def __enter__(self):
        gc.collect()
        self._before = tf.stats()["in_use"]
        return self

    def __exit__(self, *_):
        gc.collect()
        self.after = tf.stats()["in_use"]

    def report(self):
        pass

    def assert_no_leak_if_all_possibly_except_one(self):
        assert self.after <= self._before + 4096, (self._before, self.after)


_MODULES = {
    "backprop": {
        "GradientTape": tf.GradientTape, "gradients_function": gradients_function, "implicit_grad": implicit_grad,
        "implicit_val_and_grad": implicit_val_and_grad, "make_vjp": make_vjp, "val_and_grad_function": val_and_grad_function,
    },
    "context": {"device": tf.device, "executing_eagerly": tf.executing_eagerly},
    "custom_gradient": {"custom_gradient": tf.custom_gradient, "recompute_grad": tf.recompute_grad},
    "def_function": {"function": tf.function},
    "function": {"defun": tf.function},
    "math_ops": {"add_v2": tf.add},
    "memory_checker": {"MemoryChecker": MemoryChecker},
    "random_ops": {"random_normal": tf.random.normal, "random_uniform": tf.random.uniform},
    "resource_variable_ops": {"ResourceVariable": tf.Variable},
    "tensor_shape": {},
    "test": {"TestCase": TestCase, "main": unittest.main, "is_gpu_available": lambda: False},
    "test_util": {
        "TensorFlowTestCase": TestCase,
        "assert_no_garbage_created": _gives_all_back, "assert_no_new_pyobjects_executing_eagerly": _gives_all_back,
        "assert_no_new_tensors": _gives_all_back,
        # Tests that TensorFlow runs in graphs and eagerly are run eagerly.
        "run_all_in_graph_and_eager_modes": _as_it_is, "run_in_graph_and_eager_modes": _as_it_is,
        "run_gpu_only": unittest.skip("for a GPU"), "run_v1_only": lambda reason, func=None: _as_it_is(*([func] if func else [])),
    },
    "training": {"GradientDescentOptimizer": tf.compat.v1.train.GradientDescentOptimizer},
}  # fmt: skip
_SPACES = [tf, tf.math, tf.nn, tf.linalg, tf.random, tf.errors, tf.dtypes, tf.nest, tf.compat.v1]


class _Names(types.ModuleType):
    """A module of TensorFlow's; one below a package finds names in this package."""

    def __getattr__(self, name):
        if name.startswith("__") or self.__name__.count(".") < 3 and not self.__name__.endswith(".pywrap_tfe"):
            raise AttributeError(name)
        own = _MODULES.get(self.__name__.rpartition(".")[2], {})
        if name in own:
            return own[name]
        if own == {} and self.__name__.endswith((".tensor_shape", ".pywrap_tfe")):  # protocol buffers, and the native library
            return Missing(name)
        for space in _SPACES:
            with contextlib.suppress(AttributeError):
                return getattr(space, name)
        return Missing(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "tensorflow":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Names(spec.name)

    def exec_module(self, module):
        pass


def install():
    """From here on `tensorflow` is this package."""
    sys.meta_path.insert(0, _Finder())
    nothing = property(lambda self: None)
    tf.Variable.initializer = nothing
    for cls in (tf.Tensor, tf.Variable):
        cls.cpu = cls.gpu = lambda self, number=0: tf.identity(self)
