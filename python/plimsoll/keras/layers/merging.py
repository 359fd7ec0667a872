"""Layers of several tensors: sums, products, differences, tensors side by side, and attention."""

from .. import initializers
from .base import NativeLayer, refuse


class _Merge(NativeLayer):
    def __init__(self, **common):
        super().__init__({}, **common)


class Add(_Merge):
    """The sum of tensors."""

    _kind = "add"


class Subtract(_Merge):
    """The difference of two tensors."""

    _kind = "subtract"


class Multiply(_Merge):
    """The product of tensors, element by element."""

    _kind = "multiply"


class Concatenate(NativeLayer):
    """Tensors one after the other along an axis; axis 0 is that of the batch."""

    _kind = "concatenate"

    def __init__(self, axis=-1, **common):
        if axis == 0:
            raise ValueError("Concatenate(axis=0) would put batches together; tf.concat does that")
        self.axis = int(axis)
        super().__init__({"axis": self.axis - 1 if self.axis > 0 else self.axis}, **common)


def _function(cls, doc):
    def apply(inputs, **kwargs):
        return cls(**kwargs)(inputs)

    apply.__doc__ = doc
    return apply


add, subtract, multiply = (_function(cls, cls.__doc__) for cls in (Add, Subtract, Multiply))


def concatenate(inputs, axis=-1, **kwargs):
    """Tensors one after the other along an axis."""
    return Concatenate(axis=axis, **kwargs)(inputs)


class MultiHeadAttention(NativeLayer):
    """Each position of a sequence takes from those that matter to it. The heads share the width of the queries evenly."""

    _kind = "multi_head_attention"

    def __init__(self, num_heads, key_dim, value_dim=None, dropout=0.0, use_bias=True, output_shape=None, attention_axes=None,
                 flash_attention=None, kernel_initializer="glorot_uniform", bias_initializer="zeros", kernel_regularizer=None,
                 bias_regularizer=None, kernel_constraint=None, bias_constraint=None, seed=None, **common):  # fmt: skip
        refuse("MultiHeadAttention", dropout=(dropout, 0.0), output_shape=(output_shape, None),
               value_dim=(value_dim or key_dim, key_dim), attention_axes=(attention_axes, None),
               bias_initializer=(bias_initializer, "zeros"), kernel_regularizer=(kernel_regularizer, None),
               bias_regularizer=(bias_regularizer, None), kernel_constraint=(kernel_constraint, None),
               bias_constraint=(bias_constraint, None))  # fmt: skip
        self.num_heads, self.key_dim, self.use_bias = int(num_heads), int(key_dim), bool(use_bias)
        self._is_self_attention = True
        super().__init__({"num_heads": self.num_heads, "use_bias": self.use_bias, "use_causal_mask": False,
                          "kernel_initializer": initializers.described(kernel_initializer)}, **common)  # fmt: skip

    def _native_inputs(self, query, value=None, key=None, query_mask=None, value_mask=None, key_mask=None,
                       attention_mask=None, return_attention_scores=False, use_causal_mask=False):  # fmt: skip
        if key is not None and key is not value:
            raise NotImplementedError("MultiHeadAttention takes keys and values of the same sequence")
        refuse("MultiHeadAttention", return_attention_scores=(return_attention_scores, False), query_mask=(query_mask, None),
               value_mask=(value_mask, None), key_mask=(key_mask, None))  # fmt: skip
        width = query.shape[-1]
        if self.num_heads * self.key_dim != width:
            raise NotImplementedError(
                f"{self.num_heads} heads of key_dim {self.key_dim} and queries of width {width}: here the heads share the width "
                f"evenly, which is key_dim {width // max(self.num_heads, 1)}"
            )
        is_self = value is None or value is query
        if self._native is None:
            self._is_self_attention = is_self
            self._options["use_causal_mask"] = bool(use_causal_mask)
            self._describe()
        elif (is_self, bool(use_causal_mask)) != (self._is_self_attention, self._options["use_causal_mask"]):
            raise NotImplementedError(f"{self.name} was built for other calls: self-attention or not, causal or not")
        if attention_mask is not None:
            return {"query": query, **({} if is_self else {"value": value}), "mask": attention_mask}
        return query if is_self else (query, value)
