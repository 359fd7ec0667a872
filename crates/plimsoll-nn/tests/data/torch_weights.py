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


if __name__ == "__main__":
    main()
