"""`tf.data`: pipelines of elements on their way to the training loop.

A pipeline without Python in it is native: ``_dataset`` is its object of the extension module, which makes batches ahead on threads of its
own, in memory of the pool that is counted as data. From a generator or a mapped Python function on, the elements are made by
the thread that iterates; the Python object owns the function, so nothing native ever holds one.
"""

import collections
import itertools
import random

import numpy as np

from . import _core, errors
from .memory import parse_bytes
from .missing import missing as _missing, missing_method as _missing_method
from .nest import flatten, pack
from .specs import TensorSpec
from .tensor import Value, convert_to_tensor

AUTOTUNE = -1
INFINITE_CARDINALITY, UNKNOWN_CARDINALITY = -1, -2
_LEAF = None


class Dataset:
    """Elements, and what is done with them; nothing runs before it is iterated, and each iteration is an epoch."""

    def __init__(self, native=None, structure=_LEAF, begin=None, n=None):
        self._dataset = native
        # How the tensors of a native element are arranged.
        self._structure = structure
        # Begins an epoch of a pipeline with Python in it; how many elements it has, if that is known.
        self._begin, self._n = begin, n

    @staticmethod
    def from_tensor_slices(tensors, name=None):
        """The slices of arrays along their first axis; tuples and dicts of arrays give tuples and dicts of slices."""
        structure = _converted(tensors)
        return Dataset(_core.Dataset.from_tensor_slices(structure), _outline(structure))

    @staticmethod
    def from_tensors(tensors, name=None):
        """One element."""
        element = _converted(tensors)
        return Dataset(begin=lambda: iter([element]), n=1)

    @staticmethod
    def from_generator(generator, output_types=None, output_shapes=None, args=None, output_signature=None, name=None):
        """What a generator yields; it is begun anew for every epoch, and runs on the thread that iterates."""
        if not callable(generator):
            raise TypeError("from_generator takes a function that returns a generator, so that each epoch can begin anew")
        signature = output_signature if output_signature is not None else _signature(output_types, output_shapes)

        def begin():
            for number, element in enumerate(generator(*(args or ()))):
                yield _yielded(element, signature, number)

        return Dataset(begin=begin)

    @staticmethod
    def range(*args, output_type=None, name=None):
        """Whole numbers, as Python's range."""
        numbers = np.arange(*args, dtype=np.int64 if output_type is None else output_type.as_numpy_dtype)
        return Dataset.from_tensor_slices(numbers)

    @staticmethod
    def zip(*datasets, name=None):
        """Elements of datasets side by side, until one of them ends."""
        structure = datasets[0] if len(datasets) == 1 else datasets
        parts = flatten(structure)
        known = [part._count() for part in parts]
        n = None if None in known else min(known)
        return Dataset(begin=lambda: (pack(structure, iter(element)) for element in zip(*map(iter, parts))), n=n)

    def batch(self, batch_size, drop_remainder=False, num_parallel_calls=None, deterministic=None, name=None):
        """Batches of so many elements; the last may be smaller, unless the remainder is dropped."""
        size = int(batch_size)
        if self._dataset is not None:
            return self._native(self._dataset.batch(size, bool(drop_remainder)))
        if size < 1:
            raise ValueError(f"a batch has at least one element, not {size}")
        n = self._count()
        if n not in (None, float("inf")):
            n = n // size if drop_remainder else -(-n // size)
        return Dataset(begin=lambda: _batches(iter(self), size, drop_remainder), n=n)

    def shuffle(self, buffer_size, seed=None, reshuffle_each_iteration=True, name=None):
        """Another order: of all elements where they can be read at any time, else drawn from a buffer."""
        seed = _drawn_seed() if seed is None else int(seed)
        anew = reshuffle_each_iteration is not False
        if self._dataset is not None:
            return self._native(self._dataset.shuffle(int(buffer_size), seed, anew))
        epochs = itertools.count()

        def begin():
            epoch = next(epochs) if anew else 0
            return _shuffled(iter(self), int(buffer_size), random.Random(f"{seed} {epoch}"))

        return Dataset(begin=begin, n=self._n)

    def repeat(self, count=None, name=None):
        """All elements so many times, or for ever."""
        times = None if count is None or count < 0 else int(count)
        if self._dataset is not None:
            return self._native(self._dataset.repeat(times))
        rounds = lambda: itertools.count() if times is None else range(times)
        n = self._count()
        n = float("inf") if times is None else None if n is None else n * times
        return Dataset(begin=lambda: (element for _ in rounds() for element in self), n=n)

    def take(self, count, name=None):
        """The first so many elements."""
        if count < 0:
            return self
        if self._dataset is not None:
            return self._native(self._dataset.take(int(count)))
        n = self._count()
        return Dataset(begin=lambda: itertools.islice(iter(self), count), n=None if n is None else min(n, count))

    def skip(self, count, name=None):
        """All but the first so many elements."""
        if count < 0:
            return self.take(0)
        if self._dataset is not None:
            return self._native(self._dataset.skip(int(count)))
        n = self._count()
        return Dataset(begin=lambda: itertools.islice(iter(self), count, None), n=None if n is None else max(0, n - count))

    def shard(self, num_shards, index, name=None):
        """Every so many-th element: one worker's share."""
        if self._dataset is not None:
            return self._native(self._dataset.shard(int(num_shards), int(index)))
        return Dataset(begin=lambda: itertools.islice(iter(self), index, None, num_shards))

    def cache(self, filename="", name=None):
        """The elements, kept from the first time that they are made."""
        if filename:
            raise NotImplementedError("Dataset.cache keeps elements in memory; a file is not there")
        if self._dataset is not None:
            return self._native(self._dataset.cache())
        kept = []

        def begin():
            if kept:
                yield from kept[0]
                return
            elements = []
            for element in self:
                elements.append(element)
                yield element
            kept[:] = [elements]

        return Dataset(begin=begin, n=self._n)

    def enumerate(self, start=0, name=None):
        """The elements with their numbers: (number, element)."""
        if self._dataset is not None and start == 0:
            return Dataset(self._dataset.enumerate(), (_LEAF, self._structure))
        numbered = lambda: ((convert_to_tensor(np.int64(i)), element) for i, element in enumerate(self, start))
        return Dataset(begin=numbered, n=self._count())

    def prefetch(self, buffer_size, name=None):
        """So many batches are made ahead by a thread of the pipeline; AUTOTUNE chooses. With Python in the pipeline none are."""
        if self._dataset is None:
            return self
        depth = None if buffer_size is None or buffer_size == AUTOTUNE else int(buffer_size)
        return self._native(self._dataset.prefetch(depth))

    def allowance(self, bytes):
        """The most bytes that the pipeline may take for its batches: a number, or a text such as "64MiB"."""
        if self._dataset is None:
            raise ValueError("a pipeline with Python in it makes one element at a time, and has no buffers to bound")
        return self._native(self._dataset.allowance(parse_bytes(bytes)))

    def map(self, map_func, num_parallel_calls=None, deterministic=None, name=None):
        """Every element changed by a Python function, called by the thread that iterates. Put it after `batch` where you can."""
        return Dataset(begin=lambda: (_applied(map_func, element) for element in self), n=self._count())

    def filter(self, predicate, name=None):
        """The elements for which a Python function is true."""
        return Dataset(begin=lambda: (element for element in self if bool(_called(predicate, element))))

    def concatenate(self, dataset, name=None):
        """The elements of this dataset, then those of another."""
        counts = self._count(), dataset._count()
        return Dataset(begin=lambda: itertools.chain(self, dataset), n=None if None in counts else sum(counts))

    def unbatch(self, name=None):
        """The rows of every element."""

        def begin():
            for element in self:
                leaves = flatten(element)
                for row in range(leaves[0]._shape[0]):
                    yield pack(element, iter([leaf[row] for leaf in leaves]))

        return Dataset(begin=begin)

    def apply(self, transformation_func):
        return transformation_func(self)

    def with_options(self, options, name=None):
        return self

    def as_numpy_iterator(self):
        """The elements as numpy arrays."""
        return (pack(element, iter([leaf.numpy() for leaf in flatten(element)])) for element in self)

    def cardinality(self):
        """How many elements an epoch has; -1 for ever, -2 unknown."""
        n = self._count()
        return UNKNOWN_CARDINALITY if n is None else INFINITE_CARDINALITY if n == float("inf") else n

    @property
    def element_spec(self):
        """What the elements look like."""
        if self._dataset is not None:
            specs = [TensorSpec([None if axis < n else extent for axis, extent in enumerate(shape)], dtype)
                     for dtype, shape, n in self._dataset.fields()]  # fmt: skip
            return pack(self._structure, iter(specs))
        for element in self:
            return pack(element, map(TensorSpec.from_tensor, flatten(element)))
        raise ValueError("nobody knows what the elements of an empty dataset look like")

    def __len__(self):
        n = self.cardinality()
        if n < 0:
            raise TypeError(f"The dataset {'is infinite' if n == INFINITE_CARDINALITY else 'length is unknown'}.")
        return n

    def __bool__(self):
        return True

    def __iter__(self):
        return Iterator(self)

    def __repr__(self):
        kind = "native" if self._dataset is not None else "with Python"
        return f"<Dataset {kind}, {self.cardinality()} elements>"

    __getattr__ = _missing_method("data.Dataset")

    def _native(self, native):
        return Dataset(native, self._structure)

    def _count(self):
        """How many elements there are: a number, infinity, or None if nobody knows."""
        if self._dataset is None:
            return self._n
        n = self._dataset.len()
        return float("inf") if n is None else n  # slices are counted, so only what is repeated for ever is not


class Iterator:
    """Goes through one epoch. Dropping it ends the pipeline's threads and gives its memory back."""

    def __init__(self, dataset):
        if dataset._dataset is not None:
            self._elements, self._structure, self._python = dataset._dataset.elements(), dataset._structure, None
        else:
            self._elements, self._structure, self._python = None, None, dataset._begin()

    def __iter__(self):
        return self

    def __next__(self):
        if self._elements is not None:
            return pack(self._structure, iter(self._elements.next()))
        return next(self._python)

    def get_next(self):
        """The next element; OutOfRangeError at the end."""
        try:
            return next(self)
        except StopIteration:
            raise errors.OutOfRangeError("End of sequence") from None


def _converted(structure):
    """Arrays as tensors; tuples and dicts stay, lists are arrays, as in TensorFlow."""
    if isinstance(structure, dict):
        return {key: _converted(structure[key]) for key in structure}
    if isinstance(structure, tuple):
        parts = [_converted(part) for part in structure]
        return type(structure)(*parts) if hasattr(structure, "_fields") else tuple(parts)
    return convert_to_tensor(structure)


def _outline(structure):
    return pack(structure, itertools.repeat(_LEAF))


def _signature(types, shapes):
    if types is None:
        return None
    if shapes is None:
        return pack(types, iter([TensorSpec(None, dtype) for dtype in flatten(types)]))
    shapes = [shapes] if not isinstance(types, (tuple, dict)) else [shapes[key] for key in sorted(shapes)] if isinstance(
        shapes, dict) else list(shapes)  # fmt: skip
    return pack(types, iter([TensorSpec(shape, dtype) for dtype, shape in zip(flatten(types), shapes, strict=True)]))


def _yielded(element, signature, number):
    """An element of a generator as tensors of its signature."""
    if signature is None:
        return _converted(element)
    if isinstance(signature, (tuple, list)) and isinstance(element, list):
        element = tuple(element)
    specs = flatten(signature)
    leaves = [element] if len(specs) == 1 and isinstance(signature, TensorSpec) else _leaves_like(signature, element)
    if len(specs) != len(leaves):
        raise TypeError(f"from_generator: element {number} has {len(leaves)} parts, and output_signature {len(specs)}")
    tensors = []
    for spec, leaf in zip(specs, leaves):
        made = leaf if isinstance(leaf, Value) else convert_to_tensor(np.asarray(leaf, spec.dtype.as_numpy_dtype))
        if not spec.is_compatible_with(made):
            raise TypeError(
                f"from_generator: element {number} has {made.dtype.name}{list(made.shape)} where output_signature says {spec!r}"
            )
        tensors.append(made)
    return pack(signature, iter(tensors))


def _leaves_like(signature, element):
    """The parts of an element that stand where the signature has specs: a list in that place is an array."""
    if isinstance(signature, TensorSpec):
        return [element]
    if isinstance(signature, dict):
        return [leaf for key in sorted(signature) for leaf in _leaves_like(signature[key], element[key])]
    if not isinstance(element, (tuple, list)) or len(element) != len(signature):
        return [element]
    return [leaf for part, value in zip(signature, element) for leaf in _leaves_like(part, value)]


def _called(function, element):
    """A function called as TensorFlow does: a tuple is several arguments."""
    return function(*element) if type(element) is tuple else function(element)


def _applied(function, element):
    return _as_tensors(_called(function, element))


def _as_tensors(value):
    if isinstance(value, list):  # several results, as a tuple
        value = tuple(value)
    return _converted(value)


def _batches(elements, size, drop_remainder):
    while rows := list(itertools.islice(elements, size)):
        if len(rows) == size or not drop_remainder:
            yield _stacked(rows)


def _stacked(rows):
    parts = zip(*map(flatten, rows), strict=True)
    scope = _core.as_data()
    try:
        tensors = [_core.concat(list(part), 0, True) for part in parts]
    finally:
        scope.end()
    return pack(rows[0], iter(tensors))


def _shuffled(elements, size, generator):
    buffer = collections.deque(itertools.islice(elements, max(1, size)))
    for element in elements:
        at = generator.randrange(len(buffer))
        yield buffer[at]
        buffer[at] = element
    rest = list(buffer)
    buffer.clear()
    generator.shuffle(rest)
    while rest:
        yield rest.pop()


def _drawn_seed():
    """A seed that follows from `tf.random.set_seed`."""
    return int(_core.randint([], 0, 1 << 40, "int64").numpy())


class Options:
    """Accepted and ignored, as `Dataset.with_options` does."""


class experimental:
    """Names of older versions."""

    AUTOTUNE = AUTOTUNE


__getattr__ = _missing("data")
