"""Memory shared with PyTorch, JAX and CuPy on an NVIDIA GPU, both directions.

    PYTHONPATH=FOLDER python python/peers/dlpack_gpu.py

FOLDER is the wheel, unpacked (``python -m zipfile -e WHEEL FOLDER``), so that nothing has to be installed. Without pytest, since machines with
GPUs may not have it: every check is a function, a line says how it ended, and the exit status is 1 if one failed. A library
that is not there is said to be left out, and one at least has to be there.

What is shared is told by addresses; that nothing is freed early by values that are read after the owner has gone and others have
written where they can; that a stream is waited for by work that is still under way when the other library reads.
"""

import gc
import itertools
import os
import pathlib
import sys
import time
import traceback

import numpy as np
import plimsoll as tf

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests"))
from dlpack_peer import READ_ONLY, look  # noqa: E402

GPU = "/GPU:0"
DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"]
LAYOUTS = {
    "plain": lambda x: x,
    "turned": lambda x: x.T,
    "part": lambda x: x[1:, 1:3],
    "stepped": lambda x: x[:, ::2],
    "one": lambda x: x[2, 3],
    "empty": lambda x: x[:0],
}
ARRAY = np.arange(24).reshape(4, 6)
MIB = 1 << 20


class Turned:
    """A tensor of ours that is turned and cut as numpy's arrays are."""

    def __init__(self, x):
        self.x = x

    T = property(lambda self: Turned(tf.transpose(self.x)))

    def __getitem__(self, key):
        return Turned(self.x[key])


class Torch:
    def __init__(self):
        import torch

        self.lib, self.version = torch, torch.__version__
        if not torch.cuda.is_available():
            raise ImportError("PyTorch sees no GPU")

    def made(self, array, dtype):
        return self.lib.tensor(array).to("cuda", getattr(self.lib, dtype))

    def take(self, x):
        return self.lib.from_dlpack(x)

    def address(self, x):
        return x.data_ptr()

    def read(self, x):
        return x.to(self.lib.float64).cpu().tolist()

    def wait(self):
        self.lib.cuda.synchronize()


class Jax:
    def __init__(self):
        import jax

        jax.config.update("jax_enable_x64", True)
        self.lib, self.version = jax.numpy, jax.__version__
        self.device = jax.devices("gpu")[0]
        self.put = jax.device_put

    def made(self, array, dtype):
        return self.put(self.lib.asarray(array).astype(dtype), self.device)

    def take(self, x):
        return self.lib.from_dlpack(x)

    def address(self, x):
        return x.unsafe_buffer_pointer()

    def read(self, x):
        return np.asarray(x.astype("float64")).tolist()

    def wait(self):
        self.lib.zeros(1).block_until_ready()


class Cupy:
    def __init__(self):
        import cupy

        self.lib, self.version = cupy, cupy.__version__
        cupy.zeros(1)

    def made(self, array, dtype):
        if dtype == "bfloat16":
            raise LeftOut("CuPy has no bfloat16")
        return self.lib.asarray(array).astype(dtype)

    def take(self, x):
        if x.dtype.name == "bfloat16":
            raise LeftOut("CuPy has no bfloat16")
        return self.lib.from_dlpack(x)

    def address(self, x):
        return x.data.ptr

    def read(self, x):
        return x.astype("float64").get().tolist()

    def wait(self):
        self.lib.cuda.Device().synchronize()


class LeftOut(Exception):
    """Something that cannot be looked at, and why."""


def memory():
    gc.collect()
    stats = tf.stats(GPU)
    return stats["in_use"] - stats["rounding"], stats["foreign"]


def assert_is_back(before):
    """All memory is where it was; a library may give back what it had a moment after its last tensor went."""
    for _ in range(200):
        if memory() == before:
            return
        time.sleep(0.01)
    assert memory() == before


def on_gpu(function, *args):
    with tf.device(GPU):
        return function(*args)


def ours(array, dtype):
    return tf.cast(on_gpu(tf.constant, array), dtype)


def address(x):
    """Where the memory of a tensor of ours begins."""
    return look(x.__dlpack__(max_version=(1, 0))).tensor.data


def doubles(x):
    return tf.cast(x, "float64").numpy().tolist()


def expected(layout, dtype):
    return LAYOUTS[layout](ARRAY.astype("bool") if dtype == "bool" else ARRAY).astype("float64").tolist()


def theirs_is_looked_at(peer, dtype, layout):
    before = memory()
    theirs = LAYOUTS[layout](peer.made(ARRAY, dtype))
    x = tf.from_dlpack(theirs)
    assert x.dtype.name == dtype and x.__dlpack_device__() == (2, 0)
    assert doubles(x) == expected(layout, dtype)
    n_elems = int(np.prod(np.shape(expected(layout, dtype))))
    if n_elems and dtype != "bool":  # truth values are looked at, so they are copied
        assert tf.stats(GPU)["foreign"] - before[1] >= n_elems * x.dtype.size
        assert "memory that others have" in str(tf.report(GPU))
        if layout == "plain":
            assert address(x) == peer.address(theirs)
    del theirs
    gc.collect()
    junk = [peer.made(ARRAY * 0 + 77, "float32") for _ in range(8)]
    assert doubles(x) == expected(layout, dtype)
    del x, junk
    assert_is_back(before)


def ours_is_looked_at(peer, dtype, layout):
    before = memory()
    x = LAYOUTS[layout](Turned(ours(ARRAY, dtype))).x
    theirs = peer.take(x)
    assert peer.read(theirs) == expected(layout, dtype)
    del x
    junk = [ours(ARRAY * 0 + 77, dtype) for _ in range(8)]
    assert peer.read(theirs) == expected(layout, dtype)
    del theirs, junk
    peer.wait()
    assert_is_back(before)


def what_is_lent_says_that_it_is_read_only(peer):
    v = on_gpu(tf.Variable, on_gpu(tf.ones, [64]))
    for x in (v, v.value()):
        capsule = x.__dlpack__(max_version=(1, 0), stream=1)
        assert look(capsule).flags == READ_ONLY and look(capsule).tensor.device_type == 2
        del capsule
    theirs = peer.take(v)
    v.assign(on_gpu(tf.zeros, [64]))
    v.assign_add(on_gpu(tf.fill, [64], 5.0))
    assert peer.read(theirs) == [1.0] * 64 and doubles(v) == [5.0] * 64


def torch_shares_our_memory(peer):
    if not isinstance(peer, Torch):
        raise LeftOut("it may copy what is read-only")
    x = on_gpu(tf.ones, [64])
    assert peer.address(peer.take(x)) == address(x)


def work_under_way(x, value, n=12):
    """A tensor like a square one that is that value everywhere, some milliseconds of work later."""
    for _ in range(n):
        x = tf.matmul(x, x) * (1.0 / 1024.0)
    return tf.clip_by_value(x, value, value)


def they_wait_for_our_work(peer):
    square = on_gpu(tf.ones, [2048, 2048])
    for value in range(10):
        assert peer.read(peer.take(work_under_way(square, value + 0.5))[::512, ::512]) == [[value + 0.5] * 4] * 4


def we_wait_for_their_work(peer):
    if not isinstance(peer, Torch):
        raise LeftOut("its work under way cannot be made long here")
    torch = peer.lib
    for side in (torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            theirs = torch.zeros(MIB, device="cuda")
            torch.cuda._sleep(100_000_000)
            theirs.fill_(3.0)
            x = tf.from_dlpack(theirs)
        assert float(tf.reduce_sum(x)) == 3.0 * MIB


def memory_that_we_still_read_is_not_given_back(peer):
    """Our tensor is dropped while ops read it; its owner then writes something else into the memory that he has again."""
    before = memory()
    square = on_gpu(tf.ones, [2048, 2048])
    for _ in range(5):
        x = tf.from_dlpack(peer.made(np.ones((2048, 2048)), "float32"))
        behind = work_under_way(square, 0.5)  # so that what follows begins late
        y = x + behind
        del x, behind
        junk = [peer.made(np.full((2048, 2048), 9.0), "float32") for _ in range(4)]
        assert float(tf.reduce_max(y)) == float(tf.reduce_min(y)) == 1.5
        del y, junk
    del square
    assert_is_back(before)


def memory_that_they_still_read_is_not_used_again(peer):
    """Their tensor is dropped while their kernels read it; we then write something else where we can."""
    if not isinstance(peer, Torch):
        raise LeftOut("its work under way cannot be made long here")
    torch = peer.lib
    for side in (torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()):
        with torch.cuda.stream(side):
            x = on_gpu(tf.fill, [4 * MIB], 2.0)
            theirs = torch.from_dlpack(x)
            torch.cuda._sleep(100_000_000)
            result = theirs * 1.0
            del x, theirs
            junk = [on_gpu(tf.fill, [4 * MIB], 9.0) for _ in range(8)]
            side.synchronize()
            assert result.eq(2.0).all().item()
            del junk, result


def a_hundred_rounds_leave_nothing(peer):
    before = memory()
    x = on_gpu(tf.ones, [1000])
    for _ in range(100):
        y = tf.from_dlpack(peer.take(x * 2.0))
        assert float(y[7]) == 2.0
        del y
    del x
    peer.wait()
    assert_is_back(before)


def a_device_of_the_host_is_served(peer):
    x = on_gpu(tf.range, 6.0)
    assert np.from_dlpack(_ToCpu(x)).tolist() == x.numpy().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    if isinstance(peer, Torch):
        pinned = peer.lib.arange(6.0).pin_memory()
        y = tf.from_dlpack(pinned)
        assert y.__dlpack_device__() == (1, 0) and y.numpy().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


class _ToCpu:
    """A tensor that is asked for on the CPU, as numpy does from version 2.1 on."""

    def __init__(self, x):
        self.x = x

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **how):
        return self.x.__dlpack__(**how | {"dl_device": (1, 0), "copy": None})


CHECKS = [
    what_is_lent_says_that_it_is_read_only, torch_shares_our_memory, they_wait_for_our_work, we_wait_for_their_work,
    memory_that_we_still_read_is_not_given_back, memory_that_they_still_read_is_not_used_again, a_hundred_rounds_leave_nothing,
    a_device_of_the_host_is_served,
]  # fmt: skip


def outcome(check, *args):
    try:
        check(*args)
    except LeftOut as left_out:
        return "left out", str(left_out)
    except Exception:  # the rest is looked at, too
        return "failed", traceback.format_exc()
    return "passed", ""


def main():
    n = {"passed": 0, "failed": 0, "left out": 0}
    n_peers = 0
    print(f"plimsoll {tf.__version__} on {tf.config.list_physical_devices('GPU')}")
    on_gpu(tf.ones, [1])
    for kind in (Torch, Jax, Cupy):
        try:
            peer = kind()
        except Exception as error:
            print(f"{kind.__name__}: left out, {type(error).__name__}: {error}")
            continue
        n_peers += 1
        print(f"{kind.__name__} {peer.version}")
        pairs = list(itertools.product(DTYPES, LAYOUTS))
        checks = [(check, *pair) for check in (theirs_is_looked_at, ours_is_looked_at) for pair in pairs] + [(check,) for check in CHECKS]
        for check, *args in checks:
            began = time.monotonic()
            how, why = outcome(check, peer, *args)
            n[how] += 1
            if how != "passed" or not args:
                words = " ".join([check.__name__, *args]).replace("_", " ")
                print(f"  {how:8} {words} ({time.monotonic() - began:.2f} s) {why}", flush=True)
        del peer
    print(f"{n['passed']} passed, {n['failed']} failed, {n['left out']} skipped")
    return n["failed"] > 0 or n_peers == 0


if __name__ == "__main__":
    # JAX would take most of the GPU's memory at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    sys.exit(main())
