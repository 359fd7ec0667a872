"""What is said of a name that TensorFlow has and this package has not: that it is not there, and what to use."""

# By the path below tf, the longest that fits: of a name itself, or of the module that it would be in.
INSTEAD = {
    "": "other ops, of which it can be composed",
    "Module": "a plain class that holds tf.Variable objects, or tf.keras.Model",
    "RaggedTensor": "dense tensors, padded to one shape",
    "Session": "tf.compat.v1.Session, in a graph",
    "SparseTensor": "dense tensors",
    "TensorArray": "a Python list, and tf.stack",
    "app": "plain Python",
    "autodiff": "tf.GradientTape, or tape.batch_jacobian",
    "autograph": "tf.where, which chooses by values: there is no AutoGraph",
    "boolean_mask": "tf.where(mask, x, 0.0), which keeps the shape: no op has a size that depends on values",
    "complex": "two tensors of real numbers",
    "complex64": "two tensors of real numbers",
    "contrib": "the names of TensorFlow 2, which has no tf.contrib either",
    "control_dependencies": "tf.group in a graph; elsewhere ops run in the order of the program",
    "distribute": "one device; the Rust crate plimsoll-dist trains over several",
    "errors": "tf.errors.OpError, which all errors of ops are",
    "estimator": "tf.keras",
    "experimental": "the same below tf, where it is there",
    "feature_column": "numpy, before tf.data",
    "flags": "argparse",
    "gfile": "Python's open",
    "global_variables_initializer": "tf.compat.v1.global_variables_initializer, in a graph; other variables have their values at once",
    "hessians": "tape.jacobian of tape.gradient, with two tapes",
    "image": "numpy or Pillow, before tf.data",
    "io": "Python's files, and numpy",
    "layers": "tf.keras.layers",
    "lite": "the weights, by model.save_weights as safetensors",
    "numpy_function": "Dataset.map for functions of arrays; a tf.function records tensors only",
    "placeholder": "tf.compat.v1.placeholder, in a graph; or an argument of a tf.function",
    "py_function": "Dataset.map for functions of arrays; a tf.function records tensors only",
    "ragged": "dense tensors, padded to one shape",
    "saved_model": "model.save_weights, as safetensors, or pickle",
    "scan": "a Python loop, which a tf.function records step by step; tf.cumsum and tf.math.cumprod for sums and products",
    "signal": "numpy, before tf.data",
    "sparse": "dense tensors",
    "string": "numbers: texts are no tensors",
    "strings": "plain Python: texts are no tensors",
    "summary": "tf.keras.callbacks.CSVLogger, or a callback of your own",
    "test": "tf.config.list_physical_devices, and pytest",
    "train": "tf.keras.optimizers; for checkpoints model.save_weights",
    "unique": "numpy's, of x.numpy(): no op has a size that depends on values",
    "vectorized_map": "ops of the whole batch, or tf.map_fn",
    "version": "tf.__version__",
    "compat": "the name of TensorFlow 2",
    "compat.v1.layers": "tf.keras.layers",
    "compat.v1.train": "tf.keras.optimizers outside of graphs",
    "config": "tf.limit, for memory",
    "data": "Dataset.from_generator, for anything that Python can yield",
    "data.Dataset": "Dataset.from_generator, for anything that Python can yield",
    "data.Dataset.flat_map": "Dataset.map and Dataset.unbatch",
    "data.Dataset.interleave": "Dataset.from_generator, with a generator that goes round",
    "data.Dataset.list_files": "Dataset.from_tensor_slices of numbers, or Dataset.from_generator over sorted(glob.glob(...))",
    "data.Dataset.padded_batch": "pad in Dataset.map, then batch",
    "data.Dataset.reduce": "a for loop over the dataset",
    "data.Dataset.window": "Dataset.batch, or slices of an array",
    "data.TFRecordDataset": "Dataset.from_generator over a reader of the files",
    "data.TextLineDataset": "Dataset.from_generator over the lines of the file",
    "keras": "layers, losses, metrics and callbacks of your own",
    "keras.Layer.from_config": "copy.deepcopy, or the arguments once more",
    "keras.Layer.get_config": "copy.deepcopy or pickle, or the arguments once more",
    "keras.Layer.to_json": "pickle, or the Python that makes the model, and model.save_weights",
    "keras.applications": "a model of tf.keras.layers; nothing is fetched",
    "keras.callbacks": "a subclass of tf.keras.callbacks.Callback",
    "keras.callbacks.TensorBoard": "tf.keras.callbacks.CSVLogger, or tf.profile(path) and its page",
    "keras.constraints": "assignments in a callback, or in a train_step of your own",
    "keras.datasets": "numpy.load of arrays that are there; nothing is fetched",
    "keras.layers": "a subclass of tf.keras.layers.Layer, with the ops of tf in its call, or tf.keras.layers.Lambda",
    "keras.losses": "a function of (y_true, y_pred), as loss=",
    "keras.metrics": "a function of (y_true, y_pred), whose mean is told, as metrics=[...], or numpy on what model.predict gives",
    "keras.mixed_precision.LossScaleOptimizer": "loss_scale_factor=... of an optimizer, where the factor begins",
    "keras.optimizers": "SGD, Adam, AdamW, RMSprop, Adagrad or Adafactor; a train_step of your own may update otherwise",
    "keras.preprocessing": "numpy, before tf.data",
    "keras.utils": "plain Python or numpy",
    "linalg": "numpy's, of x.numpy(), where no gradient is wanted",
    "math": "other ops, of which it can be composed",
    "nn": "other ops, of which it can be composed, or tf.keras.layers",
    "xp": "other functions of xp, of which it can be composed, or those of tf",
    "random": "tf.random.normal, uniform or truncated_normal, or numpy's generators",
}  # fmt: skip


def instead(path):
    """What to use instead of a name, by the nearest part of its path that is known."""
    while path not in INSTEAD:
        path = path.rpartition(".")[0]
    return INSTEAD[path]


def message(path):
    """What is said of a name below tf that is not there."""
    page = "keras" if path.startswith("keras") else "python"
    return f"Plimsoll has no tf.{path}; use {instead(path)}. docs/{page}.md lists what is there"


def missing_method(cls):
    """The `__getattr__` of a class of TensorFlow's, whose path below tf is given."""

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(message(f"{cls}.{name}"))

    return __getattr__


def missing(space):
    """The `__getattr__` of a module of TensorFlow's names, `""` for `tf` itself."""

    def __getattr__(name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(message(f"{space}.{name}" if space else name))

    return __getattr__
