"""``model.summary()``: layers, shapes and weights as Keras shows them, and the bytes that each layer keeps for backward."""

import numpy as np

from .. import _core


def text(model, batch_size=1):
    """The table of a model that is built."""
    native = model._built_native()
    saved, total_saved = native.saved_bytes(batch_size)
    by_part = dict(saved)
    names = dict(zip((id(layer) for layer in model.layers), (name for name, _ in saved)))
    rows = [("Layer (type)", "Output Shape", "Param #", f"Saved, batch {batch_size}")]
    for layer in model.layers:
        shape = str(layer.output_shape) if layer._native is not None else "?"
        bytes_saved = by_part.get(names.get(id(layer)), 0)
        rows.append((f"{layer.name} ({type(layer).__name__})", shape, f"{layer.count_params():,}", f"{bytes_saved:,} B"))
    widths = [max(len(row[column]) for row in rows) + 2 for column in range(4)]
    line = "".join("─" * width for width in widths)
    lines = [f'Model: "{model.name}"', line]
    for row in rows:
        lines.append("".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        if row is rows[0]:
            lines.append(line)
    count = [_count(weights) for weights in (model.weights, model.trainable_weights, model.non_trainable_weights)]
    n_bytes = [f"({sum(_bytes(w) for w in weights):,} B)" for weights in
               (model.weights, model.trainable_weights, model.non_trainable_weights)]  # fmt: skip
    lines += [line, f" Total params: {count[0]:,} {n_bytes[0]}", f" Trainable params: {count[1]:,} {n_bytes[1]}",
              f" Non-trainable params: {count[2]:,} {n_bytes[2]}",
              f" Saved for backward at a batch of {batch_size}: {total_saved:,} B"]  # fmt: skip
    return "\n".join(lines)


def _count(weights):
    return sum(int(np.prod(weight._shape, dtype=np.int64)) for weight in weights)


def _bytes(weight):
    own, master = _count([weight]) * weight.dtype.size, _core.keras.master(weight)
    return own if master._dtype == weight._dtype else own + _count([master]) * master.dtype.size
