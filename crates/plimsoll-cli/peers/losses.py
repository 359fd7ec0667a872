"""Records the losses of PyTorch on w2, w3, w4 and w5: 50 steps on one fixed batch, from weights that are a formula.

Weights and data are numbers of a hash of (name, position), scaled; the Rust test makes the same ones, so that nothing
large is kept. Positions count in Plimsoll's layouts (kernels [in, out], images and convolutions channels last), and are
permuted here into PyTorch's. Each workload is recorded in float32 and in float64: how far the two are apart says how
far apart two right answers in float32 may be.

    python losses.py > losses.json          # needs PyTorch; about four minutes of one core
"""
import json
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

STEPS = 50


def hashed(name, n):
    """n whole numbers below 2**24 that depend on the name and their position alone."""
    stream = 2166136261
    for byte in name.encode():
        stream = (stream ^ byte) * 16777619 % 2**32
    x = np.arange(n, dtype=np.uint32) * np.uint32(0x9E3779B9) + np.uint32(stream)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x ^= x >> np.uint32(shift)
        x *= np.uint32(factor)
    x ^= x >> np.uint32(16)
    return x >> np.uint32(8)


def uniform(name, shape, limit):
    """float32 numbers from -limit to limit; every operation but the last is exact."""
    whole = hashed(name, int(np.prod(shape))).astype(np.float32)
    values = (whole * np.float32(2.0**-23) - np.float32(1)) * np.float32(limit)
    return torch.from_numpy(values.reshape(shape))


def labels(n, classes):
    return torch.from_numpy((hashed("labels", n) % classes).astype(np.int64))


def dense(name, inputs, outputs, bias=True, gain=1.0):
    layer = nn.Linear(inputs, outputs, bias=bias)
    limit = inputs**-0.5
    layer.weight.data = uniform(f"{name}.kernel", (inputs, outputs), gain * limit).T.contiguous()
    if bias:
        layer.bias.data = uniform(f"{name}.bias", (outputs,), limit)
    return layer


def conv(name, inputs, outputs):
    layer = nn.Conv2d(inputs, outputs, 3, padding=1)
    limit = (9 * inputs) ** -0.5
    layer.weight.data = uniform(f"{name}.kernel", (outputs, 3, 3, inputs), limit).permute(0, 3, 1, 2).contiguous()
    layer.bias.data = uniform(f"{name}.bias", (outputs,), limit)
    return layer


class ChannelsLastFlatten(nn.Module):
    def forward(self, x):
        return x.permute(0, 2, 3, 1).flatten(1)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(64, 256, batch_first=True), dense("dense", 256, 10)
        limit = 256**-0.5
        self.lstm.weight_ih_l0.data = uniform("lstm.kernel", (64, 1024), limit).T.contiguous()
        self.lstm.weight_hh_l0.data = uniform("lstm.recurrent_kernel", (256, 1024), limit).T.contiguous()
        self.lstm.bias_ih_l0.data = uniform("lstm.bias", (1024,), limit)
        # One bias is trained: two of them would move twice as fast.
        self.lstm.bias_hh_l0.data.zero_()
        self.lstm.bias_hh_l0.requires_grad_(False)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Block(nn.Module):
    def __init__(self, name, d, heads):
        super().__init__()
        self.heads, self.n1, self.n2 = heads, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = dense(f"{name}.qkv", d, 3 * d), dense(f"{name}.output", d, d)
        self.up, self.down = dense(f"{name}.up", d, 4 * d), dense(f"{name}.down", 4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers=4, d=256, heads=4, t=128, vocab=1024):
        super().__init__()
        self.tok = nn.Embedding(vocab, d, _weight=uniform("tokens", (vocab, d), 0.05))
        self.pos = nn.Parameter(uniform("positions", (t, d), 0.05))
        self.blocks = nn.Sequential(*[Block(f"block_{i}", d, heads) for i in range(layers)])
        self.norm, self.head = nn.LayerNorm(d), dense("head", d, vocab, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.tok(x) + self.pos))).flatten(0, 1)


def w2():
    # Eight layers deep, PyTorch's own start makes gradients so small that rounding decides where Adam goes, and the
    # benchmark's rate of 1e-3 makes the losses leap: float32 and float64 are 2.0 apart after 49 steps. Weights that keep
    # the size of signals, and a tenth of the rate, leave something to compare.
    names = ["dense"] + [f"dense_{i}" for i in range(1, 9)]
    layers = []
    for name in names[:-1]:
        layers += [dense(name, 1024, 1024, gain=6**0.5), nn.ReLU()]
    model = nn.Sequential(*layers, dense(names[-1], 1024, 10, gain=6**0.5))
    return model, uniform("inputs", (256, 1024), 1.0), labels(256, 10), 1e-4, 0.0


def w3():
    model = nn.Sequential(conv("conv2d", 1, 32), nn.ReLU(), conv("conv2d_1", 32, 64), nn.ReLU(), nn.MaxPool2d(2),
                          ChannelsLastFlatten(), dense("dense", 64 * 14 * 14, 128), nn.ReLU(), dense("dense_1", 128, 10))
    return model, uniform("inputs", (64, 28, 28, 1), 1.0).permute(0, 3, 1, 2), labels(64, 10), 1e-3, 0.0


def w4():
    return Lstm(), uniform("inputs", (32, 64, 64), 1.0), labels(32, 10), 1e-3, 0.0


def w5():
    tokens = torch.from_numpy((hashed("inputs", 8 * 128) % 1024).astype(np.int64)).view(8, 128)
    return Gpt(), tokens, labels(8 * 128, 1024), 1e-3, 0.01


def losses(workload, dtype):
    model, x, y, rate, decay = workload()
    model = model.to(dtype)
    x = x.to(dtype) if x.is_floating_point() else x
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=decay)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        found.append(float(f"{loss.item():.9g}"))
    return found


def main():
    # The order of sums, and so the last bits, depend on the number of threads.
    torch.set_num_threads(1)
    recorded = {}
    for name, workload in (("w2_deep_mlp", w2), ("w3_cnn", w3), ("w4_lstm", w4), ("w5_gpt", w5)):
        recorded[name] = {kind: losses(workload, getattr(torch, kind)) for kind in ("float32", "float64")}
        print(name, recorded[name]["float32"][-1], file=sys.stderr)
    json.dump(recorded, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
