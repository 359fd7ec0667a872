"""Memory that is shared on a GPU, which the host plays: both directions, and which stream waits for which.

The peer is ctypes, since no other library knows this GPU. On a real one ``peers/dlpack_gpu.py`` looks at PyTorch, JAX and CuPy.
"""

import ctypes
import gc

import numpy as np
import plimsoll as tf
import pytest
from dlpack_peer import IS_COPIED, READ_ONLY, Owner, look, take
from plimsoll import _core

NUMBER = 7
GPU = f"/GPU:{NUMBER}"
# Streams as DLPack numbers them: the default one, and the emulated GPU's own.
DEFAULT, OURS = 1, 0x1000


@pytest.fixture(autouse=True)
def gpu():
    if not hasattr(_core, "_emulate_gpu"):
        pytest.skip("built without the feature `emulated`, as a wheel is")
    _core._emulate_gpu(NUMBER)
    gc.collect()
    before = memory()
    _core._stream_waits()
    yield
    gc.collect()
    assert memory() == before


def memory():
    stats = tf.stats(GPU)
    return stats["in_use"] - stats["rounding"], stats["foreign"]


def values(managed, n):
    return list((ctypes.c_float * n).from_address(managed.tensor.data + managed.tensor.byte_offset))


def test_a_tensor_is_lent_where_it_lies_read_only_and_its_reader_waits_for_it():
    with tf.device(GPU):
        x = tf.constant([1.0, 2.0, 3.0])
    assert x.__dlpack_device__() == (2, NUMBER)
    before = memory()
    lent = take(x.__dlpack__(stream=DEFAULT, max_version=(1, 0)))
    assert _core._stream_waits() == [(OURS, DEFAULT)] and memory() == before
    assert (lent.major, lent.flags) == (1, READ_ONLY)
    assert (lent.tensor.device_type, lent.tensor.device_id) == (2, NUMBER) and values(lent, 3) == [1.0, 2.0, 3.0]
    del x
    gc.collect()
    assert memory() == before and values(lent, 3) == [1.0, 2.0, 3.0]
    lent.deleter(ctypes.byref(lent))
    # What comes next in that memory waits for the reader.
    assert _core._stream_waits() == [(DEFAULT, OURS)] and memory()[0] == before[0] - 12


@pytest.mark.parametrize(("stream", "begins", "ends"), [
    (None, [(OURS, 1)], [(1, OURS)]), (1, [(OURS, 1)], [(1, OURS)]), (2, [(OURS, 2)], [None]), (0x5000, [(OURS, 0x5000)], [None]),
    (-1, [], [None]),
])  # fmt: skip
def test_a_reader_waits_for_what_computes_the_values_and_memory_for_its_reader(stream, begins, ends):
    with tf.device(GPU):
        x = tf.ones([4])
    capsule = x.__dlpack__(stream=stream, max_version=(1, 0))
    assert _core._stream_waits() == begins
    del capsule  # nobody took it
    assert _core._stream_waits() == ends


def test_a_stream_that_there_is_not_is_refused():
    with tf.device(GPU):
        x = tf.ones([4])
    for stream in (0, -2):
        with pytest.raises(ValueError, match=f"no CUDA stream {stream} in DLPack"):
            x.__dlpack__(stream=stream, max_version=(1, 0))


def test_who_must_not_share_or_cannot_say_so_gets_a_copy():
    with tf.device(GPU):
        x = tf.reshape(tf.range(6.0), (2, 3))
    shared = look(x.__dlpack__(max_version=(1, 0))).tensor.data
    for how in ({}, {"copy": True}, {"max_version": (1, 0), "copy": True}):
        capsule = x.__dlpack__(**how)
        if "max_version" in how:
            copied = look(capsule)
            assert copied.tensor.data != shared and copied.flags == IS_COPIED and copied.tensor.device_type == 2
        del capsule
    turned = take(tf.transpose(x).__dlpack__(max_version=(1, 0)))
    assert turned.tensor.data != shared and turned.flags == IS_COPIED and values(turned, 6) == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    turned.deleter(ctypes.byref(turned))
    for why, how in (("read-only", {}), ("another device", {"max_version": (1, 0), "dl_device": (1, 0)})):
        with pytest.raises(BufferError, match=why):
            x.__dlpack__(copy=False, **how)
    with pytest.raises(BufferError, match="cannot be lent to device"):
        x.__dlpack__(dl_device=(2, 3))


def test_a_tensor_of_a_gpu_goes_to_the_cpu_where_that_is_asked_for():
    with tf.device(GPU):
        x = tf.range(5.0)
    lent = take(x.__dlpack__(max_version=(1, 0), dl_device=(1, 0)))
    assert lent.tensor.device_type == 1 and values(lent, 5) == [0.0, 1.0, 2.0, 3.0, 4.0]
    lent.deleter(ctypes.byref(lent))
    assert x.numpy().tolist() == np.asarray(x).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    with pytest.raises(ValueError, match="by a copy"):
        np.asarray(x, copy=False)


def test_a_variable_that_is_assigned_leaves_what_is_lent_as_it_was():
    with tf.device(GPU):
        v = tf.Variable(tf.ones([4]))
        lent = take(v.__dlpack__(max_version=(1, 0)))
        assert lent.flags == READ_ONLY
        v.assign(tf.zeros([4]))
        v.assign_add(tf.fill([4], 3.0))
    assert values(lent, 4) == [1.0] * 4 and v.numpy().tolist() == [3.0] * 4
    lent.deleter(ctypes.byref(lent))


def test_their_memory_is_read_where_it_lies_in_a_row_of_its_own_and_given_back_after_our_work():
    owner = Owner(range(6), (2, 3), device=(2, NUMBER))
    before = memory()
    x = tf.from_dlpack(owner)
    assert owner.asked == [OURS] and x.__dlpack_device__() == (2, NUMBER)
    assert memory() == (before[0], before[1] + 24)
    assert "memory that others have" in str(tf.report(GPU))
    y = x * 2.0
    assert y.numpy().tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]] and not owner.n_deleted
    row = x[1]
    del x
    gc.collect()
    assert not owner.n_deleted and row.numpy().tolist() == [3.0, 4.0, 5.0]
    del row
    gc.collect()
    assert owner.n_deleted == 1 and memory()[1] == before[1]


def test_a_capsule_alone_says_no_stream_so_the_default_one_is_waited_for():
    owner = Owner([1.0, 2.0], (2,), device=(2, NUMBER))
    x = tf.from_dlpack(owner.capsule())
    assert _core._stream_waits() == [(DEFAULT, OURS)] and x.numpy().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("shape", "strides", "first"), [
    ((6,), (1,), 1), ((2, 2), (3, 2), 0), ((3, 2), (1, 3), 0), ((2,), (-3,), 4), ((2, 3), (-3, -1), 5), ((4, 2), (0, 1), 3),
])  # fmt: skip
def test_their_layouts_wherever_they_begin(shape, strides, first):
    buffer = np.arange(8, dtype=np.float32)
    expected = np.lib.stride_tricks.as_strided(buffer[first:], shape, [4 * stride for stride in strides])
    owner = Owner(buffer, shape, (2, NUMBER), strides, first)
    x = tf.from_dlpack(owner)
    assert np.array_equal(x.numpy(), expected) and np.array_equal((x + 1.0).numpy(), expected + 1)
    del x
    gc.collect()
    assert owner.n_deleted == 1


def test_what_cannot_be_taken_is_refused_and_given_back():
    owner = Owner([1.0], (1,), device=(10, 0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="device 10:0 of DLPack"):
        tf.from_dlpack(owner)
    assert owner.n_deleted == 1
    pinned = Owner([1.0, 2.0], (2,), device=(3, 0))
    assert tf.from_dlpack(pinned).__dlpack_device__() == (1, 0)
