"""``Sequential``: layers one after the other."""

from .. import _core
from .layers.base import Layer
from .layers.core import InputLayer
from .model import Model
from .symbolic import KerasTensor


class Sequential(Model):
    """Layers one after the other, built when the shape of the input is known: from ``input_shape`` or ``Input``, or from the
    first batch."""

    _is_network = True

    def __init__(self, layers=None, trainable=True, name=None):
        super().__init__(name=name, trainable=trainable)
        self._layers = []
        self._input = None
        for layer in layers or []:
            self._append(layer)
        self._build_if_known()

    def add(self, layer):
        """One layer more, at the end."""
        self._append(layer)
        self._build_if_known()

    def pop(self):
        """Takes the last layer away."""
        layer = self._layers.pop()
        self._native, self.built = None, False
        self._build_if_known()
        return layer

    def _append(self, layer):
        if isinstance(layer, KerasTensor):
            self._input = (layer.example_shape, layer.dtype.name)
        elif isinstance(layer, InputLayer):
            self._input = (layer._given_input_shape, layer.input_dtype)
        elif isinstance(layer, Layer):
            if any(layer is known for known in self._layers):
                raise ValueError(f"{layer.name} is in this Sequential already; a graph, Model(inputs, outputs), can share it")
            self._layers.append(layer)
        else:
            raise TypeError(f"{type(layer).__name__} is no layer; tf.keras.layers.Lambda makes one of a function")
        self._native, self.built = None, False

    def _build_if_known(self):
        if self._input is None and self._layers and self._layers[0]._given_input_shape is not None:
            self._input = (self._layers[0]._given_input_shape, "float32")
        if self._input is not None and self._layers:
            self._ensure_native(self._input[0], [self._input[1]])

    def _ensure_native(self, shapes, tensor_dtypes):
        if self._native is not None:
            return
        if not self._layers:
            raise ValueError(f"{self.name} has no layers")
        given, dtypes = shapes, tensor_dtypes
        for layer in self._layers:
            layer._ensure_native(given, dtypes)
            given, dtypes = layer._native.output_shapes(), [layer.compute_dtype]
        natives = [layer._native for layer in self._layers]
        self._native = _core.keras.Model.sequential(natives, [layer._place for layer in self._layers], shapes)
        self.built = True
        if not self._trainable:
            self._native.set_trainable(False)

    @property
    def layers(self):
        return list(self._layers)

    def _layers_inside(self):
        return list(self._layers)
