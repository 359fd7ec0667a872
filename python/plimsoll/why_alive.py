"""`tf.why_alive`: who keeps each byte alive, down to the Python variable, closure or cycle of objects that has a tensor.

The framework knows by itself which tapes, variables, programs and pipelines hold memory. Who has the tensors of Python code is
found here, when somebody asks and not before: all objects that the garbage collector knows are gone through once. An object
that is referred to from outside of them (by a running function, or by native code) is alive, and so is what it leads to; a
tensor to which nothing alive leads is held by a cycle of objects, which goes with ``gc.collect()``.
"""

import gc
import sys
import types

from . import _core
from .function import Function
from .memory import html_of_text
from .nest import flatten
from .tape import GradientTape
from .tensor import Value

WhyAlive = _core.WhyAlive
WhyAlive._repr_html_ = html_of_text
# So many steps of the way to a tensor are told.
_MOST_STEPS = 4


def why_alive(device=None):
    """Why each block of memory in use on a device is alive: who holds it, its line, and what having it again would cost.

    Rows of tensors in Python code name who has them: a variable, the objects on the way to it, or a cycle of objects
    that only ``gc.collect()`` frees. It takes some tenths of a second in a program of many objects.

    >>> import plimsoll as tf
    >>> x = tf.ones([1000])
    >>> why = tf.why_alive()
    >>> why.in_use == sum(row[1] for row in why.rows) == tf.stats()["in_use"]
    True
    >>> why.freed_by(x)
    4096
    """
    return _core.why_alive(device, _names_of_handles())


def _freed_by(self, *dropped):
    """How many bytes would be freed if all of these were dropped: tensors, variables, tapes and functions, or structures of them.

    A tensor stands for all of its handles: ``freed_by(x)`` is what would be free if nobody had ``x`` any more.
    """
    return self._freed_by([_native(leaf) for leaf in flatten(list(dropped))])


WhyAlive.freed_by = _freed_by


def _native(dropped):
    if isinstance(dropped, GradientTape):
        return dropped._tape
    return dropped._programs.core if isinstance(dropped, Function) else dropped


def _names_of_handles():
    """Every tensor and variable that Python has, with the words that say who has it."""
    gc_objects = gc.get_objects()
    # How often an object is referred to from outside what the collector sees; counting adds as many as to the one object of a list.
    outside = dict(zip(map(id, gc_objects), map(sys.getrefcount, gc_objects)))
    added = next(map(sys.getrefcount, [object()]))
    for one in gc_objects:
        for referent in gc.get_referents(one):
            key = id(referent)
            if key in outside:
                outside[key] -= 1
    roots = [one for one in gc_objects if outside[id(one)] > added]
    holders = {}
    # Names of modules first: who can be named is.
    _reach([vars(module) for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)], outside, holders)
    _reach(roots, outside, holders)
    values = [one for one in gc_objects if type(one) in Value]
    if any(id(value) not in holders for value in values):
        holders |= _in_cycles(gc_objects, outside, holders)
    del gc_objects, roots
    return [(value, _words(value, holders)) for value in values]


def _reach(roots, known, holders):
    """Adds who is alive by these roots, each with the object through which it was reached first; a root with None."""
    frontier = [root for root in roots if id(root) not in holders]
    holders.update((id(root), None) for root in frontier)
    while frontier:
        reached = []
        for one in frontier:
            for referent in gc.get_referents(one):
                key = id(referent)
                if key in known and key not in holders:
                    holders[key] = one
                    reached.append(referent)
        frontier = reached


class _Dead:
    """The holder of something to which nothing alive leads."""

    def __init__(self, one):
        self.one = one


def _in_cycles(gc_objects, known, alive):
    """Who is not alive, each with one of its holders."""
    holders = {}
    for one in gc_objects:
        if id(one) not in alive:
            for referent in gc.get_referents(one):
                key = id(referent)
                if key in known and key not in alive:
                    holders.setdefault(key, _Dead(one))
    return holders


def _words(value, holders):
    """The way from a value to what keeps it alive, in words."""
    is_dead = isinstance(holders.get(id(value)), _Dead)
    way, seen = [value], {id(value)}
    while (holder := _holder(way[-1], holders)) is not None:
        way.append(holder)
        if id(holder) in seen or _module_of(holder) is not None:
            break
        seen.add(id(holder))
    if is_dead:
        cycle = next(place for place, one in enumerate(way) if one is way[-1])
        names = ", ".join(_steps(way[: cycle + 1])[:_MOST_STEPS])
        return f"{names}, in a cycle that gc.collect() frees: {' -> '.join(_steps(way[cycle:])[:_MOST_STEPS])}"
    steps = _steps(way)
    if _module_of(way[-1]) is None:
        steps.append("a running function or native code")
    if len(steps) > _MOST_STEPS:
        steps[_MOST_STEPS - 2 : -1] = ["..."]
    return ", ".join(steps)


def _holder(one, holders):
    """Who has an object; not the dict of somebody's attributes, nor the cell and tuple of a closure, but whose they are."""

    def above(one):
        holder = holders.get(id(one))
        return holder.one if isinstance(holder, _Dead) else holder

    holder = above(one)
    if type(holder) is types.CellType and above(holder) is not None:
        holder = above(holder)
    if type(holder) is tuple and type(above(holder)) is types.FunctionType:
        return above(holder)
    if type(holder) is dict and _module_of(holder) is None:
        owner = above(holder)
        return owner if owner is not None and _attributes(owner) is holder else holder
    return holder


def _steps(way):
    """What each holder on a way is to the one before it, in words."""
    return [_step(one, holder) for one, holder in zip(way, way[1:])]


def _step(one, holder):
    kind = type(holder)
    if (module := _module_of(holder)) is not None:
        return f"{_key_of(one, holder)} of {module}"
    if kind in _CODE:
        word, code = _CODE[kind]
        code = getattr(holder, code)
        return f"{word} {code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
    if issubclass(kind, (list, tuple, dict, set, frozenset)):
        return f"a {kind.__name__} of {len(holder)}"
    if issubclass(kind, type):
        return f"class {holder.__qualname__}"
    attributes = _attributes(holder)
    name = None if attributes is None else _key_of(one, attributes)
    return f"a {kind.__name__}" if name is None else f"{kind.__name__}.{name}"


_CODE = {
    types.FunctionType: ("function", "__code__"),
    types.GeneratorType: ("generator", "gi_code"),
    types.FrameType: ("the frame of", "f_code"),
}


def _attributes(one):
    """The dict of an object's attributes, if it has one; nothing of the object's own code runs."""
    try:
        attributes = object.__getattribute__(one, "__dict__")
    except (AttributeError, TypeError):
        return None
    return attributes if type(attributes) is dict else None


def _key_of(one, table):
    """The name under which a dict has an object."""
    return next((key for key, value in list(table.items()) if value is one), None)


def _module_of(table):
    """The name of the module whose names a dict has."""
    name = table.get("__name__") if type(table) is dict else None
    if not isinstance(name, str):
        return None
    module = sys.modules.get(name)
    return name if module is not None and getattr(module, "__dict__", None) is table else None
