"""Runs Keras's own tests of layers, losses, optimizers and metrics against ``plimsoll.keras``, and prints the share that passes.

    python keras_tests.py DIR [--failed]

DIR has Keras's wheel, unpacked: its tests are in it. `keras` is what ``keras_names.py`` makes of this package. A test that uses a name that is not
there, or an option that is refused by name, is out of scope, and counted.
"""

import argparse
import collections
import contextlib
import io
import pathlib
import sys

import keras_names
import names
import pytest

PARTS = ("layers", "losses", "optimizers", "metrics")
# What says that something is not there, and what to use: names and options.
_NOT_THERE = ("NotThere", "NotImplementedError", "Plimsoll has no", "has no argument", "unexpected keyword argument")


class Recorder:
    """How each test ended."""

    def __init__(self):
        self.outcomes = {}

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and report.passed:
            return
        last = report.longrepr.reprcrash.message if report.failed and hasattr(report.longrepr, "reprcrash") else str(report.longrepr or "")
        missing = names.taken() if report.when == "call" else []
        how = report.outcome
        if how == "failed" and (missing or any(text in last for text in _NOT_THERE)):
            how = "out of scope"
        self.outcomes[report.nodeid] = how, ", ".join(missing) or last.splitlines()[0] if last else ""

    def pytest_collectreport(self, report):
        if report.failed:
            self.outcomes[report.nodeid] = "not loaded", str(report.longrepr).strip().splitlines()[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--failed", action="store_true", help="name the tests that failed, and what they said")
    options = parser.parse_args()
    source = options.folder / "keras" / "src"
    if not source.is_dir():
        sys.exit(f"there is no {source}: unpack Keras's wheel into {options.folder}")
    keras_names.install()
    total = collections.Counter()
    for part in PARTS:
        recorder = Recorder()
        files = [str(path) for path in sorted((source / part).rglob("*_test.py"))]
        with contextlib.redirect_stdout(io.StringIO()):
            pytest.main(["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--continue-on-collection-errors", "--noconftest", "-c", "/dev/null",
                         f"--rootdir={options.folder}", *files], plugins=[recorder])  # fmt: skip
        counts = collections.Counter(how for how, _ in recorder.outcomes.values())
        total += counts
        print(f"{part:12} " + ", ".join(f"{counts[how]} {how}" for how in ("passed", "failed", "out of scope", "skipped", "not loaded")))
        if options.failed:
            for name, (how, why) in recorder.outcomes.items():
                if how in ("failed", "not loaded"):
                    print(f"    {how} {name.rpartition('/')[2]}: {why}")
    n = total["passed"] + total["failed"]
    everything = sum(total.values())
    print(f"{total['passed']} of {n} in scope passed ({100 * total['passed'] / max(n, 1):.1f} %); of all {everything} "
          f"{100 * total['passed'] / max(everything, 1):.1f} %")  # fmt: skip


if __name__ == "__main__":
    main()
