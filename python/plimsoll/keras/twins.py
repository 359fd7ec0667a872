"""Models built once more, with weights of their own: what a plan has, on a ghost of its device.

A twin is as the model was before it was built: its layers have the same options and no weights, and those of the user's own
have the same attributes, with variables and tensors of the same shapes in place of theirs. Then it is built as the model was.
"""

import copy

from .. import _core
from ..tensor import Tensor, Variable
from .layers.base import Layer
from .symbolic import Graph


def built(model, alive):
    """The native model of a twin, on the current device. What owns its Python is put into a list, whose owner keeps it alive."""
    twin = _of_layer(model, {})
    alive.append(twin)
    twin._ensure_native(model._native.input_shapes(), model._native.input_dtypes())
    return twin._native


def _of_layer(layer, made):
    """The twin of a layer, which is one for all places that know the layer."""
    if id(layer) not in made:
        twin = made[id(layer)] = object.__new__(type(layer))
        for name, value in layer._state_before_build().items():
            # Not by assignment, which a class may have changed.
            twin.__dict__[name] = value if name in ("_compiled", "optimizer") else _of(value, made)
    return made[id(layer)]


def _of_graph(graph, made):
    twin = copy.copy(graph)
    twin.layers = _of(graph.layers, made)
    twin.calls = [copy.copy(call) for call in graph.calls]
    for call in twin.calls:
        call.layer = _of_layer(call.layer, made)
    return twin


def _of(value, made):
    if isinstance(value, Layer):
        return _of_layer(value, made)
    if isinstance(value, Graph):
        return _of_graph(value, made)
    if isinstance(value, (Variable, Tensor)):
        if id(value) not in made:
            made[id(value)] = _of_values(value)
        return made[id(value)]
    if type(value) in (list, tuple, set):
        return type(value)(_of(part, made) for part in value)
    if type(value) is dict:
        return {key: _of(part, made) for key, part in value.items()}
    return value


def _of_values(value):
    like = _core.keras.master(value) if isinstance(value, Variable) else value
    zeros = _core.full(like._shape, 0.0, like._dtype)
    if isinstance(value, Tensor):
        return zeros
    twin = Variable(zeros, value.trainable, name=value._name)
    return twin if value._dtype == like._dtype else _core.keras.mixed(twin, value._dtype)
