"""`tf.config`, `tf.device` and `tf.debugging`."""

import logging

import numpy as np
import plimsoll as tf
import pytest
from plimsoll import clash


def test_devices_are_listed_without_being_opened():
    cpus = tf.config.list_physical_devices("CPU")
    assert [device.device_type for device in cpus] == ["CPU"]
    assert cpus[0] in tf.config.list_physical_devices()
    assert tf.config.list_logical_devices("CPU")[0].name == "/device:CPU:0"
    for gpu in tf.config.list_physical_devices("GPU"):
        assert gpu.name.startswith("/physical_device:GPU:")
    tf.config.experimental.set_memory_growth(cpus[0], True)
    assert tf.config.experimental.get_memory_growth(cpus[0])


def test_memory_limit_is_a_limit_in_mib():
    cpu = tf.config.list_physical_devices("CPU")[0]
    configuration = tf.config.LogicalDeviceConfiguration(memory_limit=8)
    tf.config.set_logical_device_configuration(cpu, [configuration])
    assert tf.stats()["limit"] == 8 << 20
    assert tf.config.get_logical_device_configuration(cpu) == [configuration]
    with pytest.raises(tf.errors.ResourceExhaustedError):
        tf.zeros([3 << 20])
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()])
    assert tf.stats()["limit"] is None
    with pytest.raises(ValueError, match="one logical device"):
        tf.config.set_logical_device_configuration(cpu, [configuration] * 2)


def test_memory_info_is_of_a_device():
    for name in ("CPU:0", "/CPU:0", "/device:CPU:0", "cpu"):
        tf.config.experimental.reset_memory_stats(name)
        x = tf.ones([1000])
        info = tf.config.experimental.get_memory_info(name)
        assert info["current"] == tf.stats()["in_use"] and info["peak"] >= info["current"]
        del x
    with pytest.raises(tf.errors.InvalidArgumentError, match="nowhere"):
        tf.config.experimental.get_memory_info("nowhere:0")


def test_a_device_scope_falls_back_to_the_cpu_and_says_so_once(caplog):
    if tf.config.list_physical_devices("GPU"):
        with tf.device("/GPU:0"):
            assert tf.ones([1]).device.startswith("cuda")
        return
    with caplog.at_level(logging.WARNING, "plimsoll"):
        for _ in range(3):
            with tf.device("/GPU:0"):
                x = tf.ones([2]) + 1.0
    assert x.numpy().tolist() == [2.0, 2.0] and x.device == "cpu"
    assert len(caplog.records) <= 1
    with tf.device("/CPU:0"), tf.device(None):
        assert tf.ones([1]).device == "cpu"
    with pytest.raises(ValueError, match="elsewhere"), tf.device("elsewhere"):
        pass


def test_checks_of_values_name_the_first_that_fails():
    d = tf.debugging
    d.assert_equal([1, 2], [1, 2])
    d.assert_less(tf.constant(1.0), 2.0)
    d.assert_near(tf.constant([1.0]), tf.constant([1.0 + 1e-7]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"here: assert_equal: 1 of 2 .* at \[1\]: 2 and 3"):
        d.assert_equal([1, 2], [1, 3], message="here")
    with pytest.raises(tf.errors.InvalidArgumentError):
        d.assert_near(tf.constant([1.0]), tf.constant([1.1]))
    for check, bad in ((d.assert_positive, 0), (d.assert_non_negative, -1), (d.assert_negative, 0)):
        with pytest.raises(tf.errors.InvalidArgumentError):
            check([bad])
    x = tf.constant([1.0, np.nan])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"loss: Tensor had NaN values: 1 of 2, first at \[1\]"):
        d.check_numerics(x, "loss")
    assert d.check_numerics(x[:1], "loss").shape == (1,)
    d.assert_shapes([(tf.ones([2, 3]), ("N", 3)), (tf.ones([2]), ("N",))])
    with pytest.raises(ValueError, match="'N': 2"):
        d.assert_shapes([(tf.ones([2, 3]), ("N", 3)), (tf.ones([4]), ("N",))])
    with pytest.raises(ValueError, match="rank 1"):
        d.assert_rank(tf.ones([2, 3]), 1)
    with pytest.raises(AttributeError, match="tf.debugging.enable_dump"):
        d.enable_dump


def test_the_other_distribution_of_the_same_package_is_told(tmp_path, recwarn):
    (tmp_path / "plimsoll_ml-0.1.0.dist-info").mkdir()
    clash.warn_of_others(tmp_path)
    assert not recwarn.list
    (tmp_path / "plimsoll-0.0.1.dist-info").mkdir()
    with pytest.warns(RuntimeWarning, match="both have a package plimsoll; pip uninstall both, then pip install plimsoll-ml"):
        clash.warn_of_others(tmp_path)
