"""Records what PyTorch's layers give, for tests/layers.rs: `python layers.py > layers.json`, float64 throughout.

Tensors are channels last and kernels as Plimsoll lays them out; a case holds the input, the variables by name, the
output while training, the gradient of the input for `grad_output`, and, where it differs, the output of inference.
"""

import json

import torch
from torch import nn

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


def last(x):
    """Channels last."""
    return x.movedim(1, -1)


def first(x):
    """Channels first."""
    return x.movedim(-1, 1)


def array(x):
    return {"shape": list(x.shape), "values": [round(v, 15) for v in x.detach().flatten().tolist()]}


def record(shape, module, variables, after=(), channels_last=True):
    """A case: an input of that shape (channels last), a module, and its variables before and after a step."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0.3, 0.5)
    x = torch.randn(shape, requires_grad=True)
    before = {name: array(get(module)) for name, get in variables.items()}
    module.train()
    y = last(module(first(x))) if channels_last else module(x)
    grad = torch.randn(y.shape)
    (y * grad).sum().backward()
    module.eval()
    infer = last(module(first(x))) if channels_last else module(x)
    return {
        "input": array(x),
        "variables": before,
        "output": array(y),
        "grad_output": array(grad),
        "grad_input": array(x.grad),
        "infer": array(infer),
        "after": {name: array(variables[name](module)) for name in after},
    }


def conv(shape, module):
    return record(shape, module, {"kernel": lambda m: last(m.weight), "bias": lambda m: m.bias})


norm = {"gamma": lambda m: m.weight, "beta": lambda m: m.bias}
running = {"moving_mean": lambda m: m.running_mean.clone(), "moving_variance": lambda m: m.running_var.clone()}


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3), keepdim=True)


cases = {
    "conv1d": conv((2, 7, 3), nn.Conv1d(3, 4, 3, stride=2, padding=1, dilation=2)),
    "conv2d": conv((2, 5, 6, 3), nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0))),
    "conv2d same": conv((1, 5, 4, 2), nn.Conv2d(2, 3, (3, 2), padding="same")),
    "conv2d groups": conv((1, 4, 4, 4), nn.Conv2d(4, 6, 3, groups=2)),
    "conv1d_transpose": conv((2, 4, 3), nn.ConvTranspose1d(3, 2, 4, stride=3, padding=1, output_padding=2)),
    "conv2d_transpose": conv((2, 3, 4, 3), nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, output_padding=1)),
    "depthwise_conv2d": conv((1, 5, 4, 3), nn.Conv2d(3, 6, 3, padding=1, groups=3)),
    "max_pool": record((2, 6, 5, 2), nn.MaxPool2d(3, 2, 1), {}),
    "average_pool": record((2, 6, 5, 2), nn.AvgPool2d(2), {}),
    "global_average_pool": record((2, 3, 4, 2), Mean(), {}),
    "batch_norm": record((3, 2, 2, 3), nn.BatchNorm2d(3), {**norm, **running}, after=tuple(running)),
    "group_norm": record((2, 3, 2, 4), nn.GroupNorm(2, 4), norm),
    "layer_norm": record((2, 3, 4), nn.LayerNorm(4), norm, channels_last=False),
    "rms_norm": record((2, 3, 4), nn.RMSNorm(4, 1e-6), {"gamma": lambda m: m.weight}, channels_last=False),
}
print(json.dumps(cases))
