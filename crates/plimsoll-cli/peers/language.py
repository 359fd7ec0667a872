"""The recipes `chars` and `gpt-nano` in PyTorch, on the same bytes: what loss on the held-out tenth they reach.

    python language.py gpt-nano --steps 500     # needs PyTorch
    python language.py chars --steps 500
    python language.py bigram                   # the entropy of a byte given the one before it, in nats

Windows follow one another without overlap and are shuffled; the first nine tenths are trained on.
"""
import argparse
import json
import math
import pathlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

TEXT = pathlib.Path(__file__).parent.parent / "data/austen.txt"


class Chars(nn.Module):
    """An embedding of bytes, one LSTM, a dense layer; one bias in the LSTM, as in Plimsoll."""

    window, batch, rate, decay, betas = 64, 32, 2e-3, 0.0, (0.9, 0.999)

    @staticmethod
    def schedule(step, steps):
        return 1.0

    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(256, 64), nn.LSTM(64, 256, batch_first=True), nn.Linear(256, 256)
        nn.init.uniform_(self.embed.weight, -0.05, 0.05)
        for weight in (self.lstm.weight_ih_l0, self.head.weight):
            nn.init.xavier_uniform_(weight)
        nn.init.orthogonal_(self.lstm.weight_hh_l0)
        for bias in (self.lstm.bias_ih_l0, self.lstm.bias_hh_l0, self.head.bias):
            nn.init.zeros_(bias)
        self.lstm.bias_ih_l0.data[256:512] = 1.0
        self.lstm.bias_hh_l0.requires_grad_(False)

    def forward(self, x):
        return self.head(self.lstm(self.embed(x))[0])


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.n1, self.n2, self.drop = heads, nn.LayerNorm(d), nn.LayerNorm(d), nn.Dropout(0.1)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(b, t, d)))
        return x + self.drop(self.down(F.gelu(self.up(self.n2(x)), approximate="tanh")))


class GptNano(nn.Module):
    window, batch, rate, decay, betas = 128, 8, 2e-3, 0.01, (0.9, 0.99)

    @staticmethod
    def schedule(step, steps):
        """Rises for a twentieth of the steps, then falls along half a cosine."""
        rising = steps // 20
        if step < rising:
            return (step + 1) / (rising + 1)
        return (1 + math.cos(math.pi * (step - rising) / max(steps - rising, 1))) / 2

    def __init__(self, layers=4, d=256, heads=4, vocab=1024):
        super().__init__()
        self.tok, self.pos, self.drop = nn.Embedding(vocab, d), nn.Embedding(self.window, d), nn.Dropout(0.1)
        self.blocks = nn.Sequential(*[Block(d, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.04 if isinstance(module, nn.Linear) else 1.0)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.drop(self.tok(x) + self.pos.weight))))


def windows(tokens, window):
    """Pairs of inputs and of what follows each of them."""
    n = (len(tokens) - 1) // window
    return tokens[: n * window].view(n, window), tokens[1 : n * window + 1].view(n, window)


def loss_of(model, x, y):
    logits = model(x)
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def train(model, steps, seed):
    text = torch.from_numpy(np.frombuffer(TEXT.read_bytes(), np.uint8).astype(np.int64))
    cut = len(text) - len(text) // 10
    (x, y), (held_x, held_y) = windows(text[:cut], model.window), windows(text[cut:], model.window)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=model.rate, weight_decay=model.decay,
                                  betas=model.betas)
    order, taken = torch.randperm(len(x)), 0
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: model.schedule(step, steps))
    for _ in range(steps):
        if taken + model.batch > len(x):
            order, taken = torch.randperm(len(x)), 0
        part = order[taken : taken + model.batch]
        taken += model.batch
        optimizer.zero_grad()
        loss = loss_of(model, x[part], y[part])
        loss.backward()
        optimizer.step()
        rates.step()
    model.eval()
    with torch.no_grad():
        parts = range(0, len(held_x), 64)
        sums = [loss_of(model, held_x[i : i + 64], held_y[i : i + 64]).item() * len(held_x[i : i + 64]) for i in parts]
    held_out = sum(sums) / len(held_x)
    print(json.dumps(dict(steps=steps, seed=seed, loss=loss.item(), held_out_loss=held_out)), flush=True)


def bigram():
    text = np.frombuffer(TEXT.read_bytes(), np.uint8).astype(np.int64)
    counts = np.zeros((256, 256))
    np.add.at(counts, (text[:-1], text[1:]), 1)
    joint, first = counts / counts.sum(), counts.sum(1) / counts.sum()
    entropy = lambda p: -(p[p > 0] * np.log(p[p > 0])).sum()
    print(json.dumps(dict(bigram_entropy=entropy(joint) - entropy(first))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["chars", "gpt-nano", "bigram"])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.what == "bigram":
        return bigram()
    torch.set_num_threads(2)
    torch.manual_seed(arguments.seed)
    train({"chars": Chars, "gpt-nano": GptNano}[arguments.what](), arguments.steps, arguments.seed)


if __name__ == "__main__":
    main()
