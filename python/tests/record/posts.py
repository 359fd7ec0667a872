"""What the posts' programs need besides themselves, for both frameworks: ``tf`` is TensorFlow or Plimsoll."""

import contextlib
import io
import pathlib

POSTS = pathlib.Path(__file__).parents[1] / "posts"
# What stands where a post leaves the definition of its model out.
DEFINITIONS = {"002_1": "y = model(x)", "002_2": "y = model(x)", "003_2": ""}


def preamble(tf, name):
    """The names that a program of a post uses and does not define."""
    if name not in ("002_1", "002_2", "002_3", "003_1", "003_2"):
        return {}
    of = tf.keras.layers
    model = tf.keras.Sequential([of.Dense(4, activation="tanh", input_shape=(8,)), of.Dense(1)])
    x, y = tf.random.normal([64, 8]), tf.random.normal([64, 1])
    error = lambda predictions, labels: tf.reduce_mean(tf.square(predictions - labels))
    found = {"x": x, "target": y, "model": model, "optimizer": tf.keras.optimizers.SGD(0.1)}
    if name == "002_2":
        with tf.GradientTape() as tape:
            pass
        found["tape"] = tape
    if name == "002_3":
        found |= {"features": x, "labels": y, "batch_size": 16, "compute_loss": error}
    if name == "003_1":
        found |= {"num_epochs": 2, "dataset": [{"inputs": x, "labels": y}] * 3, "loss_function": error}
    if name == "003_2":
        found |= {"num_epochs": 2, "data": (x, y), "batch_size": 16, "loss_function": error}
    return found


def run(tf, name, import_line):
    """What a program prints, and what it raises at its end: nothing where it does not."""
    text = (POSTS / f"post_{name}.py").read_text()
    definition = DEFINITIONS.get(name)
    if definition is not None:
        text = text.replace("# ... model definition ...", definition)
    text = text.replace("import tensorflow as tf", import_line).replace("import time\n", "import types; time = types.SimpleNamespace(sleep=lambda _: 0)\n")
    printed, raised = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(text, f"post_{name}.py", "exec"), preamble(tf, name) | {"__name__": "post"})
        except Exception as error:
            raised = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return {"printed": printed.getvalue(), "raised": raised}


NAMES = sorted(path.stem.removeprefix("post_") for path in POSTS.glob("post_*.py"))
