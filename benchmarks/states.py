"""Training states to measure on: a small transformer really trained on the standard library's own sources.

Random tensors do not stand in for trained ones: their exponents are too alike, their second moments have the wrong
shape, no row of an embedding stays untouched. So a causal byte-level transformer learns to predict Python, and its
weights and AdamW moments are the state. One thread and fixed seeds make a run repeatable on one machine; a finished
state is kept in the caller's folder under a name that says all that it depends on.

Recipes: ``fp32`` (all float32), ``bf16`` (weights, gradients and moments bfloat16), ``mixed`` (bfloat16 model, float32
masters and moments). Keys are ``<kind>.<parameter>`` with the kinds model, master, exp_avg and exp_avg_sq.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call

__all__ = ["RECIPES", "Shape", "trained"]

RECIPES = ("fp32", "bf16", "mixed")


@dataclass(frozen=True)
class Shape:
    """Size of the model and of its training. The defaults take about a minute and give 6.6 million parameters, the
    largest tensors 4 MiB in float32."""

    width: int = 512
    layers: int = 2
    context: int = 128
    batch: int = 8
    steps: int = 120
    corpus_bytes: int = 4 << 20


class ByteModel(nn.Module):
    """Next-byte prediction: embeddings, pre-norm encoder layers under a causal mask, an untied head."""

    mask: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, shape.width)
        self.places = nn.Parameter(torch.zeros(shape.context, shape.width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                shape.width, max(1, shape.width // 64), 4 * shape.width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(shape.layers)
        )
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, 256, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(shape.context), persistent=False)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """``(batch, context)`` bytes -> ``(batch, context, 256)`` logits."""
        x = self.bytes(tokens) + self.places
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=True)
        logits: Tensor = self.head(self.norm(x))
        return logits


def trained(recipe: str, folder: Path, shape: Shape = Shape()) -> dict[str, Tensor]:
    """The state of this recipe, trained now or taken from ``folder``."""
    path = folder / f"{recipe}-{'-'.join(map(str, astuple(shape)))}-torch{torch.__version__}.pt"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        torch.save(_train(recipe, shape), partial)
        partial.replace(path)
    state: dict[str, Tensor] = torch.load(path, weights_only=True)
    return state


def _train(recipe: str, shape: Shape) -> dict[str, Tensor]:
    kept = torch.bfloat16 if recipe == "bf16" else torch.float32
    seen = torch.float32 if recipe == "fp32" else torch.bfloat16
    text = _corpus(shape.corpus_bytes)
    with _repeatable():
        model = ByteModel(shape)
        weights = {name: p.detach().to(kept).requires_grad_() for name, p in model.named_parameters()}
        optimizer = torch.optim.AdamW(weights.values(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
        for _ in range(shape.steps):
            starts = torch.randint(len(text) - shape.context, (shape.batch, 1))
            window = text[starts + torch.arange(shape.context + 1)]
            logits = functional_call(model, {n: w.to(seen).float() for n, w in weights.items()}, (window[:, :-1],))
            nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten()).backward()
            nn.utils.clip_grad_norm_(weights.values(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    state = {f"model.{name}": weight.detach().to(seen) for name, weight in weights.items()}
    if recipe == "mixed":
        state |= {f"master.{name}": weight.detach() for name, weight in weights.items()}
    for moment in ("exp_avg", "exp_avg_sq"):
        state |= {f"{moment}.{name}": optimizer.state[weight][moment] for name, weight in weights.items()}
    return state


def _corpus(nbytes: int) -> Tensor:
    """The first ``nbytes`` of the standard library's sources, in the order of their names."""
    found = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        found += path.read_bytes()
        if len(found) >= nbytes:
            break
    return torch.frombuffer(found[:nbytes], dtype=torch.uint8).long()


@contextmanager
def _repeatable() -> Iterator[None]:
    """One thread, a fixed seed; the caller's settings come back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(20)
            yield
    finally:
        torch.set_num_threads(threads)
