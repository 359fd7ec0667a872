"""Every public function has a docstring with an example, and the examples run."""

import doctest
import types

import numpy as np
import plimsoll as tf
import pytest

SPACES = {"tf": tf, "tf.math": tf.math, "tf.nn": tf.nn, "tf.linalg": tf.linalg, "tf.random": tf.random}


def functions():
    """The public functions of the namespaces, each once."""
    seen = {}
    for space, module in SPACES.items():
        for name, value in sorted(vars(module).items()):
            if isinstance(value, types.FunctionType) and not name.startswith("_"):
                seen.setdefault(value, f"{space}.{name}")
    return {name: function for function, name in seen.items()}


def methods():
    """What classes have that show examples."""
    found = {}
    for cls in (tf.GradientTape, tf.data.Dataset, tf.limit, tf.profile):
        found[cls.__name__] = cls
        found |= {f"{cls.__name__}.{name}": value for name, value in vars(cls).items() if callable(value) and not name.startswith("_")}
    return found


ALL = functions() | methods()


def test_every_function_shows_an_example():
    assert [name for name, function in functions().items() if ">>> " not in (function.__doc__ or "")] == []


@pytest.mark.parametrize("name", [name for name, value in ALL.items() if ">>> " in (value.__doc__ or "")])
def test_examples_run(name):
    example = doctest.DocTestParser().get_doctest(ALL[name].__doc__, {"np": np}, name, None, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    printed = []
    result = runner.run(example, out=printed.append)
    assert result.attempted and not result.failed, "".join(printed)
