"""Structures: lists, tuples, named tuples and dicts, nested; what is in them are leaves. Keys of dicts are sorted, as in TensorFlow."""


def flatten(structure):
    """The leaves, in order."""
    if isinstance(structure, dict):
        return [leaf for key in sorted(structure) for leaf in flatten(structure[key])]
    if isinstance(structure, (list, tuple)):
        return [leaf for part in structure for leaf in flatten(part)]
    return [structure]


def pack(structure, leaves):
    """The leaves of an iterator in a structure like the given one."""
    if isinstance(structure, dict):
        packed = {key: pack(structure[key], leaves) for key in sorted(structure)}
        return type(structure)((key, packed[key]) for key in structure)
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*[pack(part, leaves) for part in structure])
    if isinstance(structure, (list, tuple)):
        return type(structure)([pack(part, leaves) for part in structure])
    return next(leaves)


def map_structure(func, *structures):
    """The structure of what a function makes of the leaves of structures that are alike."""
    return pack(structures[0], iter([func(*leaves) for leaves in zip(*map(flatten, structures), strict=True)]))


def pack_sequence_as(structure, flat_sequence):
    """Leaves in a structure like the given one."""
    leaves = list(flat_sequence)
    n = len(flatten(structure))
    if n != len(leaves):
        raise ValueError(f"the structure has {n} leaves, and {len(leaves)} were given")
    return pack(structure, iter(leaves))
