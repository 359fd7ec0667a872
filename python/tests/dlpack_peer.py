"""A peer that knows DLPack's structures through ctypes: it takes capsules apart, and makes them."""

import ctypes


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Managed(ctypes.Structure):
    pass


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class ManagedVersioned(ctypes.Structure):
    pass


VERSIONED_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(ManagedVersioned))
ManagedVersioned._fields_ = [
    ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", VERSIONED_DELETER),
    ("flags", ctypes.c_uint64), ("tensor", DLTensor),
]  # fmt: skip
READ_ONLY, IS_COPIED = 1, 2

api = ctypes.pythonapi
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
# A capsule does not copy its name.
PLAIN, USED = ctypes.c_char_p(b"dltensor"), ctypes.c_char_p(b"used_dltensor")
USED_VERSIONED = ctypes.c_char_p(b"used_dltensor_versioned")


def look(capsule):
    """What a versioned capsule holds, which nobody takes."""
    return ManagedVersioned.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor_versioned"))


def take(capsule):
    """What a versioned capsule holds, which whoever takes it deletes."""
    taken = look(capsule)
    api.PyCapsule_SetName(capsule, USED_VERSIONED)
    return taken


class Owner:
    """Memory of another library's, of 32-bit floats, which counts how often it was given back.

    It keeps what it lends until the test ends, as ctypes wants it.
    """

    def __init__(self, values, shape, device=(1, 0), strides=None, first=0):
        self.n_deleted, self.asked = 0, []
        self._device = device
        self._values = (ctypes.c_float * (len(values) + 128))()
        # On a GPU memory begins at a multiple of 512, so that whoever begins elsewhere is seen to.
        self._start = -ctypes.addressof(self._values) % 512 // 4
        self._values[self._start : self._start + len(values)] = values
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        address = ctypes.addressof(self._values) + 4 * (self._start + first)
        tensor = DLTensor(address, *device, len(shape), 2, 32, 1, self._shape, self._strides, 0)
        self._deleter = DELETER(self._delete)
        self._managed = Managed(tensor, None, self._deleter)

    def _delete(self, _managed):
        self.n_deleted += 1

    def __dlpack_device__(self):
        return self._device

    def __dlpack__(self, *, stream=None):
        self.asked.append(stream)
        return self.capsule()

    def capsule(self):
        return api.PyCapsule_New(ctypes.addressof(self._managed), PLAIN, None)
