"""Memory that is shared with others: numpy, and a peer that knows DLPack's structures through ctypes."""

import ctypes
import gc

import numpy as np
import plimsoll as tf
import pytest
from conftest import in_use
from dlpack_peer import DELETER, PLAIN, USED, DLTensor, Managed, api

DTYPES = ["float64", "float32", "float16", "int64", "int32", "uint8"]


def foreign():
    return tf.stats()["foreign"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4)])
def test_numpy_looks_at_the_memory_of_a_tensor(dtype, shape):
    before = in_use()
    x = tf.cast(tf.reshape(tf.range(int(np.prod(shape))), shape), dtype)
    expected = x.numpy()
    view = np.from_dlpack(x)
    assert view.dtype == dtype and view.shape == shape and np.array_equal(view, expected)
    assert not view.flags.writeable
    held = in_use()
    del x
    gc.collect()
    assert in_use() == held and np.array_equal(view, expected)  # numpy keeps it
    del view
    gc.collect()
    assert in_use() == before


def test_a_view_whose_elements_do_not_lie_one_after_the_other_is_lent_as_a_copy_or_not_at_all():
    x = tf.transpose(tf.reshape(tf.range(6), (2, 3)))
    before = in_use()
    view = np.from_dlpack(x)
    assert view.tolist() == [[0, 3], [1, 4], [2, 5]] and in_use() == before + 24
    with pytest.raises(BufferError, match="do not lie one after the other"):
        x.__dlpack__(max_version=(1, 0), copy=False)
    with pytest.raises(ValueError, match="by a copy"):
        np.asarray(x, copy=False)


def test_asarray_without_a_copy_shares_and_with_one_does_not():
    x = tf.constant([1.0, 2.0, 3.0])
    shared, copied = np.asarray(x, copy=False), np.array(x)
    assert np.shares_memory(shared, np.from_dlpack(x)) and not np.shares_memory(copied, shared)
    copied[0] = 7.0
    assert float(x[0]) == 1.0
    with pytest.raises(ValueError, match="by a copy"):
        np.asarray(x, np.float64, copy=False)


@pytest.mark.valgrind
def test_a_variable_that_is_assigned_leaves_the_view_as_it_was():
    v = tf.Variable(tf.ones([4]))
    view = np.from_dlpack(v)
    v.assign(tf.zeros([4]))
    v.assign_add(tf.ones([4]))
    assert view.tolist() == [1.0] * 4 and v.numpy().tolist() == [1.0] * 4
    v.assign(tf.zeros([4]))
    assert view.tolist() == [1.0] * 4


@pytest.mark.parametrize("dtype", [*DTYPES, "bool"])
def test_a_tensor_looks_at_the_memory_of_numpy(dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype)
    before, bytes_before = foreign(), in_use()
    x = tf.from_dlpack(array)
    assert x.dtype.name == dtype and np.array_equal(x.numpy(), array)
    if dtype != "bool":  # truth values are looked at, so they are copied
        assert foreign() - before == array.nbytes and in_use() == bytes_before
        assert np.shares_memory(np.from_dlpack(x), array)
    assert np.array_equal(tf.transpose(x).numpy(), array.T)
    del x
    gc.collect()
    assert (foreign(), in_use()) == (before, bytes_before)


def test_strided_arrays_empty_ones_and_what_cannot_be_taken():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    views = array[:, ::2], array.T, array[1:3, 2:5], np.broadcast_to(array[0], (3, 6)), array[::-1], array[2:0:-1, ::-2], array[::-1].T
    for view in views:
        x = tf.from_dlpack(view)
        assert np.array_equal(x.numpy(), view) and foreign() > 0 and np.array_equal((x * 2.0).numpy(), view * 2)
        assert np.array_equal(tf.from_dlpack(view > 5).numpy(), view > 5)
        del x
        assert foreign() == 0
    assert tf.from_dlpack(np.zeros((0, 3), np.float32)).shape == (0, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="no dtype"):
        tf.from_dlpack(np.zeros(3, np.uint16))
    with pytest.raises(TypeError, match="capsule"):
        tf.from_dlpack(object())
    gc.collect()
    assert foreign() == 0


@pytest.mark.valgrind
def test_the_memory_of_numpy_is_kept_until_no_tensor_looks_at_it():
    class Owner(np.ndarray):
        pass

    gone = []

    class Witness:
        def __del__(self):
            gone.append(True)

    array = np.arange(1000, dtype=np.float32).view(Owner)
    array.witness = Witness()
    x = tf.from_dlpack(array)
    part = x[10:20]
    del array, x
    gc.collect()
    assert not gone and part.numpy().tolist() == list(range(10, 20))
    del part
    gc.collect()
    assert gone == [True]


@pytest.mark.valgrind
def test_a_peer_takes_a_capsule_without_a_version_as_a_copy_and_deletes_it():
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    before = in_use()
    capsule = x.__dlpack__()
    assert in_use() == before + 16
    managed = Managed.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor"))
    api.PyCapsule_SetName(capsule, USED)
    tensor = managed.tensor
    assert (tensor.device_type, tensor.ndim, tensor.code, tensor.bits, tensor.lanes) == (1, 2, 2, 32, 1)
    assert (tensor.shape[:2], tensor.strides[:2]) == ([2, 2], [2, 1])
    values = (ctypes.c_float * 4).from_address(tensor.data + tensor.byte_offset)
    values[0] = 9.0  # it is the peer's own
    assert list(values) == [9.0, 2.0, 3.0, 4.0] and float(x[0, 0]) == 1.0
    del capsule
    gc.collect()
    assert in_use() == before + 16
    managed.deleter(ctypes.byref(managed))
    assert in_use() == before
    dropped = x.__dlpack__()
    del dropped  # nobody took it
    assert in_use() == before
    with pytest.raises(BufferError, match="read-only"):
        x.__dlpack__(copy=False)


@pytest.mark.valgrind
def test_a_peers_memory_is_deleted_once_and_a_capsule_is_taken_once():
    deleted = []
    deleter = DELETER(lambda managed: deleted.append(True))
    values, shape = (ctypes.c_float * 6)(*range(6)), (ctypes.c_int64 * 2)(2, 3)
    tensor = DLTensor(ctypes.addressof(values), 1, 0, 2, 2, 32, 1, shape, None, 0)
    managed = Managed(tensor, None, deleter)
    capsule = api.PyCapsule_New(ctypes.addressof(managed), PLAIN, None)
    x = tf.experimental.dlpack.from_dlpack(capsule)
    with pytest.raises(TypeError, match="nobody has taken"):
        tf.from_dlpack(capsule)
    y = x * 2.0
    assert y.numpy().tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]] and not deleted
    del x
    gc.collect()
    assert deleted == [True] and foreign() == 0
    assert y.shape == (2, 3)


def test_a_dataset_reads_numpys_memory_where_it_lies():
    array = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    before = in_use()
    dataset = tf.data.Dataset.from_tensor_slices(tf.from_dlpack(array))
    assert in_use() == before
    assert np.array_equal(np.concatenate([batch.numpy() for batch in dataset.batch(64)]), array)
