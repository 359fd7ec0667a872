"""What the tests share: the post's programs, run as they stand but for the import line, and the bytes in use."""

import gc
import pathlib
import signal

import pytest

import plimsoll as tf

# Whoever starts the tests in the background may have them ignore Ctrl-C, which some of them send.
signal.signal(signal.SIGINT, signal.default_int_handler)

POSTS = pathlib.Path(__file__).parent / "posts"


def in_use():
    """The bytes in use that were asked for, without rounding."""
    stats = tf.stats()
    return stats["in_use"] - stats["rounding"]


def run_post(name, definition=None, **names):
    """Runs a program of a post with what its preamble gives; returns its names.

    `definition` stands where the post says that it leaves the definition of the model out.
    """
    text = (POSTS / f"{name}.py").read_text()
    if definition is not None:
        assert text.count("# ... model definition ...") == 1
        text = text.replace("# ... model definition ...", definition)
    assert text.count("import tensorflow as tf") == 1
    code = compile(text.replace("import tensorflow as tf", "import plimsoll as tf"), f"{name}.py", "exec")
    exec(code, names)
    return names


@pytest.fixture(autouse=True)
def gives_all_back():
    """Whatever a test makes is gone when it ends."""
    gc.collect()
    before = in_use()
    tf.random.set_seed(0)
    tf.reset_peaks()
    yield
    tf.limit(None)
    gc.collect()
    assert in_use() == before
