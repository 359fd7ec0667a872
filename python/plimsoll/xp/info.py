"""What the namespace says of itself."""

from .. import _core, dtypes
from .promotion import isdtype


class __array_namespace_info__:  # noqa: N801
    """Devices, dtypes and what depends on values."""

    def capabilities(self):
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": 8}

    def default_device(self):
        return "cpu"

    def devices(self):
        return ["cpu", *(f"cuda:{number}" for number in range(_core.n_gpus()))]

    def default_dtypes(self, *, device=None):
        return {"real floating": dtypes.float32, "complex floating": None, "integral": dtypes.int64, "indexing": dtypes.int64}

    def dtypes(self, *, device=None, kind=None):
        # float16 and bfloat16 are there, and no dtypes of the array API.
        known = [dtypes.bool, dtypes.uint8, dtypes.int32, dtypes.int64, dtypes.float32, dtypes.float64]
        return {dtype.name: dtype for dtype in known if kind is None or isdtype(dtype, kind)}
