"""Runs the array API's own test suite, array-api-tests, against ``plimsoll.xp``, and prints the share that passes.

    python array_api.py DIR [--examples N]

DIR has the suite as its repository has it, with the specification in ``DIR/array-api``. A test that needs something that the namespace says it has
not (a size that depends on values, a dtype) skips itself. What fails is listed by the function that it is about.
"""

import argparse
import collections
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as etree

import array_api_names


def run(folder, n_examples, report):
    """Runs the suite, whose outcomes go to a file."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "array_api_start", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-o", "junit_family=xunit1",
               f"--junit-xml={report}", f"--max-examples={n_examples}", "--derandomize", "--disable-deadline", "--disable-warnings", "--continue-on-collection-errors", "array_api_tests"]  # fmt: skip
    environment = os.environ | {
        "PYTHONPATH": str(pathlib.Path(__file__).parent), "ARRAY_API_TESTS_MODULE": "array_api_names", "ARRAY_API_TESTS_VERSION": "2024.12",
        "ARRAY_API_TESTS_SKIP_DTYPES": ",".join(array_api_names.MISSING),
    }  # fmt: skip
    return subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL).returncode


def outcomes(report):
    """(file, test, how it ended) of each test."""
    for case in etree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        how = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        yield case.get("classname").rpartition(".test_")[2], case.get("name"), how


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--examples", type=int, default=20, help="examples of each property")
    options = parser.parse_args()
    if not (options.folder / "array-api").is_dir():
        sys.exit(f"there is no {options.folder / 'array-api'}, where the specification of the array API has to be")
    report = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / f"array-api-{os.getpid()}.xml"
    if run(options.folder, options.examples, report) not in (0, 1):
        sys.exit("the suite did not run")
    of_files, failed = collections.defaultdict(collections.Counter), collections.defaultdict(list)
    for file, test, how in outcomes(report):
        of_files[file][how] += 1
        if how == "failed":
            failed[file].append(test)
    report.unlink()
    total = sum(of_files.values(), collections.Counter())
    for file, counts in sorted(of_files.items()):
        print(f"{file:40} {counts['passed']:5} passed {counts['failed']:5} failed {counts['skipped']:5} skipped")
        print("".join(f"    {test}\n" for test in failed[file]), end="")
    n = total["passed"] + total["failed"]
    print(f"{total['passed']} of {n} passed ({100 * total['passed'] / max(n, 1):.1f} %), {total['skipped']} skipped themselves")


if __name__ == "__main__":
    main()
