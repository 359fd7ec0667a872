"""What is said of a name that TensorFlow has and this package has not."""


def missing(space):
    """The `__getattr__` of a module of TensorFlow's names, `""` for `tf` itself."""

    def __getattr__(name):
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{space}.{name}" if space else name
        raise AttributeError(f"Plimsoll has no tf.{path}. docs/python.md lists what is there")

    return __getattr__
