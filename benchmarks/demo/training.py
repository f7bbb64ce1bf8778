"""One training run: bfloat16 model, float32 masters, AdamW, a learning-rate schedule, two random generators.

``state`` is everything that the run depends on, and ``restore`` the way back; between them stands a checkpoint. A run
that is restored takes the same steps as one that was never stopped: seeds, thread count and algorithms are fixed.
"""

from __future__ import annotations

import math
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from benchmarks.demo.model import CONTEXT, Transformer, corpus

__all__ = ["State", "Training"]

SEED = 20_260
BATCH = 16
CORPUS_NBYTES = 2 << 20
LEARNING_RATE, WARM_UP = 2e-3, 10


class State(TypedDict):
    """Everything that the next step depends on."""

    step: int
    model: dict[str, Tensor]  # bfloat16
    masters: dict[str, Tensor]  # float32
    optimizer: dict[str, Any]  # float32 moments, step counts, hyperparameters
    schedule: dict[str, Any]
    generators: dict[str, Tensor]


class Training:
    """A run of ``steps`` steps. ``done`` counts those taken."""

    def __init__(self, steps: int, compute: torch.dtype, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(SEED)
        self.done = 0
        self.text = corpus(CORPUS_NBYTES)
        self.order = torch.Generator().manual_seed(SEED)  # which pieces of text come next
        self.model = Transformer(compute)
        self.masters = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.model.to(torch.bfloat16)
        matrices = [m for m in self.masters.values() if m.ndim > 1]
        vectors = [m for m in self.masters.values() if m.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95), fused=True)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: min((step + 1) / WARM_UP, 0.55 + 0.45 * math.cos(math.pi * min(1.0, step / steps))),
        )

    def step(self) -> float:
        """Take one step; returns its loss (nats per byte)."""
        ids, targets = self._batch()
        loss = nn.functional.cross_entropy(self.model(ids).flatten(0, 1).float(), targets.flatten())
        loss.backward()
        for name, parameter in self.model.named_parameters():
            self.masters[name].grad = parameter.grad.float() if parameter.grad is not None else None
            parameter.grad = None
        nn.utils.clip_grad_norm_(self.masters.values(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.masters[name])
        self.done += 1
        return loss.item()

    def state(self) -> State:
        """The live state: tensors are the run's own, not copies."""
        return {
            "step": self.done,
            "model": self.model.state_dict(),
            "masters": self.masters,
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "generators": {"order": self.order.get_state(), "dropout": torch.get_rng_state()},
        }

    def restore(self, state: State) -> None:
        """Continue where ``state`` was taken."""
        self.model.load_state_dict(state["model"])
        for name, master in self.masters.items():
            master.copy_(state["masters"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.order.set_state(state["generators"]["order"])
        torch.set_rng_state(state["generators"]["dropout"])
        self.done = state["step"]

    def _batch(self) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(self.text) - CONTEXT, (BATCH, 1), generator=self.order)
        pieces = self.text[starts + torch.arange(CONTEXT + 1)].long()
        return pieces[:, :-1], pieces[:, 1:]
