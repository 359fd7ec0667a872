"""`tf.compat.v1.train`."""

from ... import graph as _graph
from ...missing import missing as _missing
from ...nest import flatten as _flatten


class GradientDescentOptimizer:
    """``minimize`` is an operation: the variables minus the learning rate times their gradients."""

    def __init__(self, learning_rate, use_locking=False, name="GradientDescent"):
        self._rate = learning_rate

    def compute_gradients(self, loss, var_list=None):
        variables = _graph.trainable_variables() if var_list is None else _flatten(var_list)
        return list(zip(_graph.gradients(loss, variables), variables))

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        steps = [variable.assign_sub(gradient * self._rate) for gradient, variable in grads_and_vars if gradient is not None]
        return _graph.group(steps if global_step is None else [*steps, global_step.assign_add(1)])

    def minimize(self, loss, global_step=None, var_list=None, name=None):
        return self.apply_gradients(self.compute_gradients(loss, var_list), global_step)


__getattr__ = _missing("compat.v1.train")
