"""Looking without reading, and reading everything."""

import io
import json
from pathlib import Path

import pytest
import torch

import s4async
from s4async.errors import CheckpointNotFoundError, CorruptionError
from s4async.storage.memory import MemoryStorage
from s4async.storage.wrappers import Traced
from tests.vectors.states import bell


def state() -> dict[str, object]:
    master = bell(200_000)
    weight = torch.nn.Parameter(bell(5000, seed=2))
    return {
        "model": master.bfloat16(),
        "master": master,
        "tied": {"a": weight, "b": weight},
        "biases": [bell(10, seed=i) for i in range(20)],
        "zeros": torch.zeros(10_000),
        "lr": 0.1,
    }


def test_entries_say_what_each_leaf_is_and_costs(tmp_path: Path) -> None:
    info = s4async.save(state(), tmp_path / "x.s4", metadata={"run": "a", "loss": [1.5]})
    seen = s4async.inspect(tmp_path / "x.s4")
    by_name = {entry.name: entry for entry in seen.entries}
    assert list(by_name)[:4] == ["model", "master", "tied/a", "tied/b"]
    assert (seen.raw_bytes, seen.stored_bytes) == (info.raw_bytes, info.stored_bytes)
    assert sum(entry.raw_bytes for entry in seen.entries) == seen.raw_bytes
    assert 0 <= seen.stored_bytes - sum(entry.stored_bytes for entry in seen.entries) < 4000
    assert (by_name["model"].codecs, by_name["model"].stored_bytes) == ("derived", 0)
    assert by_name["master"].codecs.startswith("zstd")
    assert by_name["master"].shape == (200_000,) and by_name["master"].dtype == "float32"
    assert by_name["tied/a"].kind == "parameter"
    assert by_name["tied/a"].raw_bytes == 20_000 and by_name["tied/b"].raw_bytes == 0
    assert by_name["zeros"].codecs == "constant constant constant constant"
    assert by_name["lr"].dtype == "" and by_name["lr"].raw_bytes == 0
    assert seen.metadata == {"run": "a", "loss": [1.5]}
    assert seen.cpu_readable and seen.format_version == s4async.FORMAT_VERSION and seen.step is None
    assert json.dumps(seen.info)


def test_inspecting_reads_no_frame() -> None:
    storage = Traced(MemoryStorage())
    with s4async.Checkpointer(storage) as store:
        saved = store.save(state(), step=5)
        storage.calls.clear()
        assert store.inspect().step == 5
        assert storage.nbytes("get_into") < 70_000 + 2000 < saved.stored_bytes


def test_verifying_reads_every_byte_of_the_frames() -> None:
    storage = Traced(MemoryStorage())
    with s4async.Checkpointer(storage) as store:
        saved = store.save(state(), step=5)
        storage.calls.clear()
        assert store.verify().step == 5
        assert storage.nbytes("get_into") >= saved.stored_bytes


def test_an_empty_state_can_be_looked_at() -> None:
    file = io.BytesIO()
    s4async.save({}, file)
    file.seek(0)
    seen = s4async.inspect(file)
    assert (seen.raw_bytes, seen.frames) == (0, 0)


def test_what_is_broken_is_named(tmp_path: Path) -> None:
    s4async.save(state(), tmp_path / "x.s4")
    data = bytearray((tmp_path / "x.s4").read_bytes())
    data[200] ^= 4
    (tmp_path / "x.s4").write_bytes(data)
    with pytest.raises(CorruptionError, match=r"x\.s4: frame \d+ .*checksum"):
        s4async.verify(tmp_path / "x.s4")
    s4async.inspect(tmp_path / "x.s4")
    with pytest.raises(CheckpointNotFoundError):
        s4async.inspect(tmp_path / "y.s4")
