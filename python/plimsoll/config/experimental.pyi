# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from . import LogicalDeviceConfiguration as VirtualDeviceConfiguration
from . import get_memory_growth as get_memory_growth
from . import get_memory_info as get_memory_info
from . import get_memory_usage as get_memory_usage
from . import list_logical_devices as list_logical_devices
from . import list_physical_devices as list_physical_devices
from . import reset_memory_stats as reset_memory_stats
from . import set_logical_device_configuration as set_virtual_device_configuration
from . import set_memory_growth as set_memory_growth

