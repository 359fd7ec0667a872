"""Initializers: what weights start from. An object is called with a shape, or given to a layer."""

from .. import _core, dtypes
from ..missing import missing as _missing
from ..tensor import convert_to_tensor


class Initializer:
    """What a weight starts from: a name, and a number where it has one."""

    _name, _number = "zeros", 0.0

    def __init__(self, seed=None):
        if seed is not None:
            raise NotImplementedError("an initializer has no seed of its own here: tf.keras.utils.set_random_seed is for all of them")

    def __call__(self, shape, dtype=None):
        return _core.keras.initial(self._name, self._number, list(shape), dtypes.as_dtype(dtype or "float32").name)


def _plain(cls_name, name):
    return type(cls_name, (Initializer,), {"_name": name, "__doc__": f"Keras's ``{cls_name}``."})


Zeros, Ones = _plain("Zeros", "zeros"), _plain("Ones", "ones")
GlorotUniform, GlorotNormal = _plain("GlorotUniform", "glorot_uniform"), _plain("GlorotNormal", "glorot_normal")
HeUniform, HeNormal = _plain("HeUniform", "he_uniform"), _plain("HeNormal", "he_normal")
LecunNormal = _plain("LecunNormal", "lecun_normal")


class Constant(Initializer):
    _name = "constant"

    def __init__(self, value=0.0):
        self._number = float(value)


class RandomNormal(Initializer):
    _name = "random_normal"

    def __init__(self, mean=0.0, stddev=0.05, seed=None):
        super().__init__(seed)
        if mean:
            raise NotImplementedError("a normal distribution around another mean than 0 is not there")
        self._number = float(stddev)


class TruncatedNormal(RandomNormal):
    _name = "truncated_normal"


class RandomUniform(Initializer):
    _name = "random_uniform"

    def __init__(self, minval=-0.05, maxval=0.05, seed=None):
        super().__init__(seed)
        if minval != -maxval:
            raise NotImplementedError("an even distribution must have 0 in its middle: minval = -maxval")
        self._number = float(maxval)


class Orthogonal(Initializer):
    _name = "orthogonal"

    def __init__(self, gain=1.0, seed=None):
        super().__init__(seed)
        if gain != 1.0:
            raise NotImplementedError("an orthogonal matrix of another gain than 1 is not there")


_BY_NAME = {
    "zeros": Zeros, "ones": Ones, "glorot_uniform": GlorotUniform, "glorot_normal": GlorotNormal, "he_uniform": HeUniform,
    "he_normal": HeNormal, "lecun_normal": LecunNormal, "random_normal": RandomNormal, "normal": RandomNormal,
    "truncated_normal": TruncatedNormal, "random_uniform": RandomUniform, "uniform": RandomUniform, "orthogonal": Orthogonal,
    "constant": Constant,
}  # fmt: skip
_BY_NAME.update({cls.__name__: cls for cls in list(_BY_NAME.values())})
globals().update({name: cls for name, cls in _BY_NAME.items() if name.islower()})


def get(identifier):
    """The initializer of a name or class; an object, or any function of shape and dtype, as it is."""
    if isinstance(identifier, str):
        if identifier not in _BY_NAME:
            raise ValueError(f"there is no initializer {identifier!r}; there are {', '.join(n for n in _BY_NAME if n.islower())}")
        return _BY_NAME[identifier]()
    return identifier() if isinstance(identifier, type) else identifier


def described(identifier):
    """An initializer as a description of a layer has it: its name and its number."""
    found = get(identifier)
    if not isinstance(found, Initializer):
        raise NotImplementedError(
            f"{found!r} is an initializer of Python's own; layers here take those of tf.keras.initializers (set_weights gives any values)"
        )
    return (found._name, found._number)


def value(identifier, shape, dtype):
    """What a weight of that shape starts from."""
    return convert_to_tensor(get(identifier)(shape, dtype=dtype))


__getattr__ = _missing("keras.initializers")
