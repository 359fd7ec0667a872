"""Checks a wheel: its tag, its size, what is in it, and what an import of it does.

    python check_wheel.py FOLDER PATH...

FOLDER has one wheel; none of the PATHs of the machine that built it may occur in it.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import venv
import zipfile

TAG = "cp311-abi3-manylinux_2_28_x86_64"
MOST_BYTES = 20_000_000
# Where programs that are built put things that nobody else has.
FOREIGN = ("/home/", "/root/", "/tmp/", "/workspace/", "/builds/")

IMPORT = """
import os, sys, time
import numpy
threads = len(os.listdir("/proc/self/task"))
before = time.perf_counter()
import plimsoll
took = time.perf_counter() - before
assert len(os.listdir("/proc/self/task")) == threads, "the import starts a thread"
maps = open("/proc/self/maps").read()
assert not any(name in maps for name in ("libcuda", "libcublas", "libcudnn", "libnvrtc")), "the import opens CUDA's libraries"
links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
assert not any(link.startswith("/dev/nvidia") for link in links), "the import opens a device"
assert plimsoll.stats()["committed"] == 0
assert float(plimsoll.reduce_sum(plimsoll.ones([10]))) == 10.0
print(f"{took * 1000:.1f}")
"""


def check(holds, message):
    if not holds:
        sys.exit(f"the wheel is not as it should be: {message}")


def paths_in(data, forbidden):
    """What of the paths of a machine occurs in bytes."""
    return [path for path in forbidden if path.encode() in data]


def contents(wheel, forbidden):
    """Checks every file of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for name in names:
            check(name.split("/")[0] == "plimsoll" or ".dist-info/" in name, f"{name} lies outside of the package")
            found = paths_in(archive.read(name), forbidden)
            check(not found, f"{name} has {', '.join(found)} in it")
    package = pathlib.Path(__file__).parent / "plimsoll"
    ours = [path.relative_to(package.parent).as_posix() for path in package.rglob("*.py*") if path.suffix in (".py", ".pyi")]
    for wanted in ("plimsoll/py.typed", "plimsoll/_core.abi3.so", *ours):
        check(wanted in names, f"{wanted} is missing")


def libraries(wheel):
    """Checks that auditwheel finds the wheel to be what its name says."""
    shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True, check=True)
    said = " ".join(shown.stdout.split())
    newest = re.search(r'constrains the platform tag to "manylinux_2_(\d+)_x86_64"', said)
    check(newest is not None and int(newest[1]) <= 28, f"auditwheel says: {said}")
    print(newest[0])


def imported(wheel):
    """The milliseconds of an import beside numpy, the least of some, in an environment that has nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(pathlib.Path(folder) / "bin/python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
        runs = [subprocess.run([python, "-c", IMPORT], capture_output=True, text=True) for _ in range(8)]
        for run in runs:
            check(run.returncode == 0, run.stderr)
        return min(float(run.stdout) for run in runs)


def main():
    folder, *paths = sys.argv[1:]
    wheels = list(pathlib.Path(folder).glob("*.whl"))
    check(len(wheels) == 1, f"there are {len(wheels)} in {folder}")
    wheel = wheels[0]
    check(wheel.name.endswith(f"-{TAG}.whl"), f"it is called {wheel.name}, and {TAG} is wanted")
    n_bytes = wheel.stat().st_size
    check(n_bytes <= MOST_BYTES, f"it has {n_bytes:,} bytes")
    contents(wheel, [*paths, *FOREIGN])
    libraries(wheel)
    print(f"{wheel.name}: {n_bytes:,} bytes, imported in {imported(wheel)} ms after numpy")


if __name__ == "__main__":
    main()
