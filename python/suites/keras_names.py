"""`keras` as Keras's own test files import it, over this package: see ``keras_tests.py``.

Any module below `keras` can be imported. A name in one is what this file defines for it, or what `plimsoll` has under that name; any other is a
stand-in that notes that a test asked for it, and raises, when it is used.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import tempfile
import types

import names
import numpy as np
import plimsoll as tf
from absl.testing import parameterized
from plimsoll import keras, xp

SPACES = [keras, keras.layers, keras.losses, keras.metrics, keras.optimizers, keras.optimizers.schedules, keras.initializers,
          keras.regularizers, keras.activations, keras.utils, keras.callbacks]  # fmt: skip
# `keras.ops` has numpy's names.
OPS = [xp, tf, tf.math, tf.nn]


def found(name, spaces):
    """What a name is in the first space that has it; a stand-in if none does."""
    for space in spaces:
        try:
            return getattr(space, name)
        except AttributeError:
            pass
    return Somewhere(name)


def of_arrays(function):
    """A function of `keras.ops`, which takes numpy's arrays as they are."""
    if not isinstance(function, types.FunctionType):
        return function
    taken = lambda x: tf.convert_to_tensor(x) if isinstance(x, (np.ndarray, np.generic)) else x
    return lambda *args, **kwargs: function(*map(taken, args), **{name: taken(value) for name, value in kwargs.items()})


class Somewhere(names.Missing):
    """A name that may be a module of Keras's, in which names are looked for, or something that is not there."""

    __name__ = property(lambda self: self._name)

    def __getattr__(self, member):
        if member.startswith("__"):
            raise AttributeError(member)
        inside = found(member, SPACES)
        if isinstance(inside, Somewhere):
            inside._name = f"{self._name}.{member}"
        return inside


def as_numpy(x):
    return x.numpy() if hasattr(x, "numpy") else np.asarray(x)


class TestCase(parameterized.TestCase):
    """What Keras's test cases have besides unittest's. Nothing here can be turned into a dictionary and back, so tests of that are out of scope."""

    def setUp(self):
        keras.backend.clear_session()
        super().setUp()

    def get_temp_dir(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name

    def assertAllClose(self, x1, x2, atol=1e-6, rtol=1e-6, tpu_atol=None, tpu_rtol=None, msg=None):
        for a, b in zip(*(tf.nest.flatten(x) if isinstance(x, (list, tuple, dict)) else [x] for x in (x1, x2))):
            np.testing.assert_allclose(as_numpy(a), as_numpy(b), atol=atol, rtol=rtol, err_msg=msg or "")

    def assertAlmostEqual(self, x1, x2, decimal=3, tpu_decimal=None, msg=None):
        np.testing.assert_almost_equal(as_numpy(x1), as_numpy(x2), decimal=decimal, err_msg=msg or "")

    def assertAllEqual(self, x1, x2, msg=None):
        np.testing.assert_array_equal(as_numpy(x1), as_numpy(x2), err_msg=msg or "")

    def assertNotAllClose(self, x1, x2, atol=1e-6, rtol=1e-6, msg=None):
        self.assertFalse(np.allclose(as_numpy(x1), as_numpy(x2), atol=atol, rtol=rtol), msg)

    def assertLen(self, container, n, msg=None):
        self.assertEqual(len(container), n, msg)

    def assertDType(self, x, dtype, msg=None):
        self.assertEqual(x.dtype.name, str(getattr(dtype, "name", dtype)), msg)

    run_class_serialization_test = names.Missing("get_config")

    def run_layer_test(self, layer_cls, init_kwargs, input_shape=None, input_dtype="float32", input_sparse=False, input_ragged=False,
                       input_data=None, call_kwargs=None, expected_output_shape=None, expected_output_dtype=None,
                       expected_output_sparse=False, expected_output_ragged=False, expected_output=None,
                       expected_num_trainable_weights=None, expected_num_non_trainable_weights=None,
                       expected_num_non_trainable_variables=None, expected_num_seed_generators=None, expected_num_losses=None,
                       supports_masking=None, expected_mask_shape=None, custom_objects=None, run_training_check=True,
                       run_mixed_precision_check=True, assert_built_after_instantiation=False, tpu_atol=None, tpu_rtol=None):  # fmt: skip
        """A layer by eager calls, by a symbolic call and by a step of training."""
        if input_sparse or input_ragged:
            names.Missing("tf.SparseTensor")()
        call_kwargs = call_kwargs or {}
        layer = layer_cls(**init_kwargs)
        if input_data is None:
            generator = np.random.default_rng(0)
            input_data = _mapped(lambda s: _random(generator, s, input_dtype), input_shape)
        output = layer(input_data, **call_kwargs)
        if expected_output is not None:
            self.assertAllClose(output, expected_output)
        if expected_output_shape is not None:
            self.assertEqual(_mapped_leaves(lambda x: tuple(x.shape), output), expected_output_shape)
        if expected_output_dtype is not None and not isinstance(output, (list, tuple, dict)):
            self.assertDType(output, expected_output_dtype)
        for expected, weights in ((expected_num_trainable_weights, layer.trainable_weights),
                                  (expected_num_non_trainable_weights, layer.non_trainable_weights)):  # fmt: skip
            if expected is not None:
                self.assertLen(weights, expected)
        if expected_num_losses is not None:
            self.assertLen(layer.losses, expected_num_losses)
        if input_shape is not None:
            again = layer_cls(**init_kwargs)
            symbolic = _mapped(lambda s: keras.Input(batch_shape=s, dtype=input_dtype), input_shape)
            shown = again(symbolic, **call_kwargs)
            if expected_output_shape is not None and not isinstance(expected_output_shape[0], (list, tuple)):
                self.assertEqual(tuple(shown.shape)[1:], tuple(expected_output_shape)[1:])
            if run_training_check and again.trainable_weights and not isinstance(shown, (list, tuple, dict)):
                model = keras.Model(symbolic, shown)
                model.compile("sgd", "mse")
                model.fit(input_data, np.zeros(output.shape, "float32"), verbose=0)


def _random(generator, shape, dtype):
    return generator.integers(0, 2, shape).astype(dtype) if "int" in dtype or dtype == "bool" else generator.standard_normal(shape).astype(dtype)


def _mapped(function, shapes):
    if isinstance(shapes, dict):
        return {name: _mapped(function, shape) for name, shape in shapes.items()}
    if isinstance(shapes[0], (list, tuple)):
        return [_mapped(function, shape) for shape in shapes]
    return function(tuple(shapes))


def _mapped_leaves(function, structure):
    return tuple(function(x) for x in structure) if isinstance(structure, (list, tuple)) else function(structure)


_DEFINED = {
    "testing": {"TestCase": TestCase},
    "test_case": {"TestCase": TestCase},
    "backend": {
        "Variable": tf.Variable, "backend": lambda: "plimsoll", "cast": tf.cast, "convert_to_numpy": as_numpy,
        "convert_to_tensor": lambda x, dtype=None: tf.convert_to_tensor(x, dtype), "floatx": lambda: "float32", "is_tensor": tf.is_tensor,
        "shape": lambda x: tuple(x.shape), "standardize_dtype": lambda dtype: getattr(dtype, "name", dtype),
        "KerasTensor": lambda shape, dtype="float32", **_: keras.Input(batch_shape=shape, dtype=dtype), "config": types.SimpleNamespace(floatx=lambda: "float32"),
    },
    "ops": {"array": lambda x, dtype=None: tf.convert_to_tensor(x, dtype), "shape": lambda x: tuple(x.shape)},
}  # fmt: skip


class _Module(types.ModuleType):
    def __getattr__(self, name):
        # pytest looks for hooks in the modules around a test.
        if name.startswith(("__", "pytest", "setup", "setUp", "teardown", "tearDown")):
            raise AttributeError(name)
        own = self.__name__.rpartition(".")[2]
        if name in ("register_keras_serializable", "keras_export"):  # what these decorators note, nothing here reads
            return lambda *_, **__: lambda cls: cls
        if name in _DEFINED.get(own, {}):
            return _DEFINED[own][name]
        if name in _DEFINED or name in ("layers", "losses", "metrics", "optimizers", "initializers", "src", "utils", "models", "random", "saving"):
            return importlib.import_module(f"{self.__name__}.{name}")
        if name.endswith(("uses_gpu", "uses_tpu")):
            return lambda: False
        return of_arrays(found(name, OPS)) if own == "ops" else found(name, SPACES)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "keras" else None

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


def install():
    """From here on `keras` and `tensorflow` are this package."""
    sys.meta_path.insert(0, _Finder())
    sys.modules["tensorflow"] = tf
