"""Records what PyTorch gives for the registry's samples.

Reads the samples from standard input and writes values.json beside this file; run it from the repository's root, with
any Python that has PyTorch (2.4 or newer, the CPU build is enough):

    cargo run -p plimsoll-testkit --bin samples | python crates/plimsoll-testkit/golden/generate.py

An expression sees the inputs as x0, x1, ..., and the names torch, F (torch.nn.functional), math, and dtype (the float
dtype that is being recorded), and optimize (see below). It gives a tensor, or a tuple or list of them. Gradients are those of a weighted sum of
the float outputs; the weight of element i of an output is ((7 i + 3) mod 11) / 4 - 1.25, as the test kit has it.
"""

import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
}


def number(value, dtype):
    """A number with as many digits as its dtype has; a word where JSON has no number for it."""
    if dtype in (torch.bool, torch.int64, torch.int32, torch.uint8):
        return int(value)
    if not math.isfinite(value):
        return str(value)
    return value if dtype == torch.float64 else float(f"{value:.9g}")


def describe(tensor):
    """A tensor as the golden file has it."""
    values = tensor.detach().contiguous().flatten().tolist()
    return {"shape": list(tensor.shape), "values": [number(value, tensor.dtype) for value in values]}


def weights(output):
    """The weights of an output's elements."""
    flat = torch.arange(output.numel(), device="cpu")
    return (((flat * 7 + 3) % 11).to(torch.float64) / 4 - 1.25).to(output.dtype).reshape(output.shape)


def make_input(description, dtype):
    """An input of a sample as a tensor."""
    of = dtype if description["dtype"] == "open" else DTYPES[description["dtype"]]
    tensor = torch.tensor(description["values"], dtype=torch.float64).reshape(description["shape"]).to(of)
    return tensor.requires_grad_(description["watched"])


def optimize(make, parameters, targets, n_steps):
    """The parameters after some steps of the optimizer that `make` makes; their gradients are the ways from targets."""
    parameters = [parameter.clone() for parameter in parameters]
    optimizer = make(parameters)
    for _ in range(n_steps):
        for parameter, target in zip(parameters, targets):
            parameter.grad = parameter - target
        optimizer.step()
    return parameters


def record(sample, dtype):
    """The outputs of a sample, and the gradients of those inputs that are watched."""
    torch.set_default_dtype(dtype)
    inputs = [make_input(description, dtype) for description in sample["inputs"]]
    names = {"torch": torch, "F": F, "dtype": dtype, "math": math, "optimize": optimize}
    names.update({f"x{position}": tensor for position, tensor in enumerate(inputs)})
    result = eval(sample["torch"], names)
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    total = sum((output * weights(output)).sum() for output in outputs if output.is_floating_point())
    gradients = [None] * len(inputs)
    watched = [position for position, tensor in enumerate(inputs) if tensor.requires_grad]
    if watched and isinstance(total, torch.Tensor) and total.requires_grad:
        found = torch.autograd.grad(total, [inputs[position] for position in watched], allow_unused=True)
        for position, gradient in zip(watched, found):
            gradients[position] = None if gradient is None else describe(gradient)
    return {"outputs": [describe(output) for output in outputs], "gradients": gradients}


def main():
    """Records every sample, a line each."""
    lines = []
    for sample in json.load(sys.stdin):
        try:
            for name in ("float32", "float64"):
                sample[name] = record(sample, DTYPES[name])
        except Exception as error:
            raise SystemExit(f"{sample['op']}, sample `{sample['sample']}`: `{sample['torch']}`: {error}")
        lines.append(json.dumps(sample, separators=(",", ":")))
    target = pathlib.Path(__file__).parent / "values.json"
    version = torch.__version__.split("+")[0]
    target.write_text(f'{{"made_with":"PyTorch {version}","samples":[\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
