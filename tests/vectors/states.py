"""The states whose objects are kept as golden files: small, deterministic, one for each thing that FORMAT.md names.

Values come from integer arithmetic, not from a random generator, so that no library version can change them.
"""

import collections
import datetime
import math
import pathlib
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch

__all__ = ["STATES", "words"]


def words(count: int, dtype: torch.dtype = torch.int64, seed: int = 1) -> torch.Tensor:
    """``count`` pseudo-random elements of any dtype, by a multiplicative generator on the bytes."""
    nbytes = count * dtype.itemsize
    state, out = seed, bytearray()
    while len(out) < nbytes:
        state = state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        out += (state >> 33).to_bytes(4, "little")[:3]
    return torch.frombuffer(out[:nbytes], dtype=torch.uint8).clone().view(dtype)


def bell(count: int, scale: float = 0.02, seed: int = 1) -> torch.Tensor:
    """float32 like trained weights: sums of uniform integers, exact in any arithmetic."""
    parts = words(12 * count, torch.uint8, seed).to(torch.int64).reshape(12, count).sum(0) - 1530
    return (parts.double() * (scale / 256)).float()


def floats() -> dict[str, object]:
    master = bell(70_000)
    return {
        "model": master.bfloat16(),  # derived: no bytes
        "half": master.half(),  # derived
        "master": master,
        "exp_avg": bell(70_000, 1e-4, 2),
        "exp_avg_sq": bell(70_000, 1e-4, 3).square(),
        "bf16": bell(70_000, 0.02, 4).bfloat16(),
        "fp16": bell(70_000, 0.02, 5).half(),
        "fp64": bell(9_000, 0.02, 6).double() * math.pi,
        "complex64": torch.complex(bell(9_000, 1.0, 7), bell(9_000, 1.0, 8)),
    }


def noise_and_constants() -> dict[str, object]:
    return {
        "noise": words(20_000, torch.uint8),
        "zeros": torch.zeros(50_000),
        "ones": torch.ones(50_000, dtype=torch.bfloat16),
        "index": torch.arange(30_000),
        "mask": torch.arange(9_999) % 7 == 0,
        "empty": torch.empty(0, 5),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
    }


def every_dtype() -> dict[str, object]:
    names = """uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex32 complex64
        complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2"""
    return {name: words(77, getattr(torch, name), i + 1) for i, name in enumerate(names.split())}


def views_and_ties() -> dict[str, object]:
    big = bell(4096, seed=9)
    weight = bell(600, seed=10).reshape(20, 30)
    return {
        "slice": big[100:110],
        "step": big[::400],
        "t": weight.t(),
        "tied": {"embed": weight, "head": weight, "row": weight[2]},
        "expand": torch.tensor([7.0]).expand(300, 400),
        "conj": torch.complex(bell(10, 1.0, 11), bell(10, 1.0, 12)).conj(),
        "channels_last": bell(120, seed=13).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(bell(12, seed=14)),
    }


def plain_values() -> dict[object, object]:
    return {
        1: "int",
        "1": "str",
        "flags": {True: "bool", "True": "str"},
        (0, "a"): "tuple",
        1.5: b"bytes",
        "numbers": [0, -1, 1 << 200, 0.1, -0.0, math.inf, 1j, None],
        "containers": ({"a": ()}, [[]], {1, 2}, frozenset({3}), collections.OrderedDict(b=1, a=2)),
        "counter": collections.Counter({3: 1, 6: 2}),
        "torch": [torch.float8_e4m3fn, torch.Size([2, 3]), torch.device("cpu")],
        "more": [pathlib.PurePosixPath("a/b"), datetime.timedelta(seconds=1), Fraction(1, 3), range(3)],
        "numpy": [
            np.arange(6).reshape(2, 3),
            np.float32(0.1),
            np.array([(1, 2.5)], dtype=[("a", "<i2"), ("b", "<f8")]),
        ],
    }


STATES: dict[str, Callable[[], object]] = {
    "floats": floats,
    "noise_and_constants": noise_and_constants,
    "every_dtype": every_dtype,
    "views_and_ties": views_and_ties,
    "plain_values": plain_values,
    "empty": dict,
}
