"""Follows the runs of `examples/gpu_losses` with PyTorch: same weights, same batch, same optimizer, step by step.

    cargo run --release -p plimsoll-cli --example gpu_losses -- FOLDER          # on a GPU: gpt2-124m, resnet50, lstm
    python gpu_losses.py FOLDER                                                 # needs PyTorch and torchvision

    cargo run --release -p plimsoll-cli --example gpu_losses -- FOLDER --small --device cpu
    python gpu_losses.py FOLDER --device cpu                                    # the same in small, in a minute

For each run it prints the curves, and ends with 1 if one of ours leaves PyTorch's.

What is allowed. Two right answers differ by rounding, and training makes small differences grow, so that no fixed number
would be honest. PyTorch itself says how much: it takes the same steps in a wider precision, and in every way that it has
of computing in the narrow one. How far these get from the wide curve, at most up to a step, is its own error there.

    ours           PyTorch, the curve to follow    its other way           wide
    float32        float32, TF32 off               -                       float64
    mixed_bfloat16 autocast                        bfloat16, f32 masters   float32, TF32 off

Autocast leaves norms and sums of residuals in f32. We compute everything in bfloat16 and keep f32 masters, as Keras does;
the third column does so in PyTorch. Ours may be TIMES that error from PyTorch's curve: an equal error on the other side
makes two, and which of two curves is further off at a step is chance, which makes the rest. The least error counted is
one rounding of the dtype per row of the loss, which a mean over n rows makes smaller by the root of n, and a few
roundings of the f32 that sums are kept in. A curve that hardly falls could hide anything: where the allowance is more
than a tenth of what the loss falls by, the comparison fails, too.
"""
import argparse
import json
import re
import struct
import sys
from pathlib import Path

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

TIMES = 4.0
LEAST_F32 = 16 * 2.0**-24
UNIT = {"float32": 2.0**-24, "mixed_bfloat16": 2.0**-9}
# The way to follow first, then the others; the wide one apart.
WAYS = {"float32": (["float32"], "float64"), "mixed_bfloat16": (["autocast", "bfloat16"], "float32")}
DTYPES = {"F32": torch.float32, "I64": torch.int64}
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
        self.attend_norm, self.think_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time, width = x.shape
        qkv = self.qkv(self.attend_norm(x)).view(batch, time, 3, width // HEAD_WIDTH, HEAD_WIDTH)
        attended = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.output(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.think_norm(x)), approximate="tanh"))


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


def twin(kind, weights):
    """The model with our weights; every one of them has a place, and nothing else is trained."""
    net = TWINS[kind](weights)
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
    """Logits with everything in bfloat16 but the statistics and parameters of batch norms, which PyTorch wants in f32."""
    wide = tuple(name + "." for name, module in net.named_modules() if isinstance(module, nn.BatchNorm2d))
    narrow = {name: p if name.startswith(wide or ("\0",)) else p.bfloat16() for name, p in net.named_parameters()}
    return functional_call(net, narrow, (x.bfloat16() if x.is_floating_point() else x,))


def losses(run, weights, batch, way, device):
    net = twin(run["twin"], weights).to(device)
    x, y = batch["inputs"].to(device), batch["labels"].to(device).flatten()
    if x.dim() == 4:
        x = x.permute(0, 3, 1, 2)
    if way == "float64":
        net, x = net.double(), x.double() if x.is_floating_point() else x
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=run["learning_rate"], weight_decay=0.01)
    found = []
    for _ in run["losses"]:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=way == "autocast"):
            logits = in_bfloat16(net, x) if way == "bfloat16" else net(x)
        loss = F.cross_entropy(logits.double() if way == "float64" else logits.float(), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def compare(run, rows, curves):
    """Prints the curves; whether ours follows PyTorch's."""
    ways, wide = WAYS[run["policy"]]
    ours, theirs, exact = run["losses"], curves[ways[0]], curves[wide]
    least = exact[0] * (UNIT[run["policy"]] / rows**0.5 + LEAST_F32)
    shown = ways + [wide]
    print(f"\n{run['name']} on {run['device']}, learning rate {run['learning_rate']:g}")
    print("step       ours" + "".join(f"{way:>11}" for way in shown) + "  difference     allowed")
    own_error, follows, worst = least, True, 0.0
    for step, loss in enumerate(ours):
        own_error = max([own_error] + [abs(curves[way][step] - exact[step]) for way in ways])
        difference, allowed = abs(loss - theirs[step]), TIMES * own_error
        worst = max(worst, difference / theirs[step])
        is_near = difference <= allowed
        follows = follows and is_near
        columns = "".join(f"{curves[way][step]:11.6f}" for way in shown)
        print(f"{step + 1:4} {loss:10.6f}{columns}{difference:12.2e}{allowed:12.2e}{'' if is_near else '  TOO FAR'}")
    fall = exact[0] - exact[-1]
    apart = [max(abs(a - b) / b for a, b in zip(curves[way], exact)) for way in ways]
    print(f"largest relative difference {worst:.2e}; PyTorch's own from {wide}: "
          + ", ".join(f"{way} {number:.2e}" for way, number in zip(ways, apart)))
    tells = TIMES * own_error <= fall / 10
    if not tells:
        print(f"the loss falls by {fall:.3g} alone, of which {TIMES * own_error:.2g} is allowed: this tells nothing")
    print(f"{'PASS' if follows and tells else 'FAIL'}  {run['name']}")
    return follows and tells


def main():
    parser = argparse.ArgumentParser(description="Compares the losses of examples/gpu_losses with PyTorch's.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda", type=torch.device)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    files = sorted(options.folder.glob("*.json"))
    if not files:
        sys.exit(f"{options.folder} holds no run; `examples/gpu_losses` makes them")
    print(f"PyTorch {torch.__version__} on {options.device}")
    good = []
    for file in files:
        run = json.loads(file.read_text())
        weights, batch = (read_tensors(file.with_name(f"{run['name']}.{part}.safetensors"))
                          for part in ("weights", "batch"))
        ways, wide = WAYS[run["policy"]]
        curves = {way: losses(run, weights, batch, way, options.device) for way in ways + [wide]}
        good.append(compare(run, batch["labels"].numel(), curves))
    print(f"\n{good.count(False)} of {len(good)} failed")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
