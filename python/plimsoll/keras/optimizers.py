"""Optimizers. One object is used by ``fit`` and by loops of one's own, with the same state."""

import warnings

from .. import _core
from ..missing import missing as _missing
from . import schedules  # noqa: F401
from .schedules import LearningRateSchedule


class LearningRate(float):
    """The learning rate of an optimizer: a number that can be assigned, as Keras's variable can."""

    def __new__(cls, optimizer):
        made = super().__new__(cls, optimizer._native.learning_rate)
        made._optimizer = optimizer
        return made

    def assign(self, value):
        self._optimizer.learning_rate = value

    def numpy(self):
        return float(self)

    def read_value(self):
        return float(self)


class Optimizer:
    """Updates variables from their gradients, and keeps what it needs for them."""

    _kind = None

    def __init__(self, learning_rate, options, weight_decay=None, clipnorm=None, clipvalue=None, global_clipnorm=None,
                 use_ema=False, ema_momentum=0.99, ema_overwrite_frequency=None, loss_scale_factor=None,
                 gradient_accumulation_steps=None, name=None, **unknown):  # fmt: skip
        if unknown:
            raise TypeError(f"{type(self).__name__} has no argument {', '.join(unknown)}")
        if clipnorm is not None or use_ema or gradient_accumulation_steps is not None:
            raise NotImplementedError(
                f"{type(self).__name__} has no clipnorm of each gradient, use_ema or gradient_accumulation_steps; global_clipnorm "
                "clips all gradients together"
            )
        self.name = name or self._kind
        self._schedule = learning_rate if isinstance(learning_rate, LearningRateSchedule) else None
        self._config = {
            "learning_rate": float(learning_rate(0) if self._schedule or callable(learning_rate) else learning_rate),
            "schedule": self._schedule.described() if self._schedule else None, "weight_decay": weight_decay or None,
            "clipvalue": clipvalue, "global_clipnorm": global_clipnorm, "loss_scale": loss_scale_factor, **options,
        }  # fmt: skip
        self._native = _core.keras.Optimizer(self._kind, self._config)

    def apply_gradients(self, grads_and_vars, **_):
        """Updates variables from pairs of a gradient and a variable. Variables without a gradient are left out."""
        pairs = list(grads_and_vars)
        connected = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        if not connected:
            raise ValueError("no variable has a gradient: does the loss depend on the variables, and was it recorded by the tape?")
        if len(connected) < len(pairs):
            left_out = ", ".join(variable.name for gradient, variable in pairs if gradient is None)
            warnings.warn(f"gradients do not exist for variables {left_out} when minimizing the loss", stacklevel=2)
        self._native.apply_gradients([gradient for gradient, _ in connected], [variable for _, variable in connected])

    def apply(self, grads, trainable_variables=None):
        """Updates variables from gradients, in order."""
        self.apply_gradients(zip(grads, trainable_variables or self._built_for))

    def build(self, variables):
        """Makes what is kept for variables now instead of at the first update."""
        self._built_for = list(variables)
        self._native.prepare(self._built_for)

    def minimize(self, loss, var_list, tape=None):
        """Updates variables by the gradients of a loss: a function, or a tensor of a tape."""
        if callable(loss):
            from ..tape import GradientTape

            with GradientTape() as tape:
                value = loss()
        else:
            value = loss
        self.apply_gradients(zip(tape.gradient(value, var_list), var_list))

    def scale_loss(self, loss):
        """The loss times the present loss scale, if there is one."""
        return self._native.scale_loss(loss)

    @property
    def learning_rate(self):
        return LearningRate(self)

    @learning_rate.setter
    def learning_rate(self, value):
        if isinstance(value, LearningRateSchedule):
            raise NotImplementedError("a schedule is given to an optimizer when it is made")
        self._native.learning_rate = float(value)

    lr = learning_rate

    @property
    def iterations(self):
        return self._native.iterations

    @property
    def variables(self):
        return self._native.variables()

    def get_config(self):
        return {"name": self.name, **self._config}

    def __repr__(self):
        return f"<{type(self).__name__} learning_rate={float(self.learning_rate):g}>"

    def __getstate__(self):
        state = [(variable._name, variable.numpy()) for variable in self.variables]
        return {**{k: v for k, v in vars(self).items() if k != "_native"}, "_state": state}

    def __setstate__(self, kept):
        kept = dict(kept)
        self._kept_state = dict(kept.pop("_state"))
        vars(self).update(kept)
        self._native = _core.keras.Optimizer(self._kind, self._config)

    def _restore(self, variables):
        """Takes up again, for these variables, what a copy or a pickle kept."""
        kept = self.__dict__.pop("_kept_state", None)
        if kept:
            self.build(variables)
            for variable in self.variables:
                if variable._name in kept:
                    variable.assign(kept[variable._name])


class SGD(Optimizer):
    _kind = "sgd"

    def __init__(self, learning_rate=0.01, momentum=0.0, nesterov=False, **common):
        super().__init__(learning_rate, {"momentum": float(momentum), "nesterov": bool(nesterov)}, **common)


class Adam(Optimizer):
    _kind = "adam"

    def __init__(self, learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-7, amsgrad=False, **common):
        options = {"beta_1": float(beta_1), "beta_2": float(beta_2), "epsilon": float(epsilon), "amsgrad": bool(amsgrad)}
        super().__init__(learning_rate, options, **common)


class AdamW(Adam):
    _kind = "adamw"

    def __init__(self, learning_rate=0.001, weight_decay=0.004, **common):
        super().__init__(learning_rate, weight_decay=weight_decay, **common)


class RMSprop(Optimizer):
    _kind = "rmsprop"

    def __init__(self, learning_rate=0.001, rho=0.9, momentum=0.0, epsilon=1e-7, centered=False, **common):
        options = {"rho": float(rho), "momentum": float(momentum), "epsilon": float(epsilon), "centered": bool(centered)}
        super().__init__(learning_rate, options, **common)


class Adagrad(Optimizer):
    _kind = "adagrad"

    def __init__(self, learning_rate=0.001, initial_accumulator_value=0.1, epsilon=1e-7, **common):
        options = {"initial_accumulator_value": float(initial_accumulator_value), "epsilon": float(epsilon)}
        super().__init__(learning_rate, options, **common)


class Adafactor(Optimizer):
    _kind = "adafactor"

    def __init__(self, learning_rate=0.001, **common):
        super().__init__(learning_rate, {}, **common)


_BY_NAME = {cls._kind: cls for cls in (SGD, Adam, AdamW, RMSprop, Adagrad, Adafactor)}


def get(identifier):
    """The optimizer of a name or class; an optimizer as it is."""
    if isinstance(identifier, str):
        if identifier.lower() not in _BY_NAME:
            raise ValueError(f"there is no optimizer {identifier!r}; there are {', '.join(_BY_NAME)}")
        return _BY_NAME[identifier.lower()]()
    return identifier() if isinstance(identifier, type) else identifier


class legacy:
    """The names of Keras 2."""

    SGD, Adam, RMSprop, Adagrad = SGD, Adam, RMSprop, Adagrad


__getattr__ = _missing("keras.optimizers")
