"""The model and its text: a causal transformer over the bytes of Python's own standard library.

Parameters are bfloat16. Products run in bfloat16 where the processor is quick at that, else the same values are widened
to float32 first (``compute``); either way equal inputs give equal bits on one machine with one number of threads.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["CONTEXT", "Transformer", "corpus"]

WIDTH, LAYERS, HEADS, CONTEXT = 256, 8, 4, 64  # 6.5 million parameters
VOCABULARY = 256  # bytes; most of those above 126 never occur, so their rows stay as they were, as rare words do
DROPOUT = 0.1  # so that the state of the random generator matters


def corpus(nbytes: int) -> Tensor:
    """The first ``nbytes`` of the standard library's sources, in order of their paths, as a ``uint8`` tensor."""
    root = Path(sysconfig.get_paths()["stdlib"])
    text = bytearray()
    for path in sorted(root.rglob("*.py")):
        if {"site-packages", "dist-packages", "test"} & set(path.relative_to(root).parts):
            continue
        text += path.read_bytes()
        if len(text) >= nbytes:
            break
    return torch.frombuffer(text[:nbytes], dtype=torch.uint8)


class Linear(nn.Linear):
    """``nn.Linear`` in the precision of its input, whatever that of its parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


class Norm(nn.LayerNorm):
    """``nn.LayerNorm`` in the precision of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


class Layer(nn.Module):
    """Attention and a two-layer perceptron, each after a norm and beside a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = Norm(WIDTH), Norm(WIDTH)
        self.query_key_value, self.attended = Linear(WIDTH, 3 * WIDTH), Linear(WIDTH, WIDTH)
        self.widen, self.narrow = Linear(WIDTH, 4 * WIDTH), Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.query_key_value(self.norm_attention(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + functional.dropout(self.attended(seen.transpose(1, 2).flatten(2)), DROPOUT, self.training)
        grown = functional.gelu(self.widen(self.norm_mlp(x)))
        return x + functional.dropout(self.narrow(grown), DROPOUT, self.training)


class Transformer(nn.Module):
    """Next-byte prediction: token ids ``(batch, CONTEXT)`` -> logits ``(batch, CONTEXT, VOCABULARY)``."""

    def __init__(self, compute: torch.dtype) -> None:
        super().__init__()
        self.compute = compute
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = Norm(WIDTH), Linear(WIDTH, VOCABULARY)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = (self.tokens(ids) + self.places.weight[: ids.shape[1]]).to(self.compute)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]
