"""What ``fit``, ``evaluate`` and ``predict`` are given, as runs take it: arrays that are read natively, or batches of Python's.

``Arrays`` is for numpy arrays and tensors in any structure; ``Batches`` for an iterable of batches; ``Pipeline`` for a native
``tf.data.Dataset``. This is the one place where they are told apart.
"""

import itertools

import numpy as np

from .. import _core, array_ops
from ..tensor import Value
from .layers.base import as_tensor
from .structure import leaves, map_structure


def unpack(batch):
    """Inputs, labels and weights of a batch; those that are not there are None."""
    if not isinstance(batch, (list, tuple)):
        return batch, None, None
    if not 1 <= len(batch) <= 3:
        raise ValueError(f"a batch has inputs, labels and sample weights; this one has {len(batch)} parts")
    return (*batch, None, None)[:3]


def is_arrays(x):
    """Whether these are examples, in arrays, and not batches."""
    return all(isinstance(leaf, (np.ndarray, Value)) or np.isscalar(leaf) for leaf in leaves(x)) and bool(leaves(x))


class Arrays:
    """Examples in arrays, some of them, in batches."""

    def __init__(self, x, y, sample_weight, batch_size, shuffle, start=0, stop=None):
        self.parts = tuple(map_structure(_whole, part) for part in (x, y, sample_weight) if part is not None)
        lengths = {leaf._shape[0] if leaf._shape else 0 for leaf in leaves(self.parts)}
        if len(lengths) != 1:
            shapes = ", ".join(str(tuple(leaf._shape)) for leaf in leaves(self.parts))
            raise ValueError(f"all arrays must have as many examples, along their first axis; these are {shapes}")
        self.n_all = lengths.pop()
        self.start, self.stop = start, self.n_all if stop is None else stop
        self.batch_size, self.shuffle = int(batch_size or 32), bool(shuffle)
        self.has_labels = y is not None

    def split(self, fraction):
        """The first examples, to train on, and a share of the last, to evaluate with."""
        if not 0.0 < fraction < 1.0:
            raise ValueError(f"validation_split={fraction}; it is a share between 0 and 1")
        middle = int(self.n_all * (1.0 - fraction))
        if middle in (0, self.n_all):
            raise ValueError(f"validation_split={fraction} of {self.n_all} examples leaves nothing to train on, or to evaluate with")
        train, held_out = object.__new__(Arrays), object.__new__(Arrays)
        vars(train).update(vars(self), stop=middle)
        vars(held_out).update(vars(self), start=middle, shuffle=False)
        return train, held_out

    def example(self):
        """Inputs and labels of one batch, by shape and dtype, from which a model can be built."""
        return self.parts[0], self.parts[1] if self.has_labels else None

    def prepared(self, model):
        """The same as the model takes them: whole numbers as floats where it computes with floats."""
        self.parts = (as_model_takes(model, self.parts[0]), *map_labels(model, self.parts[1:2]), *self.parts[2:])
        return self

    def native(self, steps=None):
        n = self.stop - self.start
        arrays = _core.keras.Arrays(self.parts, self.start, n, self.batch_size, self._seed() if self.shuffle else None)
        return arrays if steps is None else arrays.take(int(steps))

    def planned(self):
        return {"shapes": map_structure(lambda tensor: list(tensor._shape), self.parts),
                "dtypes": [leaf._dtype for leaf in leaves(self.parts)], "start": self.start, "len": self.stop - self.start,
                "batch": self.batch_size, "is_shuffled": self.shuffle}  # fmt: skip

    def n_batches(self):
        return -(-(self.stop - self.start) // self.batch_size)

    def batches(self):
        """The batches of an epoch as tensors, in an order of its own if they are shuffled."""
        order = np.random.default_rng(self._seed()).permutation(self.stop - self.start) + self.start if self.shuffle else None
        for start in range(self.start, self.stop, self.batch_size):
            stop = min(start + self.batch_size, self.stop)
            if order is None:
                yield tuple(map_structure(lambda tensor: tensor[start:stop], part) for part in self.parts)
            else:
                places = order[start - self.start : stop - self.start]
                yield tuple(map_structure(lambda tensor: array_ops.gather(tensor, places), part) for part in self.parts)

    @staticmethod
    def _seed():
        return int(_core.randint([1], 0, 2**31 - 1, "int64").numpy()[0])


class Batches:
    """An iterable of batches, gone through once in every epoch; of an iterator, each epoch takes the next."""

    def __init__(self, iterable, steps=None):
        is_iterator = iter(iterable) is iterable
        self._first = None
        if is_iterator:
            self._first = next(iterable, None)
            self._rest = itertools.chain([self._first], iterable) if self._first is not None else iter(())
        self._iterable, self._is_iterator, self.steps, self._model = iterable, is_iterator, steps, None
        length = getattr(iterable, "__len__", None)
        known = None if is_iterator or length is None else _length(length)
        self.n_batches = steps if steps is not None else known

    def example(self):
        first = self._first if self._is_iterator else next(iter(self._iterable), None)
        if first is None:
            raise ValueError("the data are empty: an epoch has no batch")
        x, y, _ = unpack(first)
        return map_structure(as_tensor, x), None if y is None else map_structure(as_tensor, y)

    def prepared(self, model):
        self._model = model
        return self

    def native(self, steps=None):
        if steps is not None:
            self.steps = self.n_batches = int(steps)
        return self

    def epoch(self, number):
        """The batches of an epoch, as a run takes them."""
        for x, y, weights in self.batches():
            if y is None:
                raise ValueError("a batch has inputs and no labels")
            x = as_model_takes(self._model, map_structure(as_tensor, x))
            (y,) = map_labels(self._model, (map_structure(as_tensor, y),))
            yield x, y, None if weights is None else map_structure(as_tensor, weights)

    def batches(self):
        """The batches of an epoch as they were given."""
        batches = self._rest if self._is_iterator else iter(self._iterable)
        return map(unpack, batches if self.steps is None else itertools.islice(batches, self.steps))


class Pipeline(Batches):
    """A ``tf.data.Dataset`` without Python in it: read natively where its batches are what the model takes as they are."""

    def native(self, steps=None):
        x, y = self.example()
        taken = (as_model_takes(self._model, x), *map_labels(self._model, (y,)))
        if any(a is not b for a, b in zip(leaves((x, y)), leaves(taken))):
            return super().native(steps)
        data = self._iterable._dataset
        return data if steps is None else data.take(int(steps))


def adapt(x, y=None, sample_weight=None, batch_size=None, shuffle=False, steps=None):
    """Data as they were given to ``fit``."""
    is_list_of_batches = y is None and isinstance(x, list) and bool(x) and all(isinstance(batch, tuple) for batch in x)
    if is_arrays(x) and not is_list_of_batches:
        return Arrays(x, y, sample_weight, batch_size, shuffle)
    if y is not None or sample_weight is not None:
        raise ValueError("an iterable gives batches of inputs and labels; y and sample_weight are for arrays")
    if not hasattr(x, "__iter__"):
        raise TypeError(f"{type(x).__name__} is neither arrays nor an iterable of batches")
    return Batches(x, steps) if getattr(x, "_dataset", None) is None else Pipeline(x, steps)


def as_model_takes(model, inputs):
    """Inputs in dtypes that the model takes: whole numbers become floats unless it begins with an embedding."""
    wanted = iter(model._native.input_dtypes())

    def cast(tensor):
        dtype = next(wanted, tensor._dtype)
        is_number = tensor.dtype.is_integer or tensor.dtype.is_bool
        return array_ops.cast(tensor, dtype) if is_number and dtype.startswith(("float", "bfloat")) else tensor

    return map_structure(cast, inputs)


def map_labels(model, labels):
    """Labels of [n] as [n, 1] where that is what the model gives."""
    outputs = model._native.output_shapes()
    if not isinstance(outputs, list) or outputs[-1:] != [1]:
        return labels
    rank = len(outputs) + 1

    def expanded(tensor):
        return array_ops.reshape(tensor, [*tensor._shape, 1]) if len(tensor._shape) == rank - 1 else tensor

    return tuple(map_structure(expanded, part) for part in labels)


def _whole(array):
    tensor = as_tensor(array)
    return tensor._value() if hasattr(tensor, "_value") else tensor


def _length(length):
    try:
        return int(length())
    except (TypeError, NotImplementedError):
        return None
