"""Tensors and variables: what TensorFlow's users know of them, attached to the classes of the extension module.

Both classes get the same operators from one table. Numbers are weak: they take the dtype of the tensor that they meet.
"""

import numbers
import operator

import numpy as np

from . import _core, dtypes, errors

Tensor = _core.Tensor
Variable = _core.Variable
Value = (Tensor, Variable)


class TensorShape(tuple):
    """The extents of a tensor: a tuple with TensorFlow's methods."""

    rank = ndims = property(len)

    def as_list(self):
        return list(self)

    def num_elements(self):
        return int(np.prod(self, dtype=np.int64))

    def __repr__(self):
        return f"TensorShape({list(self)})"

    def __getitem__(self, key):
        part = tuple.__getitem__(self, key)
        return TensorShape(part) if isinstance(key, slice) else part


def _from_numpy(array, dtype):
    if dtype == "bfloat16" and array.dtype.name != "bfloat16":
        return _core.cast(_from_numpy(array.astype(np.float32), "float32"), dtype)
    array = np.ascontiguousarray(array, None if dtype == "bfloat16" else dtype).reshape(array.shape)
    return Tensor.from_buffer(array.shape, dtype, array.reshape(-1).view(np.uint8))


def convert_to_tensor(value, dtype=None, dtype_hint=None, name=None):
    """A tensor with those values: of a number, a nested list, a numpy array, a tensor or a variable.

    >>> import plimsoll as tf
    >>> tf.convert_to_tensor([1.5, 2.5]).dtype
    tf.float32
    """
    wanted = dtypes.as_dtype(dtype) if dtype is not None else None
    if isinstance(value, Value):
        if wanted is not None and wanted != value.dtype:
            raise ValueError(f"a tensor of {value.dtype.name} was given where {wanted.name} is wanted: use tf.cast")
        return value.value() if isinstance(value, Variable) else value
    if isinstance(value, (list, tuple)) and _holds_tensors(value):
        parts = [convert_to_tensor(part, dtype) for part in value]
        return _core.concat(parts, 0, True)
    array = np.asarray(value)
    if wanted is None:
        weak = not isinstance(value, (np.ndarray, np.generic)) and not hasattr(value, "__array__")
        hint = None if dtype_hint is None else dtypes.as_dtype(dtype_hint)
        if hint is not None and (hint.is_floating and array.dtype.kind == "f" or weak and array.dtype.kind == "i"):
            wanted = hint
        elif weak and array.dtype.kind in "fi":
            wanted = dtypes.float32 if array.dtype.kind == "f" else dtypes.int32
        else:
            wanted = dtypes.as_dtype(array.dtype)
    if wanted.is_integer and array.dtype.kind == "f" and not isinstance(value, (np.ndarray, np.generic)):
        raise TypeError(f"{value!r} has parts that are no whole numbers, and {wanted.name} is wanted")
    return _from_numpy(array, wanted.name)


def _holds_tensors(values):
    return any(isinstance(v, Value) or isinstance(v, (list, tuple)) and _holds_tensors(v) for v in values)


def operands(x, y):
    """Both sides of an op of two: the first a tensor, the second a tensor or a number."""
    if isinstance(x, Value):
        return x, _beside(y, x)
    if isinstance(y, Value):
        if isinstance(x, numbers.Real) and not isinstance(x, np.generic):
            return _core.full([], float(x), y._dtype), y
        return convert_to_tensor(x, dtype_hint=y.dtype), y
    return convert_to_tensor(x), convert_to_tensor(y)


def _beside(value, like):
    if isinstance(value, Value):
        return value
    if isinstance(value, bool):
        return convert_to_tensor(value)
    if isinstance(value, numbers.Real) and not isinstance(value, np.generic):
        if isinstance(value, float) and not like.dtype.is_floating:
            raise TypeError(f"{value!r} beside a tensor of {like.dtype.name}: cast the tensor to tf.float32 first")
        return value
    return convert_to_tensor(value, dtype_hint=like.dtype)


def divide(x, y):
    """Division as Python's: whole numbers become float64 first, as in TensorFlow."""
    x, y = operands(x, y)
    if not x.dtype.is_floating:
        x = _core.cast(x, "float64")
    if isinstance(y, Value) and not y.dtype.is_floating:
        y = _core.cast(y, "float64")
    return _core.binary("div", x, y)


def matmul(a, b):
    a, b = operands(a, b)
    return _core.pair("matmul", a, b)


def logical(name):
    def apply(x, y):
        x, y = operands(x, y)
        return _core.pair(name, x, y)

    return apply


def elementwise(name):
    if name in ("eq", "ne"):
        return _equal if name == "eq" else _not_equal

    def apply(x, y):
        return _core.binary(name, *operands(x, y))

    return apply


def _not_equal(x, y):
    x, y = operands(x, y)
    return _core.pair("logical_xor", x, y) if _are_truths(x, y) else _core.binary("ne", x, y)


def _equal(x, y):
    x, y = operands(x, y)
    return _core.unary("logical_not", _core.pair("logical_xor", x, y)) if _are_truths(x, y) else _core.binary("eq", x, y)


def _are_truths(x, y):
    return x._dtype == "bool" and isinstance(y, Value) and y._dtype == "bool"


_BINARY = {
    "add": elementwise("add"),
    "sub": elementwise("sub"),
    "mul": elementwise("mul"),
    "truediv": divide,
    "floordiv": elementwise("floor_div"),
    "mod": elementwise("rem"),
    "pow": elementwise("pow"),
    "matmul": matmul,
    "and": logical("logical_and"),
    "or": logical("logical_or"),
    "xor": logical("logical_xor"),
}
_COMPARISONS = {name: elementwise(name) for name in ("lt", "le", "gt", "ge")}


def _is_operand(value):
    return isinstance(value, (*Value, numbers.Real, np.ndarray, list, tuple))


def _operator(function, is_reversed=False):
    def method(self, other):
        if not _is_operand(other):
            return NotImplemented
        return function(other, self) if is_reversed else function(self, other)

    return method


def _equality(name):
    function = elementwise(name)

    def method(self, other):
        return function(self, other) if _is_operand(other) else NotImplemented

    return method


def _is_small_constant(self):
    """Whether these are a few whole numbers that are known while a function is recorded, such as those of `tf.shape`."""
    return self.dtype.is_integer and len(self._shape) == 1 and self._shape[0] <= 16 and _core.is_tracing() and not self._is_symbolic


def _getitem(self, key):
    if isinstance(key, (int, slice)) and _is_small_constant(self):
        return convert_to_tensor(_numpy(self)[key], self.dtype)
    keys = list(key) if isinstance(key, tuple) else [key]
    if sum(k is Ellipsis for k in keys) > 1:
        raise IndexError("an index can have one ... only")
    n_axes = sum(k is not None and k is not Ellipsis for k in keys)
    if Ellipsis in [k for k in keys if not isinstance(k, (Value, np.ndarray))]:
        at = next(i for i, k in enumerate(keys) if k is Ellipsis)
        keys[at : at + 1] = [slice(None)] * (len(self._shape) - n_axes)
    pieces, new_axes, axis = [], [], 0
    for k in keys:
        if k is None:
            new_axes.append(axis)
            axis += 1
        elif isinstance(k, slice):
            bound = lambda b: None if b is None else operator.index(b)
            pieces.append((bound(k.start), bound(k.stop), 1 if k.step is None else operator.index(k.step)))
            axis += 1
        else:
            pieces.append(_position(k))
    result = _core.slice(self, pieces)
    for axis in new_axes:
        result = _core.along("unsqueeze", result, axis)
    return result


def _position(key):
    try:
        return operator.index(key)
    except errors.OperatorNotAllowedInGraphError:
        raise
    except TypeError:
        pass
    raise TypeError(
        f"{type(key).__name__} is no index: tensors are indexed by whole numbers, slices, ... and None; "
        "tf.gather takes a tensor of positions, tf.where a mask"
    )


def _iter(self):
    if not self._shape:
        raise TypeError("a tensor without axes cannot be iterated over")
    return (self[i] for i in range(self._shape[0]))


def _len(self):
    if not self._shape:
        raise TypeError("a tensor without axes has no length")
    return self._shape[0]


_ADVICE = {
    "bool": "a Python if, while, and, or cannot depend on a tensor, because there is no AutoGraph: use tf.where",
    "int": "x.shape has extents as Python numbers; any other value can be returned and read outside",
    "numpy": "return the tensor and read it outside",
}


def _check_has_value(self, kind="numpy"):
    """Refuses to read where tensors have shapes and no values yet."""
    if not self._is_symbolic:
        return
    file, line = _core.users_line() or ("?", 0)
    what = ".numpy()" if kind == "numpy" else f"{kind}(tensor)"
    advice = _ADVICE.get(kind, _ADVICE["numpy"])
    if _core.is_tracing() and not _core.is_in_graph():
        raise errors.OperatorNotAllowedInGraphError(
            f"{what} at {file}:{line}, inside a function that is being recorded, where tensors have no values: {advice}, or debug "
            "with tf.config.run_functions_eagerly(True); for a Keras model, with compile(run_eagerly=True)"
        )
    raise errors.OperatorNotAllowedInGraphError(
        f"{what} at {file}:{line}: a tensor of a graph has no value; tf.compat.v1.Session.run gives it"
    )


def _numpy(self):
    _check_has_value(self)
    array = np.empty(self._shape, self.dtype.as_numpy_dtype)
    self.read_into(array.reshape(-1).view(np.uint8))
    return array if array.shape else array[()]


class _Lent:
    """A tensor that is lent without a copy or not at all. numpy cannot be asked for that before version 2.1."""

    def __init__(self, tensor):
        self._tensor = tensor

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()

    def __dlpack__(self, **how):
        return self._tensor.__dlpack__(**how | {"copy": False})


def _array(self, dtype=None, copy=None):
    if copy is False:
        if dtype is not None and np.dtype(dtype) != self.dtype.as_numpy_dtype:
            raise ValueError(f"a tensor of {self._dtype} becomes an array of {np.dtype(dtype)} by a copy")
        try:
            return np.from_dlpack(_Lent(self))  # read-only: tensors do not change
        except (BufferError, RuntimeError) as error:
            raise ValueError(f"a tensor of shape {self.shape} on {self.device} becomes an array by a copy: {error}") from None
    array = np.asarray(_numpy(self))
    return array if dtype is None else array.astype(dtype)


def _single(kind):
    def method(self):
        if np.prod(self._shape, dtype=np.int64) != 1:
            raise TypeError(f"a tensor of shape {self.shape} is no single value; only one element becomes a {kind.__name__}")
        _check_has_value(self, kind.__name__)
        return kind(_numpy(self).item())

    return method


def _index(self):
    if self._shape or not self.dtype.is_integer:
        raise TypeError(f"a tensor of shape {self.shape} and {self.dtype.name} is no whole number")
    _check_has_value(self, "int")
    return int(_numpy(self))


def _hash(self):
    if self._is_symbolic:  # as TensorFlow's in graphs: a placeholder is a key of `feed_dict`
        return id(self)
    raise TypeError(f"{type(self).__name__} is unhashable, since == compares its elements. Use .ref() as the key.")


class Reference:
    """A hashable stand-in for a tensor or variable."""

    def __init__(self, value):
        self._value = value

    def deref(self):
        return self._value

    def __eq__(self, other):
        return isinstance(other, Reference) and self._value is other._value

    def __hash__(self):
        return id(self._value)


def _values_text(self):
    try:
        return str(np.asarray(_numpy(self)))
    except TypeError:  # bfloat16 without ml_dtypes
        return str(np.asarray(_numpy(_core.cast(self, "float32"))))


def _symbolic_text(self):
    return f"<tf.Tensor: shape={tuple(self._shape)}, dtype={self._dtype}, without values: they come when it runs>"


def _str(self):
    if self._is_symbolic:
        return _symbolic_text(self)
    text = _values_text(self)
    newline = "\n" if "\n" in text else ""
    return f"tf.Tensor({newline}{text}, shape={tuple(self._shape)}, dtype={self._dtype})"


def _repr(self):
    if self._is_symbolic:
        return _symbolic_text(self)
    text = _values_text(self)
    value = text if not self._shape else "\n" + repr(np.asarray(_numpy(self))) if self._dtype != "bfloat16" else text
    return f"<tf.Tensor: shape={tuple(self._shape)}, dtype={self._dtype}, numpy={value}>"


def _variable_repr(self):
    if self._is_symbolic:
        return f"<tf.Variable '{self.name}' shape={tuple(self._shape)} dtype={self._dtype}>"
    text = _values_text(self) if not self._shape else "\n" + _values_text(self)
    return f"<tf.Variable '{self.name}' shape={tuple(self._shape)} dtype={self._dtype}, numpy={text}>"


class Operation:
    """Something that a session does when it is fetched, such as an assignment."""

    def __init__(self, tokens, variable=None):
        self.tokens, self.variable = tokens, variable


def _assignment(how):
    def method(self, value, use_locking=False, name=None, read_value=True):
        value = value if isinstance(value, Value) else convert_to_tensor(value, self.dtype)
        operation = self._assign(how, value)
        if operation is not None:
            return Operation([operation], self)
        return self if read_value else None

    return method


def _dlpack(self, *, stream=None, max_version=None, dl_device=None, copy=None):
    """A DLPack capsule: read-only memory of the tensor, or a copy for whoever cannot be told so.

    On a GPU ``stream`` is the one on which the memory will be read: it waits for what computes the values.
    """
    _check_has_value(self, "__dlpack__")
    to_cpu = dl_device is not None and tuple(dl_device) == (1, 0)
    if not to_cpu and dl_device not in (None, self.__dlpack_device__()):
        raise BufferError(f"a tensor on {self.device} cannot be lent to device {dl_device}")
    is_versioned = max_version is not None and max_version[0] >= 1
    return _core.to_capsule(self, is_versioned, copy, stream, to_cpu)


def from_dlpack(external):
    """A tensor over memory of another library, without a copy: an object with ``__dlpack__``, or a capsule.

    Its owner must not write to it while the tensor is there. Truth values are copied. ``stats()["foreign"]`` counts the bytes. On a GPU
    ops wait for what the owner was doing with the memory, and the owner has it back once they are done.

    >>> import numpy as np, plimsoll as tf
    >>> array = np.arange(3.0)
    >>> tf.from_dlpack(array).numpy()
    array([0., 1., 2.])
    """
    if not hasattr(external, "__dlpack__"):
        return _core.from_capsule(external, False)
    kind, number = external.__dlpack_device__()
    how = {"stream": _core.compute_stream(number)} if kind == _CUDA else {}
    try:
        capsule = external.__dlpack__(max_version=(1, 0), **how)
    except TypeError:  # it knows no versions
        capsule = external.__dlpack__(**how)
    return _core.from_capsule(capsule, True)


_CUDA = 2


# What the array API has of arrays.


def _array_namespace(self, *, api_version=None):
    if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
        raise ValueError(f"the array API of {api_version} is not there; that of 2024.12 is")
    from . import xp

    return xp


def _turned(self):
    if len(self._shape) != 2:
        raise ValueError(f"x.T is of arrays with two axes, not of shape {tuple(self._shape)}: use x.mT or tf.transpose")
    return _core.permute(self, [1, 0])


def _matrix_turned(self):
    n = len(self._shape)
    if n < 2:
        raise ValueError(f"x.mT is of arrays with two axes at least, not of shape {tuple(self._shape)}")
    return _core.permute(self, [*range(n - 2), n - 1, n - 2])


def _to_device(self, device, /, *, stream=None):
    if stream is not None or device != self.device:
        raise ValueError(f"an array on {self.device} stays there; with tf.device({device!r}) it is made elsewhere")
    return self


def _attach(cls):
    for name, function in _BINARY.items():
        setattr(cls, f"__{name}__", _operator(function))
        setattr(cls, f"__r{name}__", _operator(function, is_reversed=True))
    for name, function in _COMPARISONS.items():
        setattr(cls, f"__{name}__", _operator(function))
    cls.__eq__, cls.__ne__, cls.__hash__ = _equality("eq"), _equality("ne"), _hash
    cls.__neg__ = lambda self: _core.unary("neg", self)
    cls.__abs__ = lambda self: _core.unary("abs", self)
    cls.__invert__ = lambda self: _core.unary("logical_not", self)
    cls.__getitem__, cls.__iter__, cls.__len__ = _getitem, _iter, _len
    cls.__bool__, cls.__float__, cls.__int__, cls.__index__ = _single(bool), _single(float), _single(int), _index
    cls.__array__, cls.__array_priority__, cls.numpy = _array, 100, _numpy
    cls.shape = property(lambda self: TensorShape(self._shape))
    cls.dtype = property(lambda self: dtypes.BY_NAME[self._dtype])
    cls.ndim = property(lambda self: len(self._shape))
    cls.device = property(lambda self: self._device)
    cls.__dlpack__, cls.__dlpack_device__ = _dlpack, lambda self: _core.dlpack_device(self)
    cls.get_shape = lambda self: self.shape
    cls.ref = lambda self: Reference(self)
    cls.__array_namespace__, cls.to_device, cls.__pos__ = _array_namespace, _to_device, lambda self: self
    cls.T, cls.mT, cls.size = property(_turned), property(_matrix_turned), property(lambda self: self.shape.num_elements())


_attach(_core.Tensor)
_attach(_core.Variable)
Tensor.__str__, Tensor.__repr__ = _str, _repr
Variable.__str__ = Variable.__repr__ = _variable_repr
Variable.assign, Variable.assign_add, Variable.assign_sub = map(_assignment, ("assign", "assign_add", "assign_sub"))
Variable.value = Variable.read_value = _core.Variable._value
Variable.name = property(lambda self: f"{self._name}:0")
