"""Follows the runs of `gpu_promises losses` with PyTorch: same weights, same batch, same optimizer, step by step.

    cargo run --release -p plimsoll-cli --example gpu_promises -- losses FOLDER     # on a GPU: gpt2-124m, resnet50, lstm
    python gpu_losses.py FOLDER                                                 # needs PyTorch and torchvision

    cargo run --release -p plimsoll-cli --example gpu_promises -- losses FOLDER --small --device cpu
    python gpu_losses.py FOLDER --device cpu                                    # the same in small, in a few minutes

For each run it prints the curves, and ends with 1 if one of ours leaves PyTorch's.

What is allowed. Two right answers differ by rounding, and training makes small differences grow, so that no fixed
number would be honest: AdamW's first steps go by the sign of a gradient, however small it is, and in bfloat16 many of a
ResNet's are rounding alone. PyTorch itself says how much. It takes the same steps again from weights that are moved by
less than one rounding of the dtype, N_MOVED times, and under `mixed_bfloat16` once more in the way that we compute: all
activations in bfloat16, as in Keras, where autocast leaves norms and the sums of residuals in f32. The farthest that any
of these is from PyTorch's own curve, at a step or the N_BEFORE before it, is what rounding does there. Ours may be TIMES
as far: they move the weights once, while every op rounds, and the farthest of a few is not the farthest possible. The
least that counts is one rounding of the dtype per row of the loss, which a mean over n rows makes smaller by the root of
n, and a few roundings of the dtype that sums are kept in.

A comparison that allows everything tells nothing: it fails if a tenth of what the loss falls by is less than what is
allowed in the mean over the steps. The last column is how far PyTorch's curve is from its own in a wider precision; it
is for the reader and decides nothing, since less precision may also learn more slowly.
"""
import argparse
import json
import re
import struct
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

N_MOVED = 3
N_BEFORE = 2
TIMES = 3.0


class Precision(NamedTuple):
    """How PyTorch follows a policy of ours."""

    way: str
    # Half the distance between one and the next number.
    unit: float
    # The same for the numbers that sums are kept in.
    sum_unit: float
    # Another way to compute in the same precision.
    other: str | None
    wider: str | None


PRECISIONS = {
    "float64": Precision("float64", 2.0**-53, 2.0**-53, None, None),
    "float32": Precision("float32", 2.0**-24, 2.0**-24, None, "float64"),
    "mixed_bfloat16": Precision("autocast", 2.0**-9, 2.0**-24, "bfloat16", "float32"),
}
DTYPES = {"F64": torch.float64, "F32": torch.float32, "I64": torch.int64}
HEAD_WIDTH = 64


def read_tensors(path):
    """The tensors of a safetensors file by name."""
    data = bytearray(path.read_bytes())
    (n,) = struct.unpack("<Q", data[:8])
    entries = json.loads(data[8 : 8 + n])
    entries.pop("__metadata__", None)
    tensors = {}
    for name, entry in entries.items():
        begin, end = (8 + n + offset for offset in entry["data_offsets"])
        dtype = DTYPES[entry["dtype"]]
        tensors[name] = torch.frombuffer(data, dtype=dtype, offset=begin, count=(end - begin) // dtype.itemsize)
        tensors[name] = tensors[name].view(entry["shape"])
    return tensors


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attn_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time, width = x.shape
        qkv = self.qkv(self.attn_norm(x)).view(batch, time, 3, width // HEAD_WIDTH, HEAD_WIDTH)
        attention = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.output(attention.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Logits of every position by the tokens' own table."""

    def __init__(self, weights):
        super().__init__()
        self.tokens = nn.Embedding(*weights["tokens.embeddings"].shape)
        self.positions = nn.Embedding(*weights["trunk.positions.embeddings"].shape)
        width = self.tokens.embedding_dim
        n_blocks = sum(name.endswith("qkv.kernel") for name in weights)
        self.blocks = nn.ModuleList([Block(width) for _ in range(n_blocks)])
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight).flatten(0, 1)

    @staticmethod
    def layer(ours):
        path = [part for part in ours.split(".") if part not in ("trunk", "sequential", "attention")]
        if len(path) == 1:
            return path[0].replace("layer_norm", "norm")
        block, half, layer = path
        layer = f"{half}_norm" if layer == "layer_norm" else layer
        return f"blocks.{block.removeprefix('block_')}.{layer}"


class Lstm(nn.Module):
    def __init__(self, weights):
        super().__init__()
        inputs, gates = weights["lstm.kernel"].shape
        self.lstm = nn.LSTM(inputs, gates // 4, batch_first=True)
        self.dense = nn.Linear(*weights["dense.kernel"].shape)
        # One bias is trained: two of them would move twice as fast.
        self.lstm.bias_hh_l0.data.zero_()
        self.lstm.bias_hh_l0.requires_grad_(False)

    def forward(self, x):
        return self.dense(self.lstm(x)[0][:, -1])

    @staticmethod
    def layer(ours):
        return ours


def resnet50(_):
    import torchvision

    net = torchvision.models.resnet50(weights=None)
    net.layer = resnet_layer
    return net.to(memory_format=torch.channels_last)


def resnet_layer(ours):
    """`stage_2_block_1.main.conv2d_1` is `layer2.0.conv2` there."""
    names = {"dense": "fc", "conv2d": "conv", "batch_norm": "bn"}
    found = re.fullmatch(r"(?:stage_(\d)_block_(\d)\.(main|shortcut)\.)?([a-z]+(?:2d|_norm)?)(?:_(\d))?", ours)
    stage, block, branch, kind, number = found.groups()
    if kind == "dense":
        return names[kind]
    own = f"{names[kind]}{int(number or 0) + 1}"
    if branch == "shortcut":
        own = {"conv1": "downsample.0", "bn1": "downsample.1"}[own]
    return own if stage is None else f"layer{stage}.{int(block) - 1}.{own}"


TWINS = {"gpt": Gpt, "lstm": Lstm, "resnet50": resnet50}
PARTS = {"kernel": "weight", "embeddings": "weight", "gamma": "weight", "beta": "bias", "bias": "bias",
         "moving_mean": "running_mean", "moving_variance": "running_var"}
LSTM_PARTS = {"kernel": "weight_ih_l0", "recurrent_kernel": "weight_hh_l0", "bias": "bias_ih_l0"}


def twin(kind, weights, dtype):
    """The model with our weights; every one of them has a place, and nothing else is trained."""
    net = TWINS[kind](weights).to(dtype)
    places = dict(net.named_parameters()) | dict(net.named_buffers())
    placed = set()
    for name, value in weights.items():
        layer, part = name.rsplit(".", 1)
        place = f"{net.layer(layer)}.{(LSTM_PARTS if layer == 'lstm' else PARTS)[part]}"
        if value.dim() == 2 and part != "embeddings":
            value = value.T
        elif value.dim() == 4:
            value = value.permute(0, 3, 1, 2)
        if places[place].shape != value.shape or place in placed:
            sys.exit(f"{name} is {list(value.shape)} and does not fit {place}, {list(places[place].shape)}")
        places[place].data.copy_(value)
        placed.add(place)
    left = {name for name, parameter in net.named_parameters() if parameter.requires_grad} - placed
    if left:
        sys.exit(f"{kind}: nothing was given for {sorted(left)}")
    return net


def in_bfloat16(net, x):
    """Logits with everything in bfloat16 but what batch norms own, which PyTorch wants in f32."""
    wide = {name for name, module in net.named_modules() if isinstance(module, nn.BatchNorm2d)}
    is_wide = lambda name: name.rpartition(".")[0] in wide
    narrow = {name: p if is_wide(name) else p.bfloat16() for name, p in net.named_parameters()}
    return functional_call(net, narrow, (x.bfloat16() if x.is_floating_point() else x,))


def moved(weights, unit, seed):
    """The weights, each moved by less than a rounding."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda value: torch.rand(value.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return {name: (value.double() * (1 + unit * draw(value))).to(value.dtype) for name, value in weights.items()}


def losses(run, weights, batch, way, device):
    wide = torch.float64 if way == "float64" else torch.float32
    net = twin(run["twin"], weights, wide).to(device)
    x, y = batch["inputs"].to(device), batch["labels"].to(device).flatten()
    if x.dim() == 4:
        x = x.permute(0, 3, 1, 2)
    if way == "float64":
        x = x.double() if x.is_floating_point() else x
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=run["learning_rate"], weight_decay=0.01)
    found = []
    for _ in run["losses"]:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=way == "autocast"):
            logits = in_bfloat16(net, x) if way == "bfloat16" else net(x)
        loss = F.cross_entropy(logits.to(wide), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def curves(run, weights, batch, device):
    """PyTorch's curve, those that are as right as it is, and one in a wider precision."""
    precision = PRECISIONS[run["policy"]]
    follow = lambda weights, way: losses(run, weights, batch, way, device)
    theirs = follow(weights, precision.way)
    others = [follow(moved(weights, precision.unit, seed), precision.way) for seed in range(N_MOVED)]
    others += [follow(weights, precision.other)] if precision.other else []
    return theirs, others, follow(weights, precision.wider) if precision.wider else theirs


def compare(run, rows, theirs, others, wider):
    """Prints the curves; whether ours follows PyTorch's."""
    precision, ours = PRECISIONS[run["policy"]], run["losses"]
    least = theirs[0] * (precision.unit / rows**0.5 + 16 * precision.sum_unit)
    apart = [max(abs(other[step] - theirs[step]) for other in others) for step in range(len(ours))]
    lately = lambda step: apart[max(step - N_BEFORE, 0) : step + 1]
    allowed = [TIMES * max([least, *lately(step)]) for step in range(len(ours))]
    differences = [abs(a - b) for a, b in zip(ours, theirs)]
    print(f"\n{run['name']} on {run['device']}, learning rate {run['learning_rate']:g}")
    print(f"step       ours {precision.way:>10}  difference   its own     allowed   from {precision.wider or '-'}")
    for step, (loss, difference) in enumerate(zip(ours, differences)):
        numbers = f"{difference:12.1e}{apart[step]:10.1e}{allowed[step]:12.1e}{abs(theirs[step] - wider[step]):12.1e}"
        print(f"{step + 1:4} {loss:10.6f} {theirs[step]:10.6f}{numbers}" + "  TOO FAR" * (difference > allowed[step]))
    relative = lambda numbers: max(number / loss for number, loss in zip(numbers, theirs))
    print(f"largest relative difference {relative(differences):.1e}; PyTorch's own by rounding {relative(apart):.1e}")
    follows = all(difference <= limit for difference, limit in zip(differences, allowed))
    fall, mean = theirs[0] - theirs[-1], sum(allowed) / len(allowed)
    tells = mean <= fall / 10
    if not tells:
        print(f"the loss falls by {fall:.2g}, and {mean:.2g} is allowed in the mean: this tells nothing")
    print(f"{'PASS' if follows and tells else 'FAIL'}  {run['name']}", flush=True)
    return follows and tells


def main():
    parser = argparse.ArgumentParser(description="Compares the losses of `gpu_promises losses` with PyTorch's.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda", type=torch.device)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    files = sorted(options.folder.glob("*.json"))
    if not files:
        sys.exit(f"{options.folder} holds no run; `gpu_promises losses` makes them")
    print(f"PyTorch {torch.__version__} on {options.device}")
    good = []
    for file in files:
        run = json.loads(file.read_text())
        weights, batch = (read_tensors(file.with_name(f"{run['name']}.{part}.safetensors"))
                          for part in ("weights", "batch"))
        good.append(compare(run, batch["labels"].numel(), *curves(run, weights, batch, options.device)))
    print(f"\n{good.count(False)} of {len(good)} failed")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
