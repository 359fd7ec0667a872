"""Recurrent layers over sequences, [time, features]."""

from .. import activations, initializers
from .base import NativeLayer, refuse


class _Recurrent(NativeLayer):
    _activation, _recurrent_activation = "tanh", "sigmoid"

    def _start(self, units, activation, use_bias, kernel_initializer, recurrent_initializer, bias_initializer,
               kernel_regularizer, recurrent_regularizer, bias_regularizer, return_sequences, refused, common):  # fmt: skip
        refuse(type(self).__name__, **refused)
        self.units, self.use_bias, self.return_sequences = int(units), bool(use_bias), bool(return_sequences)
        options = {
            "units": self.units, "activation": activations.name_of(activation), "use_bias": self.use_bias,
            "kernel_initializer": initializers.described(kernel_initializer),
            "recurrent_initializer": initializers.described(recurrent_initializer),
            "bias_initializer": bias_initializer, "return_sequences": self.return_sequences,
        }  # fmt: skip
        regularized = {"kernel": kernel_regularizer, "recurrent_kernel": recurrent_regularizer, "bias": bias_regularizer}
        NativeLayer.__init__(self, options, regularized, **common)


def _refused(dropout, recurrent_dropout, return_state, go_backwards, stateful):
    return {"dropout": (dropout, 0.0), "recurrent_dropout": (recurrent_dropout, 0.0), "return_state": (return_state, False),
            "go_backwards": (go_backwards, False), "stateful": (stateful, False)}  # fmt: skip


class SimpleRNN(_Recurrent):
    """A dense layer that also sees its last output."""

    _kind = "simple_rnn"

    def __init__(self, units, activation="tanh", use_bias=True, kernel_initializer="glorot_uniform",
                 recurrent_initializer="orthogonal", bias_initializer="zeros", kernel_regularizer=None,
                 recurrent_regularizer=None, bias_regularizer=None, dropout=0.0, recurrent_dropout=0.0,
                 return_sequences=False, return_state=False, go_backwards=False, stateful=False, unroll=False,
                 **common):  # fmt: skip
        refused = _refused(dropout, recurrent_dropout, return_state, go_backwards, stateful)
        self._start(units, activation, use_bias, kernel_initializer, recurrent_initializer,
                    initializers.described(bias_initializer), kernel_regularizer, recurrent_regularizer, bias_regularizer,
                    return_sequences, refused, common)  # fmt: skip


class LSTM(_Recurrent):
    """A cell that decides what to remember, what to forget and what to show."""

    _kind = "lstm"

    def __init__(self, units, activation="tanh", recurrent_activation="sigmoid", use_bias=True,
                 kernel_initializer="glorot_uniform", recurrent_initializer="orthogonal", bias_initializer="zeros",
                 unit_forget_bias=True, kernel_regularizer=None, recurrent_regularizer=None, bias_regularizer=None,
                 dropout=0.0, recurrent_dropout=0.0, return_sequences=False, return_state=False, go_backwards=False,
                 stateful=False, unroll=False, use_cudnn="auto", **common):  # fmt: skip
        refused = _refused(dropout, recurrent_dropout, return_state, go_backwards, stateful)
        refused |= {"activation": (activation, "tanh"), "recurrent_activation": (recurrent_activation, "sigmoid")}
        bias = initializers.described(bias_initializer)
        if unit_forget_bias:
            refused |= {"bias_initializer": (bias, ("zeros", 0.0))}
            bias = ("unit_forget", 0.0)
        self._start(units, activation, use_bias, kernel_initializer, recurrent_initializer, bias, kernel_regularizer,
                    recurrent_regularizer, bias_regularizer, return_sequences, refused, common)  # fmt: skip


class GRU(_Recurrent):
    """A cell that decides what to reset and what to keep."""

    _kind = "gru"

    def __init__(self, units, activation="tanh", recurrent_activation="sigmoid", use_bias=True,
                 kernel_initializer="glorot_uniform", recurrent_initializer="orthogonal", bias_initializer="zeros",
                 kernel_regularizer=None, recurrent_regularizer=None, bias_regularizer=None, dropout=0.0,
                 recurrent_dropout=0.0, return_sequences=False, return_state=False, go_backwards=False, stateful=False,
                 unroll=False, reset_after=True, use_cudnn="auto", **common):  # fmt: skip
        refused = _refused(dropout, recurrent_dropout, return_state, go_backwards, stateful)
        refused |= {"activation": (activation, "tanh"), "recurrent_activation": (recurrent_activation, "sigmoid"),
                    "reset_after": (reset_after, True)}  # fmt: skip
        self._start(units, activation, use_bias, kernel_initializer, recurrent_initializer,
                    initializers.described(bias_initializer), kernel_regularizer, recurrent_regularizer, bias_regularizer,
                    return_sequences, refused, common)  # fmt: skip


class Bidirectional(NativeLayer):
    """Two layers like a recurrent one, of which the second reads the sequence backwards."""

    _kind = "bidirectional"

    def __init__(self, layer, merge_mode="concat", weights=None, backward_layer=None, **common):
        if not isinstance(layer, _Recurrent):
            raise TypeError(f"Bidirectional is of an LSTM, a GRU or a SimpleRNN, not of {type(layer).__name__}")
        refuse("Bidirectional", weights=(weights, None), backward_layer=(backward_layer, None))
        if merge_mode not in ("concat", "sum", "mul", "ave"):
            raise NotImplementedError(f"Bidirectional has no merge_mode={merge_mode!r}; there are 'concat', 'sum', 'mul' and 'ave'")
        self.layer, self.merge_mode = layer, merge_mode
        regularized = {f"{part}.{name}": found for part in ("forward", "backward") for name, found in layer._regularizers.items()}
        super().__init__({"layer": (layer._kind, layer._options), "merge_mode": merge_mode}, regularized, **common)
