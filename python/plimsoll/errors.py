"""Exception classes, one for each kind of error, with TensorFlow's names where it has one."""

from .missing import missing as _missing


class OpError(Exception):
    """Something that an op refused. ``message`` names the op, the values that clash and what would work."""

    def __init__(self, message):
        super().__init__(message)
        self.message = message


class InvalidArgumentError(OpError, ValueError):
    """Shapes, dtypes, devices or arguments that do not fit."""


class ResourceExhaustedError(OpError, MemoryError):
    """Memory is full, or the limit is reached. ``report`` says who holds the bytes."""

    def __init__(self, message, report=None):
        note = "  a caught exception holds the frames of its traceback, and their tensors, until it is dropped"
        super().__init__(f"{message}\n{note}")
        self.report = report


class TapeError(OpError, RuntimeError):
    """A tape was used in a way that it cannot serve."""


class NotDifferentiableError(OpError, LookupError):
    """A gradient was wanted through an op that has none."""


class OperatorNotAllowedInGraphError(OpError, TypeError):
    """The value of a tensor was asked for where tensors have none: in a function that is being recorded, or in a graph."""


class FailedPreconditionError(OpError):
    """A value was asked for that is not there."""


class OutOfRangeError(OpError):
    """There is no next element."""


class CancelledError(OpError):
    """Somebody asked the program to stop while it waited."""


class UnavailableError(OpError, OSError):
    """A file that could not be read or written."""


class DataLossError(OpError, ValueError):
    """A file whose contents are not what its name promises."""


class UnknownError(OpError):
    """Something that failed while doing something else."""


__getattr__ = _missing("errors")
