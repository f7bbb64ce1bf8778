"""Damage is refused, wherever it is and whatever it is."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import s4async
from s4async.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    IntegrityError,
)
from tests.cases.harness import all_steps, assert_same, full, noise

# ---- damage (safetensors/safetensors#220, pytorch/pytorch#126952, #28858, pytorch/torchtitan#4011)

Trick = Callable[[bytes], bytes]


def _flip(data: bytes, at: int, mask: int = 0x10) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def _tricks() -> dict[str, Trick]:
    tricks: dict[str, Trick] = {
        f"flip at {place:.0%}": lambda b, f=place: _flip(b, int(f * (len(b) - 1)))  # type: ignore[misc]
        for place in (0, 0.1, 0.37, 0.5, 0.63, 0.9, 1)
    }
    tricks |= {
        "one byte short": lambda b: b[:-1],
        "half": lambda b: b[: len(b) // 2],
        "empty": lambda b: b"",
        "one byte long": lambda b: b + b"\0",
        "doubled": lambda b: b + b,
        "zeros": lambda b: bytes(len(b)),
        "zeroed tail": lambda b: b[: len(b) // 2] + bytes(len(b) - len(b) // 2),
        "shifted": lambda b: b[1:] + b[:1],
        "hole": lambda b: b[: len(b) // 3] + bytes(4096) + b[len(b) // 3 + 4096 :],
        "text mode": lambda b: b.replace(b"\n", b"\r\n"),
        "random": lambda b: random.Random(7).randbytes(len(b)),
    }
    return tricks


def _damaged_state() -> dict[str, Any]:
    return {
        "w": noise(300_000),
        "i": torch.arange(50_000),
        "m": {"step": 7, "lr": 0.1, "text": "x" * 300},
        "b": noise(4000).bfloat16(),
        "zeros": full(3000, 0),
        "n": np.arange(100),
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One good object."""
    place = tmp_path_factory.mktemp("whole") / "ck.s4"
    s4async.save(_damaged_state(), place)
    return place


@pytest.mark.parametrize("trick", _tricks())
def test_a_damaged_object_is_refused(whole: Path, tmp_path: Path, trick: str) -> None:
    """Elsewhere damage loads without a word and shows days later in the metrics (``torch.load`` does not check the zip
    CRC, safetensors has none). Right: an ``IntegrityError`` from ``load`` and ``verify``, and an untouched ``into``."""
    place = tmp_path / "damaged.s4"
    place.write_bytes(_tricks()[trick](whole.read_bytes()))
    for call in (s4async.load, s4async.verify, lambda f: s4async.load(f, map_location="cpu")):
        with pytest.raises(IntegrityError, match=r"damaged\.s4"):
            call(place)


def test_every_flipped_byte_and_every_truncation_is_found(tmp_path: Path) -> None:
    """The whole truth about a small object: no byte of it can change, and it cannot end anywhere else."""
    state = {"w": noise(30), "c": full(5, 1), "i": torch.arange(9), "m": {"step": 7}, "h": noise(40).half()}
    buffer = io.BytesIO()
    s4async.save(state, buffer)
    data = buffer.getvalue()
    for at in range(len(data)):
        flipped = _flip(data, at, 1 << at % 8)
        for call, damaged in ((s4async.verify, flipped), (s4async.load, flipped), (s4async.load, data[:at])):
            with pytest.raises(IntegrityError):
                call(io.BytesIO(damaged))


def test_a_removed_object_is_not_found(tmp_path: Path) -> None:
    """Nothing there: its own error, naming the path, and not one about damage."""
    for call in (s4async.load, s4async.verify, s4async.inspect):
        with pytest.raises(CheckpointNotFoundError, match=r"gone\.s4"):
            call(tmp_path / "gone.s4")


def test_damage_in_a_store_is_found_wherever_it_is(tmp_path: Path) -> None:
    """Every file of a store, with every kind of damage: a typed error, or exactly the right state; ``verify`` agrees,
    and the other steps are not affected."""
    store = tmp_path / "store"
    for step in (1, 2):
        s4async.save_checkpoint({"w": noise(3000, step), "n": step}, store, step=step)
    objects = sorted(p for p in store.rglob("*") if p.is_file() and f"{2:020d}" in p.name)
    assert len(objects) == 2
    for path in objects:
        good = path.read_bytes()
        for _, trick in [*_tricks().items(), ("removed", None)]:
            if trick is None:
                path.unlink()
            elif trick(good) == good:  # no line ends in it
                continue
            else:
                path.write_bytes(trick(good))
            for call in (s4async.load, s4async.verify):
                if trick is None and path.suffix == ".json":
                    assert all_steps(store) == [1]  # without its record a step does not exist
                else:
                    with pytest.raises(IntegrityError, match="store"):
                        call(store)
            assert_same({"w": noise(3000, 1), "n": 1}, s4async.load_checkpoint(store, 1))
            path.write_bytes(good)
            s4async.verify(store)


def test_objects_that_are_swapped_are_told_apart(tmp_path: Path) -> None:
    """Two objects of one shape, each valid in itself, exchanged between steps or stores: the size or the uuid tells."""
    for name in ("a", "b"):
        for step in (1, 2):
            s4async.save_checkpoint({"w": full(3000, step), "n": step}, tmp_path / name, step=step)
    a1, a2 = sorted((tmp_path / "a" / "data").iterdir())
    b1, _ = sorted((tmp_path / "b" / "data").iterdir())
    original = a1.read_bytes()
    for other in (a2, b1):
        a1.write_bytes(other.read_bytes())
        with pytest.raises(CorruptionError, match="uuid|the commit record says"):
            s4async.load_checkpoint(tmp_path / "a", 1)
    a1.write_bytes(original)
    r1, r2 = sorted((tmp_path / "a" / "steps").iterdir())
    r2.write_bytes(r1.read_bytes())
    with pytest.raises(IntegrityError, match="step 2"):
        s4async.load_checkpoint(tmp_path / "a", 2)
    assert s4async.load_checkpoint(tmp_path / "a", 1)["n"] == 1


def test_frames_that_are_swapped_inside_an_object_are_found(tmp_path: Path) -> None:
    """Two stored pieces of the same size exchanged inside one object."""
    place = tmp_path / "ck.s4"
    random_bytes = [np.frombuffer(random.Random(i).randbytes(600_000), np.uint8).copy() for i in range(2)]
    s4async.save({"a": random_bytes[0], "b": random_bytes[1]}, place)
    data = place.read_bytes()
    at = [data.index(piece.tobytes()) for piece in random_bytes]
    swapped = bytearray(data)
    for target, piece in zip(at, reversed(random_bytes), strict=True):
        swapped[target : target + piece.nbytes] = piece.tobytes()
    place.write_bytes(swapped)
    for call in (s4async.load, s4async.verify):
        with pytest.raises(CorruptionError):
            call(place)


def _foreign(folder: Path) -> dict[str, Path]:
    torch.save({"w": torch.ones(3)}, folder / "torch.pt")
    torch.save({"w": torch.ones(3)}, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    np.savez(folder / "numpy.npz", w=np.ones(3))
    np.save(folder / "numpy.npy", np.ones(3))
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (folder / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    (folder / "x.json").write_text('{"w": 1}')
    (folder / "zeros.bin").write_bytes(bytes(10_000))
    (folder / "magic.bin").write_bytes(b"\x89S4A\r\n\x1a\n")
    return {path.name: path for path in folder.iterdir()}


def test_foreign_files_are_refused_by_what_they_are(tmp_path: Path) -> None:
    """People hand in the wrong file. The message says what it is not, and nothing of it is executed."""
    for name, path in _foreign(tmp_path).items():
        for call in (s4async.load, s4async.verify, s4async.inspect):
            with pytest.raises(IntegrityError, match=name.replace(".", r"\.")):
                call(path)
    with pytest.raises(IntegrityError, match=r"torch\.load"):
        s4async.load(tmp_path / "torch.pt")
