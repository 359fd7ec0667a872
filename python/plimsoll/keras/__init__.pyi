# Written by `python python/write_stubs.py`. Not edited by hand.
# mypy: disable-error-code="override,misc,assignment,no-redef"
from collections.abc import Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from . import activations as activations
from . import backend as backend
from . import callbacks as callbacks
from . import context as context
from . import data as data
from . import datasets as datasets
from . import initializers as initializers
from . import layers as layers
from . import layouts as layouts
from . import losses as losses
from . import metrics as metrics
from . import mixed_precision as mixed_precision
from . import model as model
from . import models as models
from . import naming as naming
from . import optimizers as optimizers
from . import pickling as pickling
from . import progress as progress
from . import regularizers as regularizers
from . import schedules as schedules
from . import sequential as sequential
from . import structure as structure
from . import summary as summary
from . import symbolic as symbolic
from . import tensors as tensors
from . import training as training
from . import twins as twins
from . import utils as utils
from .callbacks import History as History
from .layers.base import Layer as Layer
from .model import Model as Model
from .sequential import Sequential as Sequential
from .symbolic import Input as Input
from .symbolic import KerasTensor as KerasTensor

__all__ = ['Input', 'Model', 'Sequential', 'activations', 'backend', 'callbacks', 'datasets', 'initializers', 'layers', 'losses', 'metrics', 'mixed_precision', 'models', 'optimizers', 'regularizers', 'utils']
