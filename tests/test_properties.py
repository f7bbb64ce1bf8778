"""What holds for every state: it comes back bit for bit, and it never takes more than the documented room."""

import io
from collections.abc import Callable

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import s4async
from s4async.format.planes import DTYPES
from tests.cases.harness import assert_same
from tests.vectors.states import bell

OBJECT_NBYTES, LEAF_NBYTES, BLOB_NBYTES = 512, 256, 16  # FORMAT.md, "Never expands"
TORCH_DTYPES = [getattr(torch, name) for name in DTYPES if hasattr(torch, name) and not name.startswith(("q", "bits"))]
OPTIONS = s4async.Options(frame_bytes=16 << 10, chunk_bytes=4 << 10, small_bytes=4 << 10)

FILLS: list[Callable[[int], bytes]] = [
    lambda n: np.random.default_rng(n).bytes(n),
    bytes,
    lambda n: b"\x80" * n,
    lambda n: (b"\x00\x00\xc0\x7f\x01\x00\xa0\xff\x00\x00\x00\x80\x01\x00\x00\x00" * (n // 16 + 1))[
        :n
    ],  # NaNs, -0, denormal
    lambda n: (b"\0" * 4095 + b"\1") * (n // 4096) + bytes(n % 4096),
    lambda n: bell(n // 4 + 1, 0.02, n + 1).numpy().tobytes()[:n],
    lambda n: bell(n // 2 + 1, 0.02, n + 1).bfloat16().view(torch.uint8).numpy().tobytes()[:n],
    lambda n: bytes(i * i % 251 for i in range(n)),
]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(TORCH_DTYPES))
    count = draw(st.one_of(st.integers(0, 70), st.sampled_from([4096, 4097, 16384, 20001])))
    data = draw(st.sampled_from(FILLS))(count * dtype.itemsize)
    if dtype == torch.bool:
        data = bytes(byte & 1 for byte in data)
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8).clone() if data else torch.empty(0, dtype=torch.uint8)
    tensor = flat.view(dtype)
    if count and count % 2 == 0 and dtype != torch.float4_e2m1fn_x2 and draw(st.booleans()):  # torch cannot copy those
        tensor = tensor.reshape(2, -1).t()
    return tensor


STATES = st.dictionaries(st.text(min_size=1, max_size=8), tensors(), max_size=6)


@settings(max_examples=60)
@given(STATES)
def test_every_state_comes_back_bit_for_bit_in_bounded_room(state: dict[str, torch.Tensor]) -> None:
    file = io.BytesIO()
    s4async.save(state, file, options=OPTIONS)
    stored = len(file.getvalue())
    file.seek(0)
    assert_same(state, s4async.load(file))
    raw = sum(t.numel() * t.element_size() for t in state.values())
    names = sum(len(name.encode()) for name in state)
    frames = sum(t.numel() * t.element_size() // OPTIONS.frame_bytes + 1 for t in state.values())
    assert stored <= raw + OBJECT_NBYTES + LEAF_NBYTES * len(state) + names + 8 * BLOB_NBYTES * frames


@given(st.integers(0, 300))
def test_many_small_leaves_stay_within_the_header_of_each(count: int) -> None:
    state = {f"layer.{i}.bias": torch.full((3,), float(i)) for i in range(count)}
    file = io.BytesIO()
    s4async.save(state, file)
    names = sum(len(name) for name in state)
    assert len(file.getvalue()) <= 12 * count + names + OBJECT_NBYTES + LEAF_NBYTES * count


def test_equal_states_give_equal_frames() -> None:
    state = {"w": bell(100_000), "b": bell(100_000).bfloat16()}
    files = [io.BytesIO(), io.BytesIO()]
    for file in files:
        s4async.save(state, file)
    first, second = (file.getvalue() for file in files)
    assert first[32 : len(first) // 2] == second[32 : len(second) // 2]
