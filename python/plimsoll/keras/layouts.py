"""Weights as Keras lays them out. The framework's convolutions have their outputs first, its GRU has other gates first, and its
attention has queries, keys and values side by side; everything else lies as in Keras."""

import numpy as np


def _outputs_last(array):
    return np.moveaxis(array, 0, -1)


def _outputs_first(array):
    return np.moveaxis(array, -1, 0)


def _convolution(arrays, layer):
    return [_outputs_last(arrays[0]), *arrays[1:]]


def _of_convolution(arrays, layer):
    return [_outputs_first(arrays[0]), *arrays[1:]]


def _depthwise(arrays, layer):
    kernel = _outputs_last(arrays[0])[:, :, 0, :]
    multiplier = layer.depth_multiplier
    return [kernel.reshape(*kernel.shape[:2], -1, multiplier), *arrays[1:]]


def _of_depthwise(arrays, layer):
    kernel = arrays[0].reshape(*arrays[0].shape[:2], 1, -1)
    return [_outputs_first(kernel), *arrays[1:]]


def _swap_gates(array):
    """Ours are reset, update, new; Keras's update, reset, new."""
    reset, update, new = np.split(array, 3, axis=-1)
    return np.concatenate([update, reset, new], axis=-1)


def _gru(arrays, layer):
    kernel, recurrent, *biases = map(_swap_gates, arrays)
    return [kernel, recurrent, *([np.stack(biases)] if biases else [])]


def _of_gru(arrays, layer):
    kernel, recurrent, *bias = map(_swap_gates, arrays)
    return [kernel, recurrent, *(bias[0] if bias else [])]


def _attention(arrays, layer):
    heads, has_bias = layer.num_heads, layer.use_bias
    step = 2 if has_bias else 1
    kernels, biases = arrays[0::step], arrays[1::step] if has_bias else []
    width = kernels[-1].shape[-1]
    parts = [part for kernel in kernels[:-1] for part in np.split(kernel, kernel.shape[-1] // width, axis=-1)]
    shown = [part.reshape(part.shape[0], heads, -1) for part in parts]
    shown.append(kernels[-1].reshape(heads, -1, width))
    if not has_bias:
        return shown
    of_parts = [part for bias in biases[:-1] for part in np.split(bias, len(bias) // width)]
    shown_biases = [part.reshape(heads, -1) for part in of_parts] + [biases[-1]]
    return [array for pair in zip(shown, shown_biases) for array in pair]


def _of_attention(arrays, layer):
    has_bias = layer.use_bias
    step = 2 if has_bias else 1
    kernels, biases = arrays[0::step], arrays[1::step] if has_bias else []
    flat = [kernel.reshape(kernel.shape[0], -1) for kernel in kernels[:-1]]
    output = kernels[-1].reshape(-1, kernels[-1].shape[-1])
    flat_biases = [bias.reshape(-1) for bias in biases[:-1]]
    groups = [slice(0, 3)] if layer._is_self_attention else [slice(0, 1), slice(1, 3)]
    together = []
    for group in groups:
        together.append(np.concatenate(flat[group], axis=-1))
        if has_bias:
            together.append(np.concatenate(flat_biases[group]))
    return [*together, output, *([biases[-1]] if has_bias else [])]


def _bidirectional(arrays, layer):
    half = len(arrays) // 2
    return [*to_keras(layer.layer, arrays[:half]), *to_keras(layer.layer, arrays[half:])]


def _of_bidirectional(arrays, layer):
    half = len(arrays) // 2
    return [*from_keras(layer.layer, arrays[:half]), *from_keras(layer.layer, arrays[half:])]


_TO_KERAS = {
    "bidirectional": _bidirectional,
    "conv1d": _convolution, "conv2d": _convolution, "conv1d_transpose": _convolution, "conv2d_transpose": _convolution,
    "depthwise_conv2d": _depthwise, "gru": _gru, "multi_head_attention": _attention,
}  # fmt: skip
_FROM_KERAS = {
    "bidirectional": _of_bidirectional,
    "conv1d": _of_convolution, "conv2d": _of_convolution, "conv1d_transpose": _of_convolution,
    "conv2d_transpose": _of_convolution, "depthwise_conv2d": _of_depthwise, "gru": _of_gru,
    "multi_head_attention": _of_attention,
}  # fmt: skip


def to_keras(layer, arrays):
    """The arrays of a layer's variables in Keras's layouts."""
    convert = _TO_KERAS.get(getattr(layer, "_kind", None))
    return convert(arrays, layer) if convert else arrays


def from_keras(layer, arrays):
    """Arrays in Keras's layouts as the layer's variables have them."""
    convert = _FROM_KERAS.get(getattr(layer, "_kind", None))
    return convert(arrays, layer) if convert else arrays
