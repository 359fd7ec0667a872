"""Structures of tensors: lists, tuples and dicts, and their leaves."""

from ..tape import flatten, pack  # noqa: F401


def map_structure(function, structure):
    """The structure with what a function gives for each leaf. Keys keep their order."""
    if isinstance(structure, dict):
        return {key: map_structure(function, part) for key, part in structure.items()}
    if isinstance(structure, (list, tuple)):
        return tuple(map_structure(function, part) for part in structure)
    return function(structure)


def leaves(structure):
    """The leaves, in order."""
    if isinstance(structure, dict):
        return [leaf for part in structure.values() for leaf in leaves(part)]
    if isinstance(structure, (list, tuple)):
        return [leaf for part in structure for leaf in leaves(part)]
    return [structure]


def example_shapes(tensors):
    """The shape of one example of each tensor."""
    return map_structure(lambda tensor: list(tensor._shape[1:]), tensors)


def map_shapes(function, shapes):
    """The structure with what a function gives for each shape, which is a list of extents."""
    if isinstance(shapes, list):
        return function(shapes)
    if isinstance(shapes, dict):
        return {key: map_shapes(function, part) for key, part in shapes.items()}
    return tuple(map_shapes(function, part) for part in shapes)


def with_batch(shapes):
    """Shapes of examples as Keras shows those of batches: None stands for the extent of the batch."""
    return map_shapes(lambda shape: (None, *shape), shapes)
