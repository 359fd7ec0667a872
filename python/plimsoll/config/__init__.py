"""`tf.config` and `tf.device`."""

import collections as _collections

from .. import _core
from ..function import functions_run_eagerly, run_functions_eagerly  # noqa: F401
from ..memory import stats as _stats
from ..missing import missing as _missing

PhysicalDevice = _collections.namedtuple("PhysicalDevice", "name device_type")
LogicalDevice = _collections.namedtuple("LogicalDevice", "name device_type")
_MIB = 1 << 20


class LogicalDeviceConfiguration:
    """What a device may use: ``memory_limit`` in MiB, as in TensorFlow."""

    def __init__(self, memory_limit=None, experimental_priority=None, experimental_device_ordinal=None):
        self.memory_limit = memory_limit


VirtualDeviceConfiguration = LogicalDeviceConfiguration
_configurations = {}


def list_physical_devices(device_type=None):
    """The CPU, and the GPUs of this machine; none is opened."""
    devices = [PhysicalDevice("/physical_device:CPU:0", "CPU")]
    devices += [PhysicalDevice(f"/physical_device:GPU:{number}", "GPU") for number in range(_core.n_gpus())]
    return [device for device in devices if device_type in (None, device.device_type)]


def list_logical_devices(device_type=None):
    return [LogicalDevice(device.name.replace("physical_device", "device"), device.device_type)
            for device in list_physical_devices(device_type)]  # fmt: skip


get_visible_devices = list_physical_devices


def set_visible_devices(devices, device_type=None):
    """Accepted: nothing runs on a GPU unless `tf.device` says so."""


def get_memory_growth(device):
    return True


def set_memory_growth(device, enable):
    """Accepted: memory is always taken as it is needed. Without growth nothing would be reserved either: state a limit for that."""


def set_logical_device_configuration(device, logical_devices):
    """Sets the limit of a device: ``memory_limit`` of its one configuration, in MiB. It is never passed."""
    if len(logical_devices) != 1:
        raise ValueError(f"a device is one logical device here, not {len(logical_devices)}")
    limit = logical_devices[0].memory_limit
    _core.set_limit(None if limit is None else int(limit * _MIB), _name(device))
    _configurations[device.name] = list(logical_devices)


def get_logical_device_configuration(device):
    return _configurations.get(device.name)


def get_memory_info(device):
    """Bytes in use on a device, now and at their peak."""
    figures = _stats(_name(device))
    return {"current": figures["in_use"], "peak": figures["peak_in_use"]}


def reset_memory_stats(device):
    """Lets the peak begin anew."""
    _core.reset_peaks(_name(device))


def get_memory_usage(device):
    return get_memory_info(device)["current"]


def _name(device):
    return getattr(device, "name", device).replace("physical_device:", "").replace("device:", "")


class device:
    """A context in which tensors are made on a device: "/GPU:0", "/CPU:0". A GPU that is not there is the CPU, and that is said once."""

    def __init__(self, device_name):
        self._name = None if device_name is None else _name(device_name)
        self._scopes = []

    def __enter__(self):
        self._scopes.append(None if self._name is None else _core.enter_device(self._name))
        return self

    def __exit__(self, *_):
        scope = self._scopes.pop()
        if scope is not None:
            scope.end()


from . import experimental  # noqa: E402, F401

__getattr__ = _missing("config")
