"""Regularizers: penalties on large weights, which are added to the loss."""

from .. import names
from ..missing import missing as _missing
from ..tensor import convert_to_tensor


class Regularizer:
    """A penalty ``l1 Σ|w| + l2 Σw²``."""

    l1 = l2 = 0.0

    def __call__(self, x):
        penalty = convert_to_tensor(0.0, x.dtype)
        if self.l1:
            penalty = penalty + self.l1 * names.MATH["reduce_sum"](names.MATH["abs"](x))
        if self.l2:
            penalty = penalty + self.l2 * names.MATH["reduce_sum"](names.MATH["square"](x))
        return penalty


class L1L2(Regularizer):
    def __init__(self, l1=0.0, l2=0.0):
        self.l1, self.l2 = float(l1), float(l2)


class L1(Regularizer):
    def __init__(self, l1=0.01):
        self.l1 = float(l1)


class L2(Regularizer):
    def __init__(self, l2=0.01):
        self.l2 = float(l2)


l1, l2, l1_l2 = L1, L2, L1L2
_BY_NAME = {"l1": L1, "l2": L2, "l1_l2": L1L2, "L1": L1, "L2": L2, "L1L2": L1L2}


def get(identifier):
    """The regularizer of a name; an object as it is."""
    if identifier is None or isinstance(identifier, Regularizer):
        return identifier
    if identifier not in _BY_NAME:
        raise ValueError(f"there is no regularizer {identifier!r}; there are l1, l2 and l1_l2, or objects of tf.keras.regularizers")
    return _BY_NAME[identifier]()


__getattr__ = _missing("keras.regularizers")
