"""Memory shared with PyTorch and JAX on the CPU, both directions: ``cargo xtask python --peers PYTHON``, with a Python that has them.

What is shared is told by addresses, and that nothing is freed early by values that are read after the owner has gone.
"""

import gc

import numpy as np
import plimsoll as tf
import pytest

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8"]
LAYOUTS = {
    "plain": lambda x: x,
    "turned": lambda x: x.T,
    "part": lambda x: x[1:, 1:3],
    "stepped": lambda x: x[:, ::2],
    "one": lambda x: x[2, 3],
    "empty": lambda x: x[:0],
}
ARRAY = np.arange(24).reshape(4, 6)


def in_use():
    gc.collect()
    stats = tf.stats()
    return stats["in_use"] - stats["rounding"], stats["foreign"]


def values(x):
    """The elements of anything, in float64."""
    return np.asarray(x.numpy() if hasattr(x, "numpy") else x).astype("float64").tolist()


class Torch:
    def __init__(self):
        self.torch = pytest.importorskip("torch")

    def made(self, dtype):
        return self.torch.tensor(ARRAY).to(getattr(self.torch, dtype))

    def take(self, x):
        return self.torch.from_dlpack(x)

    def address(self, x):
        return x.data_ptr()

    def read(self, x):
        return x.to(self.torch.float64).tolist()


class Jax:
    def __init__(self):
        jax = pytest.importorskip("jax")
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)
        self.np = jax.numpy

    def made(self, dtype):
        return self.np.asarray(ARRAY).astype(dtype)

    def take(self, x):
        return self.np.from_dlpack(x)

    def address(self, x):
        return x.unsafe_buffer_pointer()

    def read(self, x):
        return np.asarray(x).astype("float64").tolist()


@pytest.fixture(params=[Torch, Jax], ids=["torch", "jax"])
def peer(request):
    return request.param()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_of_theirs_is_looked_at(peer, dtype, layout):
    before = in_use()
    theirs = LAYOUTS[layout](peer.made(dtype))
    expected = LAYOUTS[layout](ARRAY).astype("float64").tolist()
    x = tf.from_dlpack(theirs)
    assert x.dtype.name == dtype and values(tf.cast(x, "float64")) == expected
    n_bytes = int(np.prod(np.shape(expected))) * theirs.dtype.itemsize
    assert (tf.stats()["foreign"] - before[1] >= n_bytes) or not n_bytes
    del theirs
    gc.collect()
    assert values(tf.cast(x, "float64")) == expected
    del x
    assert in_use() == before


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_they_look_at_a_tensor_of_ours(peer, dtype, layout):
    before = in_use()
    ours = LAYOUTS[layout](_Indexed(tf.cast(tf.constant(ARRAY), dtype))).x
    expected = LAYOUTS[layout](ARRAY).astype("float64").tolist()
    theirs = peer.take(ours)
    assert peer.read(theirs) == expected
    del ours
    gc.collect()
    assert peer.read(theirs) == expected
    del theirs
    assert in_use() == before


class _Indexed:
    """A tensor of ours that is turned as numpy's are."""

    def __init__(self, x):
        self.x = x

    T = property(lambda self: _Indexed(tf.transpose(self.x)))

    def __getitem__(self, key):
        return _Indexed(self.x[key])


def test_their_memory_is_shared_and_not_copied(peer):
    theirs = peer.made("float32")
    assert np.from_dlpack(tf.from_dlpack(theirs)).ctypes.data == peer.address(theirs)


def test_torch_shares_our_memory():
    """JAX copies what is read-only."""
    peer, ours = Torch(), tf.ones([64])
    assert peer.address(peer.take(ours)) == np.from_dlpack(ours).ctypes.data
