"""`tf.data`: pipelines with and without Python in them, and their bytes."""

import collections
import gc
import os
import signal
import threading
import time

import numpy as np
import plimsoll as tf
import pytest
from conftest import in_use

Dataset = tf.data.Dataset


def rows(dataset):
    return [element.numpy().tolist() for element in dataset]


def n_threads():
    """The threads of the process; one that has just ended is listed for a moment."""
    return min(len(os.listdir("/proc/self/task")) for _ in range(100))


Point = collections.namedtuple("Point", "x y")


def test_slices_come_out_as_they_went_in():
    x, y = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([5, 6, 7])
    assert rows(Dataset.from_tensor_slices(x)) == x.tolist()
    assert rows(Dataset.from_tensor_slices([1, 2, 3])) == [1, 2, 3]
    for structure in ((x, y), {"y": y, "x": x}, ((x, {"b": y, "a": x}), y), Point(x, y), {"only": x}):
        elements = list(Dataset.from_tensor_slices(structure).batch(2))
        assert [len(tf.nest.flatten(element)) for element in elements] == [len(tf.nest.flatten(structure))] * 2
        first = tf.nest.map_structure(lambda tensor: tensor.numpy().tolist(), elements[0])
        assert first == tf.nest.map_structure(lambda array: array[:2].tolist(), structure)
        assert type(elements[0]) is type(structure)
    with pytest.raises(tf.errors.InvalidArgumentError, match="first extents must agree"):
        Dataset.from_tensor_slices((x, y[:2]))


@pytest.mark.parametrize("make", [lambda d: d, lambda d: d.map(lambda x: x)], ids=["native", "python"])
def test_both_kinds_of_pipeline_do_the_same(make):
    numbers = make(Dataset.range(10))
    assert rows(numbers.batch(4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert rows(numbers.batch(4, drop_remainder=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert rows(numbers.skip(2).take(3).repeat(2)) == [2, 3, 4, 2, 3, 4]
    assert rows(numbers.repeat().take(12)) == [*range(10), 0, 1]
    assert rows(numbers.shard(3, 1)) == [1, 4, 7]
    assert rows(numbers.take(2).concatenate(numbers.skip(8))) == [0, 1, 8, 9]
    assert [(int(i), int(n)) for i, n in numbers.skip(5).enumerate()] == [(i, i + 5) for i in range(5)]
    assert rows(numbers.batch(5).unbatch()) == list(range(10))
    assert rows(numbers.cache().repeat(2)) == [*range(10)] * 2
    assert [len(numbers.batch(4)), len(numbers.repeat(2)), len(numbers.take(3)), len(numbers.skip(7))] == [3, 20, 3, 3]
    assert numbers.repeat().cardinality() == tf.data.INFINITE_CARDINALITY
    with pytest.raises(TypeError, match="infinite"):
        len(numbers.repeat())
    shuffled = numbers.shuffle(10, seed=3)
    first, second = rows(shuffled), rows(shuffled)
    assert sorted(first) == sorted(second) == list(range(10)) and first != second
    once = numbers.shuffle(10, seed=3, reshuffle_each_iteration=False)
    assert rows(once) == rows(once) != list(range(10))
    tf.random.set_seed(1)
    drawn = rows(numbers.shuffle(10))
    tf.random.set_seed(1)
    assert rows(numbers.shuffle(10)) == drawn
    assert rows(numbers.prefetch(2).batch(10)) == [list(range(10))]
    assert [tuple(map(int, pair)) for pair in Dataset.zip(numbers, numbers.skip(1))][:2] == [(0, 1), (1, 2)]
    assert len(Dataset.zip((numbers, numbers.skip(1)))) == 9


def test_elements_say_what_they_look_like():
    dataset = Dataset.from_tensor_slices((np.zeros((5, 3), np.float32), np.zeros(5, np.int64)))
    assert dataset.element_spec == (tf.TensorSpec([3]), tf.TensorSpec([], tf.int64))
    assert dataset.batch(2).element_spec[0] == tf.TensorSpec([None, 3])
    assert dataset.batch(2, drop_remainder=True).element_spec[1] == tf.TensorSpec([2], tf.int64)
    assert dataset.map(lambda x, y: x * 2.0).element_spec == tf.TensorSpec([3])
    assert dataset._dataset is not None and dataset.map(lambda x, y: x)._dataset is None
    assert "5 elements" in repr(dataset)
    with pytest.raises(AttributeError, match="no tf.data.TFRecordDataset"):
        tf.data.TFRecordDataset


def test_map_gets_a_tuple_as_arguments_and_may_return_structures():
    dataset = Dataset.from_tensor_slices((np.arange(4.0, dtype=np.float32), np.arange(4)))
    mapped = dataset.map(lambda x, y: {"x": x * 2.0, "n": 7}, num_parallel_calls=tf.data.AUTOTUNE).batch(2)
    assert [element["x"].numpy().tolist() for element in mapped] == [[0.0, 2.0], [4.0, 6.0]]
    assert next(iter(mapped))["n"].numpy().tolist() == [7, 7]
    pairs = dataset.map(lambda x, y: (y, x)).filter(lambda y, x: y > 1)
    assert [(int(y), float(x)) for y, x in pairs] == [(2, 2.0), (3, 3.0)]
    assert [x.tolist() for x, _ in dataset.batch(2).as_numpy_iterator()] == [[0.0, 1.0], [2.0, 3.0]]
    assert rows(dataset.apply(lambda d: d.map(lambda x, y: x))) == [0.0, 1.0, 2.0, 3.0]


def test_a_generator_is_begun_for_every_epoch_and_checked():
    begun = []

    def numbers(n):
        begun.append(n)
        for i in range(n):
            yield [i, i], i

    signature = (tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int32))
    dataset = Dataset.from_generator(numbers, args=(3,), output_signature=signature)
    for _ in range(2):
        assert [(x.numpy().tolist(), int(y)) for x, y in dataset] == [([i, i], i) for i in range(3)]
    assert begun == [3, 3] and dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
    older = Dataset.from_generator(lambda: numbers(2), output_types=(tf.float32, tf.int32), output_shapes=([2], []))
    assert [int(y) for _, y in older] == [0, 1]
    assert rows(Dataset.from_generator(lambda: iter([1.5, 2.5]), tf.float32)) == [1.5, 2.5]
    wrong = Dataset.from_generator(lambda: numbers(1), output_signature=(tf.TensorSpec([3], tf.float32), signature[1]))
    with pytest.raises(TypeError, match=r"element 0 has float32\[2\]"):
        list(wrong)
    with pytest.raises(TypeError, match="a function that returns"):
        Dataset.from_generator(numbers(1))


@pytest.mark.valgrind
def test_exceptions_of_generators_and_maps_come_out_and_leave_nothing():
    class Special(Exception):
        pass

    def broken():
        yield np.ones(1000, np.float32)
        raise Special("in the generator")

    def fails(x):
        raise Special("in the map")

    before = in_use()
    for dataset in (Dataset.from_generator(broken, tf.float32).batch(2), Dataset.range(3).prefetch(2).map(fails)):
        for _ in range(2):
            with pytest.raises(Special):
                list(dataset)
    del dataset
    gc.collect()
    assert in_use() == before


@pytest.mark.valgrind
def test_an_iterator_that_is_not_finished_leaves_nothing():
    before, threads = in_use(), n_threads()
    closed = []

    def numbers():
        try:
            for _ in range(100):
                yield np.ones(100, np.float32)
        finally:
            closed.append(True)

    data = np.zeros((100, 100), np.float32)
    for dataset in (Dataset.from_tensor_slices(data).repeat().batch(4).prefetch(3), Dataset.from_generator(numbers, tf.float32)):
        iterator = iter(dataset)
        element = next(iterator)
        assert iterator.get_next().shape == element.shape
        del iterator
        del element
    assert closed == [True]
    del dataset
    assert in_use() == before and n_threads() == threads
    one = iter(Dataset.range(1))
    one.get_next()
    with pytest.raises(tf.errors.OutOfRangeError):
        one.get_next()
    assert next(one, None) is None


@pytest.mark.valgrind
def test_a_batch_outlives_its_pipeline():
    dataset = Dataset.from_tensor_slices(np.arange(100, dtype=np.float32)).batch(10).prefetch(2)
    held = list(dataset)
    del dataset
    gc.collect()
    assert np.concatenate([tensor.numpy() for tensor in held]).tolist() == list(range(100))


def test_batches_are_data_at_the_users_line_within_the_allowance():
    data = np.zeros((256, 64), np.float32)
    dataset = Dataset.from_tensor_slices(data).batch(32).prefetch(tf.data.AUTOTUNE).allowance("64KiB")
    for batch in dataset:
        rows = [row for row in tf.report().rows if row[0] == "data"]
        break
    files = {row[3] for row in rows}
    assert files == {__file__}
    assert 65_536 <= sum(row[1] for row in rows) <= 65_536 + (64 << 10)
    assert batch.shape == (32, 64)


def test_a_signal_is_seen_while_a_batch_is_waited_for():
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    previous = signal.signal(signal.SIGALRM, ring)
    try:
        # Each batch takes the pipeline's thread longer than the loop, which therefore waits again and again.
        dataset = Dataset.from_tensor_slices(np.zeros((64, 1 << 18), np.float32)).repeat().batch(64).prefetch(1)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Alarm):
            for _ in dataset:
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_other_threads_run_while_a_batch_is_waited_for():
    seen = []
    dataset = Dataset.from_tensor_slices(np.zeros((64, 1 << 16), np.float32)).repeat(4).batch(64).prefetch(1)
    done = threading.Event()

    def count():
        while not done.is_set():
            seen.append(1)
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    assert sum(1 for _ in dataset) == 4
    done.set()
    thread.join()
    assert seen


def test_a_cycle_through_a_mapped_function_is_collected():
    class Holder:
        def __init__(self):
            self.weights = tf.ones([1000])
            self.dataset = Dataset.range(3).map(lambda x: tf.cast(x, tf.float32) * self.weights)

    before = in_use()
    holder = Holder()
    assert len(list(holder.dataset)) == 3
    del holder
    gc.collect()
    assert in_use() == before
