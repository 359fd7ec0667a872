"""What is written from the registry and the tables of names is what would be written now."""

import importlib.util
import pathlib

HERE = pathlib.Path(__file__).parents[1]


def test_stubs_and_examples_are_current():
    spec = importlib.util.spec_from_file_location("write_stubs", HERE / "write_stubs.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    stale = [str(path.relative_to(HERE)) for path in program.stale()]
    assert not stale, f"run `{program.COMMAND}`: {', '.join(stale)}"
