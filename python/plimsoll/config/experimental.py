"""`tf.config.experimental`: the older names."""

from ..missing import missing as _missing
from . import (  # noqa: F401
    VirtualDeviceConfiguration, get_memory_growth, get_memory_info, get_memory_usage, list_logical_devices, list_physical_devices,
    reset_memory_stats, set_memory_growth, set_logical_device_configuration as set_virtual_device_configuration,
)  # fmt: skip

__getattr__ = _missing("config.experimental")
