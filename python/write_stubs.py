"""Writes what is made from the registry and the tables of names: examples in docstrings, and stubs for type checkers.

    python write_stubs.py            # writes them
    python write_stubs.py --check    # says which are stale

The examples are those of the registry's samples (``crates/plimsoll-tensor/docs/examples``), called by TensorFlow's names. The stubs are
rendered from the package as it is imported, so that a name that is added to a table is in its stub; what a parameter takes is
said by its name, in the table `PARAMETERS`.
"""

import builtins
import importlib
import inspect
import pathlib
import re
import sys
import types

HERE = pathlib.Path(__file__).parent
PACKAGE = HERE / "plimsoll"
REGISTRY = HERE.parent / "crates/plimsoll-tensor/docs/examples"
COMMAND = "python python/write_stubs.py"

PARAMETERS = {
    "name": "str | None", "dtype": "_DTypeLike | None", "axis": "_Axes", "keepdims": "bool | None", "shape": "Any", "seed": "int | None",
    "trainable": "bool | None", "persistent": "bool", "watch_accessed_variables": "bool", "verbose": "int | str",
    "epochs": "int", "batch_size": "int | None", "units": "int", "filters": "int", "use_bias": "bool", "device": "str | None",
    "run_eagerly": "bool | None", "path": "str | PathLike[str]", "filepath": "str | PathLike[str]",
} | dict.fromkeys(
    ("x", "y", "a", "b", "t", "input", "input_tensor", "labels", "logits", "features", "params", "indices", "ids", "condition"),
    "_TensorLike",
)  # fmt: skip
RETURNS = {
    "is_tensor": "bool", "executing_eagerly": "bool", "inside_function": "bool", "set_seed": "None", "split": "list[Tensor]",
    "unstack": "list[Tensor]", "top_k": "tuple[Tensor, Tensor]", "report": "Report", "stats": "dict[str, Any]", "plan": "Footprint",
    "why_alive": "WhyAlive", "trim": "int", "freed_by": "int", "mark": "None", "saved": "Saved", "__str__": "str", "__repr__": "str",
    "__len__": "int", "__bool__": "bool", "__int__": "int", "__float__": "float", "__index__": "int", "__hash__": "int",
    "_repr_html_": "str", "fit": "History", "summary": "None", "parse_bytes": "int", "numpy": "Any", "jacobian": "Any",
    "__contains__": "bool", "__setattr__": "None", "__delattr__": "None", "__init__": "None", "__exit__": "None",
}  # fmt: skip
# Contexts that give themselves.
RETURN_THEMSELVES = {"GradientTape", "device", "limit", "profile", "Session"}
# Modules whose functions make tensors.
MAKE_TENSORS = {"array_ops", "math", "nn", "linalg", "random"}
OPERATORS = {f"__{r}{name}__" for r in ("", "r") for name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")} | {
    f"__{name}__" for name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "abs", "invert", "getitem")}  # fmt: skip
PROPERTIES = {"shape": "TensorShape", "dtype": "DType", "ndim": "int", "device": "str", "trainable": "bool", "in_use": "int",
              "peak": "int", "committed": "int"}  # fmt: skip
HEAD = '''\
# Written by `{command}`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

{imports}
'''
ALIASES = {
    "_TensorLike": "_TensorLike: TypeAlias = Tensor | Variable | ArrayLike",
    "_DTypeLike": "_DTypeLike: TypeAlias = DType | str | type | np.dtype[Any]",
    "_Axes": "_Axes: TypeAlias = int | Sequence[int] | None",
}
# Classes that are named as types, and where they are.
TYPES = {"DType": "plimsoll.dtypes", "History": "plimsoll.keras.callbacks", "TensorShape": "plimsoll.tensor"} | dict.fromkeys(
    ("Footprint", "Report", "Saved", "Tensor", "Variable", "WhyAlive"), "plimsoll._core"
)  # fmt: skip
# Py_TPFLAGS_BASETYPE.
_CAN_BE_SUBCLASSED = 1 << 10
# Classes of Python's whose objects are laid out so that no other such class can be a base beside them.
DISJOINT = {"TensorShape"}
IGNORED = {"__module__", "__doc__", "__dict__", "__weakref__", "__qualname__", "__firstlineno__", "__static_attributes__", "__annotations__",
           "__slots__", "__orig_bases__", "__parameters__", "__getnewargs__", "__replace__"}  # fmt: skip


# Examples.


def flat(text, shape):
    """A flat list of Rust as a nested list of Python."""
    values = [value.strip().removesuffix("f32").removesuffix("i64").removesuffix("i32") for value in text.split(",")]
    values = [{"true": "True", "false": "False"}.get(value, value) for value in values]
    for extent in reversed(shape[1:]):
        values = [f"[{', '.join(values[at : at + extent])}]" for at in range(0, len(values), extent)]
    return f"[{', '.join(values)}]"


def arguments_of(op):
    """The arguments of the registry's example of an op, as Python writes them."""
    text = (REGISTRY / f"{op}.md").read_text()
    inputs = dict(re.findall(r"let (\w+) = (Tensor::.*);\n", text))
    made = {}
    for name, expression in inputs.items():
        found = re.fullmatch(r"Tensor::from_slice\(&\[(.*)\], \[(.*)\]\)\?", expression)
        if found is None:
            raise ValueError(f"{op}: `{expression}` is not understood")
        made[name] = flat(found[1], [int(n) for n in found[2].split(",")])
    receiver, rest = re.search(r"let result = (\w+)\.(.*)\?;\n", text).groups()
    if "?." in rest:  # the registry makes these of finite numbers by other ops
        return '[1.0, float("nan"), float("inf")]'
    last = re.search(r"(\w+)\((.*?)\)$", rest)
    others = [part.strip().lstrip("&") for part in last[2].split(",") if part.strip()]
    return ", ".join([made[receiver], *(made.get(part, part) for part in others)])


def examples():
    """The text of `_examples.py`."""
    import plimsoll as tf
    from plimsoll import names

    tables = {"math": (names.UNARY, names.BINARY, names.LOGICAL, names.REDUCE, {"divide": "div"}), "nn": (names.NN_UNARY, names.ALONG)}
    found = {}
    for space, of_space in tables.items():
        for name, op in (item for table in of_space for item in table.items()):
            if op in found:
                continue
            arguments = arguments_of(op)
            x = getattr(getattr(tf, space), name)(*eval(f"[{arguments}]"))
            shown = "x.numpy().round(4)" if x.dtype.is_floating else "x.numpy()"
            found[op] = (arguments, shown, str(eval(shown)))
    rows = "".join(f"    {op!r}: {found[op]!r},\n" for op in sorted(found))
    return (
        f'"""Examples of ops, made of those of the registry by `{COMMAND}`. Not edited by hand.\n\n'
        "For each op its arguments, what is printed of the result x, and the text of that.\n"
        f'"""\n\nEXAMPLES = {{\n{rows}}}\n'
    )


# Stubs.


def modules():
    """The modules of the package by name."""
    names = ["plimsoll._core"]
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(HERE).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return {name: importlib.import_module(name) for name in sorted(names)}


def parameter(of, function_name):
    """A parameter with what it takes."""
    takes = PARAMETERS.get(of.name, "Any") if of.kind not in (of.VAR_POSITIONAL, of.VAR_KEYWORD) else "Any"
    if of.name == "self" or of.name == "cls":
        return of.name
    mark = {of.VAR_POSITIONAL: "*", of.VAR_KEYWORD: "**"}.get(of.kind, "")
    default = "" if of.default is of.empty else " = ..."
    if of.default is None and takes != "Any" and "None" not in takes and takes != "_Axes":
        takes = f"{takes} | None"
    return f"{mark}{of.name}: {takes}{default}"


def signature(function, name):
    """The parameters of a function, in parentheses."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return "(self, *args: Any, **kwargs: Any)" if name.startswith("__") else "(*args: Any, **kwargs: Any)"
    written, seen_star = [], False
    for place, of in enumerate(parameters):
        if of.kind is of.KEYWORD_ONLY and not seen_star:
            written.append("*")
            seen_star = True
        seen_star = seen_star or of.kind is of.VAR_POSITIONAL
        written.append(parameter(of, name))
        following = parameters[place + 1] if place + 1 < len(parameters) else None
        if of.kind is of.POSITIONAL_ONLY and (following is None or following.kind is not of.POSITIONAL_ONLY):
            written.append("/")
    return f"({', '.join(written)})"


def returns(name, module, owner=None):
    if owner is None:
        return RETURNS.get(name, "Tensor" if module.rpartition(".")[2] in MAKE_TENSORS else "Any")
    if name == "__enter__" and owner.__name__ in RETURN_THEMSELVES:
        return owner.__name__
    if owner.__name__ in ("Tensor", "Variable") and name in OPERATORS:
        return "Tensor"
    return RETURNS.get(name, "Any")


def of_class(cls, module, indent=""):
    """The lines of a class."""
    bases = [base for base in cls.__bases__ if base is not object]
    written = f"({', '.join(base.__name__ for base in bases)})" if bases else ""
    is_native = not cls.__flags__ & _CAN_BE_SUBCLASSED
    marks = [f"{indent}@final"] if is_native else [f"{indent}@disjoint_base"] if cls.__name__ in DISJOINT else []
    lines = [*marks, f"{indent}class {cls.__name__}{written}:"]
    inner = indent + "    "
    for name, value in sorted(vars(cls).items()):  # a native class has its own in any order
        if name.startswith("_") and not (name.startswith("__") and name.endswith("__")) and name != "_repr_html_":
            continue
        if name in IGNORED or (name in ("__eq__", "__hash__") and value is None):
            continue
        lines += member(name, value, cls, module, inner)
    return lines if len(lines) > len(marks) + 1 else [*lines[:-1], f"{lines[-1]} ..."]


def member(name, value, cls, module, inner):
    """The lines of one member of a class."""
    if isinstance(value, property) or inspect.isgetsetdescriptor(value) or inspect.ismemberdescriptor(value):
        lines = [f"{inner}@property", f"{inner}def {name}(self) -> {PROPERTIES.get(name, 'Any')}: ..."]
        if isinstance(value, property) and value.fset is not None:
            lines += [f"{inner}@{name}.setter", f"{inner}def {name}(self, value: Any) -> None: ..."]
        return lines
    if isinstance(value, (staticmethod, classmethod)):
        kind = type(value).__name__
        function = value.__func__
        written = signature(function if isinstance(function, types.FunctionType) else getattr(cls, name), name)
        if kind == "classmethod" and not written.startswith("(cls"):
            written = f"(cls, {written[1:]}" if written != "()" else "(cls)"
        return [f"{inner}@{kind}", f"{inner}def {name}{written} -> {returns(name, module, cls)}: ..."]
    if name == "__new__":
        written = signature(cls, name)
        return [f"{inner}def __new__(cls{', ' if written != '()' else ''}{written[1:]} -> {cls.__name__}: ..."]
    if isinstance(value, type):
        return of_class(value, module, inner) if value.__qualname__.startswith(f"{cls.__qualname__}.") else [f"{inner}{name}: Any"]
    if callable(value):
        return [f"{inner}def {name}{signature(value, name)} -> {returns(name, module, cls)}: ..."]
    return [f"{inner}{name}: {constant(value)}"]


def constant(value):
    kind = type(value)
    return kind.__name__ if kind in (int, float, str, bool, dict, list, tuple, set, frozenset) else "Any"


def home(value, name, all_modules):
    """The module in whose stub a class or function is written."""
    module = getattr(value, "__module__", None)
    if module in ("plimsoll", "plimsoll._core"):  # of the extension module, or of one inside of it
        return "plimsoll._core" if getattr(all_modules["plimsoll._core"], value.__name__, None) is value else None
    if module in all_modules and getattr(all_modules[module], getattr(value, "__name__", name), None) is value:
        return module
    return None


def relative(target, module, is_package):
    """A module as another one imports it."""
    if not target.startswith("plimsoll"):
        return target
    base = module.split(".") if is_package else module.split(".")[:-1]
    parts = target.split(".")
    common = 0
    while common < min(len(base), len(parts)) and base[common] == parts[common]:
        common += 1
    return "." * (len(base) - common + 1) + ".".join(parts[common:])


class Stub:
    """The stub of one module while it is written: what it imports, and its lines."""

    def __init__(self, name, module, all_modules):
        self.name, self.module, self.all_modules = name, module, all_modules
        # `tf.keras` is imported at its first use.
        self.imports = ["from . import keras as keras"] if name == "plimsoll" else []
        self.body = [f"__all__ = {module.__all__!r}"] if hasattr(module, "__all__") else []

    def text(self):
        """The whole text."""
        for name, value in sorted(vars(self.module).items()):
            is_own_class = isinstance(value, type) and getattr(value, "__module__", None) == self.name
            if not name.startswith("_") or name in ("__version__", "__array_api_version__") or is_own_class:
                self.add(name, value)
        text = "\n".join(self.body)
        self.import_types(text)
        self.import_bases()
        aliases = [alias for name, alias in ALIASES.items() if re.search(rf"\b{name}\b", text)]
        self.imports += [f"from typing_extensions import {mark}" for mark in ("final", "disjoint_base") if f"@{mark}" in text]
        head = HEAD.format(command=COMMAND, imports="\n".join(sorted(set(self.imports))))
        return "\n".join([head.rstrip(), *aliases, "", text, ""]).replace("\n\n\n", "\n\n")

    def add(self, name, value):
        """One name of the module."""
        if isinstance(value, types.ModuleType):
            self.add_module(name, value)
            return
        can_be_elsewhere = isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType))
        place = home(value, name, self.all_modules) if can_be_elsewhere else None
        is_alias = can_be_elsewhere and getattr(value, "__name__", "") != name
        if place is not None and place != self.name:
            self.import_from(place, value.__name__, name)
        elif place is not None and is_alias:
            self.body.append(f"{name} = {value.__name__}")
        elif isinstance(value, type) and place is not None:
            self.body += of_class(value, self.name)
        elif can_be_elsewhere and not isinstance(value, type) and not is_alias:
            self.body.append(f"def {name}{signature(value, name)} -> {returns(name, self.name)}: ...")
        else:
            self.body.append(f"{name}: {kind_of(value)}")

    def add_module(self, name, value):
        if self.name == "plimsoll._core":  # a module inside of the extension module, which no file has
            self.body.append(f"{name}: Any")
        elif value.__name__ == f"{self.name}.{name}" and value.__name__ in self.all_modules:
            self.imports.append(f"from . import {name} as {name}")

    def import_from(self, place, name, known_as):
        is_package = hasattr(self.module, "__path__")
        self.imports.append(f"from {relative(place, self.name, is_package)} import {name} as {known_as}")

    def has(self, name):
        """Whether a class is written here, or imported."""
        return re.search(rf"(class {name}\b|import \w+ as {name}$)", "\n".join([*self.imports, *self.body]), flags=re.M)

    def import_types(self, text):
        """Imports what is named as the type of something."""
        for name, place in TYPES.items():
            is_used = re.search(rf"\b{name}\b", text) or "Like" in text and name in ("DType", "Tensor", "Variable")
            if is_used and not self.has(name):
                self.import_from(place, name, name)

    def import_bases(self):
        """Imports the bases of classes."""
        lists = {found for line in self.body for found in re.findall(r"^\s*class \w+\(([\w, ]+)\)", line)}
        for base in sorted({name.strip() for listed in lists for name in listed.split(",")}):
            if not hasattr(builtins, base) and not self.has(base):
                self.import_from(self.home_of_base(base), base, base)

    def home_of_base(self, base):
        classes = [value for value in vars(self.module).values() if isinstance(value, type)]
        found = next(of for cls in classes for of in cls.__mro__ if of.__name__ == base)
        return home(found, base, self.all_modules) or found.__module__


def kind_of(value):
    if type(value).__module__.startswith("plimsoll"):
        return "DType" if type(value).__name__ == "DType" else "Any"
    return constant(value)


def stubs():
    """The text of every stub by its path."""
    all_modules = modules()
    texts = {}
    for name, module in all_modules.items():
        path = HERE.joinpath(*name.split("."))
        path = path / "__init__.pyi" if hasattr(module, "__path__") else path.with_suffix(".pyi")
        texts[path] = Stub(name, module, all_modules).text()
    return texts


def stale():
    """What differs from what would be written, with the text that it should have."""
    texts = {PACKAGE / "_examples.py": examples(), **stubs()}
    known = {path: path.read_text() if path.exists() else None for path in texts}
    gone = {path: None for path in PACKAGE.rglob("*.pyi") if path not in texts}
    return {path: text for path, text in texts.items() if known[path] != text} | gone


def main():
    differing = stale()
    for path, text in differing.items():
        print(path.relative_to(HERE))
        if "--check" not in sys.argv:
            path.unlink() if text is None else path.write_text(text)
    if differing and "--check" in sys.argv:
        sys.exit(f"stale: run `{COMMAND}`")


if __name__ == "__main__":
    main()
