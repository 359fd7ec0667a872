"""Dense, Embedding, Activation, Dropout and layers that change shapes."""

from .. import activations, initializers
from ..structure import map_structure
from .base import Layer, NativeLayer, refuse


class Dense(NativeLayer):
    """``activation(x kernel + bias)`` over the last axis."""

    _kind = "dense"

    def __init__(self, units, activation=None, use_bias=True, kernel_initializer="glorot_uniform", bias_initializer="zeros",
                 kernel_regularizer=None, bias_regularizer=None, kernel_constraint=None, bias_constraint=None,
                 **common):  # fmt: skip
        refuse("Dense", kernel_constraint=(kernel_constraint, None), bias_constraint=(bias_constraint, None))
        self.units, self.use_bias = int(units), bool(use_bias)
        self.activation = activations.get(activation)
        super().__init__(
            {"units": self.units, "activation": activations.name_of(activation), "use_bias": self.use_bias,
             "kernel_initializer": initializers.described(kernel_initializer),
             "bias_initializer": initializers.described(bias_initializer)},
            {"kernel": kernel_regularizer, "bias": bias_regularizer}, **common)  # fmt: skip


class Embedding(NativeLayer):
    """A row of a table for each whole number."""

    _kind = "embedding"

    def __init__(self, input_dim, output_dim, embeddings_initializer="uniform", embeddings_regularizer=None,
                 embeddings_constraint=None, mask_zero=False, input_length=None, **common):  # fmt: skip
        refuse("Embedding", mask_zero=(mask_zero, False), embeddings_constraint=(embeddings_constraint, None))
        self.input_dim, self.output_dim = int(input_dim), int(output_dim)
        if input_length is not None:
            common.setdefault("input_shape", (input_length,))
        super().__init__(
            {"input_dim": self.input_dim, "output_dim": self.output_dim,
             "embeddings_initializer": initializers.described(embeddings_initializer)},
            {"embeddings": embeddings_regularizer}, **common)  # fmt: skip


class Activation(NativeLayer):
    """A function of each element, or of each row."""

    _kind = "activation"

    def __init__(self, activation, **common):
        self.activation = activations.get(activation)
        super().__init__({"activation": activations.name_of(activation)}, **common)


class ReLU(Activation):
    def __init__(self, max_value=None, negative_slope=0.0, threshold=0.0, **common):
        refuse("ReLU", negative_slope=(negative_slope, 0.0), threshold=(threshold, 0.0))
        if max_value not in (None, 6, 6.0):
            refuse("ReLU", max_value=(max_value, None))
        super().__init__("relu" if max_value is None else "relu6", **common)


class Softmax(Activation):
    def __init__(self, axis=-1, **common):
        refuse("Softmax", axis=(axis, -1))
        super().__init__("softmax", **common)


class ELU(Activation):
    def __init__(self, alpha=1.0, **common):
        refuse("ELU", alpha=(alpha, 1.0))
        super().__init__("elu", **common)


class Dropout(NativeLayer):
    """Zeros for a share of the elements while training, and the others scaled up."""

    _kind = "dropout"

    def __init__(self, rate, noise_shape=None, seed=None, **common):
        refuse("Dropout", noise_shape=(noise_shape, None), seed=(seed, None))
        self.rate = float(rate)
        super().__init__({"rate": self.rate}, **common)


class Flatten(NativeLayer):
    """Each example as one row."""

    _kind = "flatten"

    def __init__(self, data_format=None, **common):
        refuse("Flatten", data_format=(data_format or "channels_last", "channels_last"))
        super().__init__({}, **common)


class Reshape(NativeLayer):
    """Each example in another shape; one extent may be -1."""

    _kind = "reshape"

    def __init__(self, target_shape, **common):
        self.target_shape = tuple(int(n) for n in target_shape)
        super().__init__({"target_shape": list(self.target_shape)}, **common)


class InputLayer(Layer):
    """The shape of the input of a Sequential."""

    def __init__(self, shape=None, batch_size=None, dtype=None, name=None, input_shape=None, batch_shape=None):
        shape = shape if shape is not None else input_shape if input_shape is not None else batch_shape[1:]
        super().__init__(name=name, input_shape=shape)
        self.input_dtype = dtype or "float32"

    def call(self, inputs):
        return inputs


class Lambda(Layer):
    """A function of Python's as a layer."""

    def __init__(self, function, output_shape=None, mask=None, arguments=None, **common):
        super().__init__(**common)
        self.function, self.arguments = function, dict(arguments or {})

    def call(self, inputs):
        return self.function(inputs, **self.arguments)


class Identity(Layer):
    """What goes in."""

    def call(self, inputs):
        return map_structure(lambda tensor: tensor, inputs)
