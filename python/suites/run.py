"""Runs test files that were written for TensorFlow against this package, and holds what fails against a list of reasons.

    python run.py DIR [--only TEXT]

Every ``*_test.py`` below DIR is loaded with `tensorflow` as `names.py` maps it, and its methods are run one by one. A method that uses a
name that this package has not is out of scope, and the name is printed. Each other method passes, is skipped by itself, or fails
with a reason in ``reasons.toml``; one that fails without a reason, or passes in spite of one, makes this program fail.
"""

import argparse
import collections
import contextlib
import importlib.util
import io
import pathlib
import sys
import tomllib
import unittest

import names

REASONS = pathlib.Path(__file__).with_name("reasons.toml")
Outcome = collections.namedtuple("Outcome", "what detail")


def load(path):
    """The module of a test file."""
    spec = importlib.util.spec_from_file_location(f"suite_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def methods(suite):
    """The tests of a suite, one by one."""
    for test in suite:
        yield from methods(test) if isinstance(test, unittest.TestSuite) else [test]


def outcome(test):
    """Runs one method."""
    result = unittest.TestResult()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        test.run(result)
    missing = names.taken()
    if result.skipped:
        return Outcome("skipped", result.skipped[0][1])
    if result.wasSuccessful():
        return Outcome("passed", "")
    text = (result.errors + result.failures)[0][1].strip().splitlines()[-1]
    return Outcome("out of scope", ", ".join(missing)) if missing else Outcome("failed", text)


def run_file(path, reasons, only):
    """Runs the methods of a file; returns their outcomes by name."""
    suite = unittest.defaultTestLoader.loadTestsFromModule(load(path))
    found = {}
    for test in methods(suite):
        name = test.id().split(".", 1)[1]
        if only in name:
            found[name] = outcome(test)
    return found


def tell(path, found, reasons):
    """Prints what came of a file; returns how many methods were not as the reasons say."""
    n_wrong = 0
    for name, (what, detail) in found.items():
        reason = reasons.get(name)
        if what == "failed" and reason is None:
            print(f"  FAILED         {name}: {detail}")
            n_wrong += 1
        elif what == "failed":
            print(f"  failed         {name}: {reason}")
        elif what == "passed" and reason is not None:
            print(f"  PASSED         {name}, although reasons.toml says: {reason}")
            n_wrong += 1
        elif what != "passed":
            print(f"  {what:<14} {name}: {detail}")
    counts = collections.Counter(result.what for result in found.values())
    in_scope = counts["passed"] + counts["failed"]
    print(f"{path}: {counts['passed']} of {in_scope} in scope passed, {counts['failed']} failed, "
          f"{counts['out of scope']} out of scope, {counts['skipped']} skipped by themselves")  # fmt: skip
    return n_wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default="", help="methods whose name contains this")
    options = parser.parse_args()
    files = sorted(options.folder.rglob("*_test.py"))
    if not files:
        sys.exit(f"there is no *_test.py below {options.folder}")
    names.install()
    reasons = tomllib.loads(REASONS.read_text())
    n_wrong = 0
    for path in files:
        of_file = reasons.get(path.name, {})
        found = run_file(path, of_file, options.only)
        n_wrong += tell(path.relative_to(options.folder), found, of_file)
    sys.exit(f"{n_wrong} methods are not as reasons.toml says" if n_wrong else 0)


if __name__ == "__main__":
    main()
