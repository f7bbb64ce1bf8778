"""Classes that states in the tests hold, in a module of their own, as a training script has them."""

from __future__ import annotations

import enum
from collections import namedtuple
from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple

import torch

RAN: list[str] = []  # what ran that should not have


class Color(enum.Enum):
    RED = 1
    ALSO_RED = 1  # noqa: PIE796  # an alias
    GREEN = "g"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(enum.StrEnum):
    TRAIN = "train"


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    BOTH = READ | WRITE
    RUN = enum.auto()


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Outer:
    class Inner(enum.Enum):
        X = 1

    @dataclass
    class Config:
        lr: float = 0.1


@dataclass
class Config:
    lr: float
    layers: list[int] = field(default_factory=list)
    extra: Any = None
    seed: InitVar[int] = 0

    def __post_init__(self, seed: int) -> None:
        RAN.append("__post_init__")
        self.derived = self.lr * 2  # an attribute that is no field

    @property
    def twice(self) -> float:
        RAN.append("property")
        return self.lr * 2


@dataclass(frozen=True, slots=True)
class Frozen:
    name: str
    weight: Any = None


@dataclass(slots=True)
class SlottedChild(Config):
    more: int = 3


@dataclass
class Guarded:
    """A field whose setter is code."""

    value: int

    def __init__(self, value: int) -> None:
        self.value = value


Guarded.value = property(lambda self: 1, lambda self, value: RAN.append("setter"))  # type: ignore[assignment]


@dataclass
class Dying:
    value: int = 0

    def __del__(self) -> None:
        RAN.append("__del__")


@dataclass
class DictLike(dict):  # type: ignore[type-arg]
    value: int = 0


class Point(NamedTuple):
    x: Any
    y: Any = 0


Pair = namedtuple("Pair", "left right")  # the older kind


class Marked(torch.Tensor):
    """A plain subclass: data and attributes."""


class Slotted(torch.Tensor):
    __slots__ = ("hidden",)


class Wrapper(torch.Tensor):
    """Two tensors and a context, flattened as torch wants it."""

    a: torch.Tensor
    b: torch.Tensor
    note: Any

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor, note: Any) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(
            cls, a.shape, dtype=a.dtype, device=a.device, requires_grad=a.requires_grad
        )
        return made

    def __init__(self, a: torch.Tensor, b: torch.Tensor, note: Any) -> None:
        self.a, self.b, self.note = a, b, note

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["a", "b"], {"note": self.note}

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: Any, size: Any, stride: Any) -> Wrapper:
        return Wrapper(inner["a"], inner["b"], context["note"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten.detach.default:
            return Wrapper(args[0].a.detach(), args[0].b.detach(), args[0].note)
        raise NotImplementedError(f"{func} must not be needed")


class Opaque(torch.Tensor):
    """A wrapper that does not tell its parts."""

    @staticmethod
    def __new__(cls) -> Opaque:
        made: Opaque = torch.Tensor._make_wrapper_subclass(cls, (2, 3))
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError


class Counting:
    """An object with a state dict."""

    def __init__(self, n: int = 0) -> None:
        self.n = n
        self.weight = torch.full((3,), float(n))

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n, "weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n = state["n"]
        self.weight = state["weight"]
