"""Writes small PyTorch models with an input and PyTorch's output each, for `torch_weights.rs`.

    python crates/plimsoll-nn/tests/data/torch_weights.py

needs torch and safetensors. The files hold the models' own names and layouts, as `save_file(model.state_dict())` writes
them, and beside them `io.x` and `io.y`.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

HERE = Path(__file__).parent


def save(name, model, x, y, dtype=torch.float32):
    tensors = {key: value.detach() for key, value in model.state_dict().items()}
    tensors = {key: value.to(dtype) if value.is_floating_point() else value for key, value in tensors.items()}
    tensors |= {"io.x": x, "io.y": y.detach()}
    tensors = {key: value.contiguous().clone() for key, value in tensors.items()}
    save_file(tensors, HERE / f"torch_{name}.safetensors", metadata={"format": "pt"})


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 7), nn.Linear(7, 4), nn.Linear(4, 3, bias=False)])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(11, 8)
        self.ln = nn.LayerNorm(8)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, ids):
        x = self.wte(ids)
        n = self.ln(x)
        hidden = torch.triu(torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool), diagonal=1)
        return self.head(x + self.attn(n, n, n, attn_mask=hidden, need_weights=False)[0])


class Pictures(nn.Module):
    """Convolutions of 6x6 pictures, channels first; inputs are written channels last."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.gn = nn.GroupNorm(3, 3)
        self.fc = nn.Linear(3 * 12 * 12, 5)

    def forward(self, x):
        x = torch.relu(self.bn(self.conv(x)))
        return self.fc(self.gn(self.up(x)).flatten(1))


class Sequence(nn.Module):
    """A convolution and recurrent layers over sequences, features last."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3, padding=1)
        self.lstm = nn.LSTM(4, 5, num_layers=2, batch_first=True)
        self.gru = nn.GRU(5, 4, batch_first=True)
        self.rnn = nn.RNN(4, 3, batch_first=True)

    def forward(self, x):
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        return self.rnn(self.gru(self.lstm(x)[0])[0])[0]


def randomise(model):
    """Biases and norms that are not zeros and ones, so that a wrong order is seen."""
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.6, 0.6)
    return model.eval()


def main():
    torch.manual_seed(0)
    model = randomise(Perceptron())
    x = torch.randn(4, 5)
    save("mlp", model, x, model(x))
    narrow = randomise(Perceptron()).to(torch.bfloat16)
    save("mlp_bf16", narrow, x, narrow.float()(x), torch.bfloat16)
    model = randomise(Transformer())
    ids = torch.randint(0, 11, (3, 6))
    save("transformer", model, ids, model(ids))
    model = randomise(Pictures())
    model.bn.running_mean.uniform_(-0.5, 0.5)
    model.bn.running_var.uniform_(0.5, 1.5)
    x = torch.randn(2, 2, 6, 6)
    save("pictures", model, x.permute(0, 2, 3, 1), model(x))
    model = randomise(Sequence())
    x = torch.randn(2, 7, 3)
    save("sequence", model, x, model(x))


if __name__ == "__main__":
    main()
