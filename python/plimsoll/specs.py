"""`tf.TensorSpec`: what a tensor will look like."""

from . import dtypes
from .tensor import TensorShape, Value


class TensorSpec:
    """Shape and dtype of a tensor that is not there yet; an extent of None may be any."""

    def __init__(self, shape, dtype=dtypes.float32, name=None):
        self.shape = None if shape is None else TensorShape(shape)
        self.dtype = dtypes.as_dtype(dtype)
        self.name = name

    @classmethod
    def from_tensor(cls, tensor, name=None):
        """The spec of a tensor that is there."""
        return cls(tensor.shape, tensor.dtype, name)

    def is_compatible_with(self, value):
        """Whether a tensor, or a spec, is of this dtype and has these extents."""
        if value.dtype != self.dtype:
            return False
        if self.shape is None:
            return True
        if value.shape is None or len(value.shape) != len(self.shape):
            return False
        return all(mine is None or mine == its for mine, its in zip(self.shape, value.shape))

    def __eq__(self, other):
        return isinstance(other, TensorSpec) and (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self):
        return hash((self.shape, self.dtype))

    def __repr__(self):
        shape = None if self.shape is None else tuple(self.shape)
        return f"TensorSpec(shape={shape}, dtype={self.dtype!r}, name={self.name!r})"


def spec_of(value):
    """The spec of a tensor or variable; any other value itself."""
    return TensorSpec.from_tensor(value) if isinstance(value, Value) else value
