"""The functions: places of every kind, and that a part of a checkpoint costs a part of the reads."""

import io
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import s4async
from s4async.errors import CheckpointNotFoundError, DeviceError, OptionsError, StorageError, UsageError
from s4async.storage.memory import MemoryStorage
from s4async.storage.wrappers import Traced
from tests.cases.harness import assert_same, noise
from tests.vectors.states import bell

STATE: dict[str, Any] = {"w": torch.arange(5000.0), "step": 3}


def test_paths_urls_and_path_objects_are_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "a b" / "Größe%20.s4"
    for form in (str(place), place, place.as_uri(), "a b/Größe%20.s4"):
        s4async.save(STATE, form)
        assert_same(STATE, s4async.load(place))
        assert_same(STATE, s4async.load(form))
        place.unlink()


def test_a_relative_path_means_the_folder_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    handle = s4async.save_async(STATE, "x.s4")
    monkeypatch.chdir(tmp_path / "other")
    handle.result()
    assert (tmp_path / "x.s4").exists()


def test_open_files_are_written_and_read_where_they_stand() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"before")
        s4async.save(STATE, file)
        file.seek(6)
        assert_same(STATE, s4async.load(file))
    buffer = io.BytesIO()
    assert s4async.save_async(STATE, buffer).result() is not None
    buffer.seek(0)
    assert_same(STATE, s4async.load_async(buffer).result())


@pytest.mark.parametrize("place", [None, 5, ["x"], "", io.StringIO()])
def test_what_is_no_place_is_refused(place: Any) -> None:
    for call in (lambda: s4async.save(STATE, place), lambda: s4async.load(place), lambda: s4async.verify(place)):
        with pytest.raises((UsageError, StorageError)):
            call()


def test_a_store_is_not_a_file_and_a_file_is_not_a_store(tmp_path: Path) -> None:
    s4async.save_checkpoint(STATE, tmp_path / "store", step=1)
    with pytest.raises(StorageError, match="store"):
        s4async.save(STATE, tmp_path / "store")
    s4async.save(STATE, tmp_path / "x.s4")
    with pytest.raises(StorageError, match=r"x\.s4"):
        s4async.save_checkpoint(STATE, tmp_path / "x.s4", step=1)
    with pytest.raises(CheckpointNotFoundError):
        s4async.load_checkpoint(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists(), "a load makes no folder"


def test_the_default_store_counts_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("S4ASYNC_URL", raising=False)
    infos = [s4async.save_async({"n": n}).result() for n in range(3)]
    assert [info.step for info in infos if info] == [0, 1, 2]
    assert s4async.load("s4async-checkpoints") == {"n": 2}
    monkeypatch.setenv("S4ASYNC_URL", "elsewhere")
    s4async.save_async({"n": 7}).result()
    assert s4async.load("elsewhere") == {"n": 7}


def test_memory_urls_hold_objects_and_stores() -> None:
    s4async.save(STATE, "memory://test-api/x.s4")
    assert_same(STATE, s4async.load("memory://test-api/x.s4"))
    s4async.save_checkpoint({"n": 1}, "memory://test-api/store", step=4)
    assert s4async.load("memory://test-api/store") == {"n": 1}


def test_a_part_costs_its_bytes(tmp_path: Path) -> None:
    storage = Traced(MemoryStorage())
    with s4async.Checkpointer(storage) as store:
        state = {"big": noise(2_000_000), "small": {"a": noise(50_000, 1), "b": noise(10, 2)}, "n": 5}
        store.save(state, step=1)
        for keys, least, most in (("small/a", 150_000, 300_000), ("small/*", 150_000, 300_000), ("n", 0, 80_000)):
            storage.calls.clear()
            part = store.load(keys=keys)
            assert least < storage.nbytes("get_into") < most, keys
            assert "big" not in part
        assert_same({"small": {"b": state["small"]["b"]}}, store.load(keys=["small/b"]))  # type: ignore[index]


def test_a_derived_copy_is_read_without_its_source_being_wanted() -> None:
    storage = Traced(MemoryStorage())
    master = bell(3_000_000)
    with s4async.Checkpointer(storage) as store:
        store.save({"model": master.bfloat16(), "master": master, "other": noise(3_000_000)}, step=1)
        storage.calls.clear()
        part = store.load(keys="model")
        assert_same({"model": master.bfloat16()}, part)
        assert storage.nbytes("get_into") < 12_000_000  # the master's, not the other's


def test_only_what_fits_into_is_read() -> None:
    storage = Traced(MemoryStorage())
    with s4async.Checkpointer(storage) as store:
        store.save({"w": noise(20_000), "optimizer": noise(3_000_000)}, step=1)
        storage.calls.clear()
        w = torch.zeros(20_000)
        report = store.load(into={"w": w}, strict=False)
        assert report.unexpected == ("optimizer",)
        assert_same(noise(20_000), w)
        assert storage.nbytes("get_into") < 400_000


def test_a_wrong_rule_or_option_is_refused_before_anything() -> None:
    with pytest.raises(OptionsError, match="later"):
        s4async.save_async(STATE, io.BytesIO(), on_overlap="later")
    with pytest.raises(OptionsError, match="frame_bytes"):
        s4async.save(STATE, io.BytesIO(), options=s4async.Options(frame_bytes=1))
    with pytest.raises(OptionsError, match=r"s4async\.Options"):
        s4async.save(STATE, io.BytesIO(), options={"threads": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(("place", "kind"), [(5, UsageError), ("cuda:77", DeviceError), ("nonsense", DeviceError)])
def test_a_map_location_that_means_nothing_here_is_named(tmp_path: Path, place: Any, kind: type[Exception]) -> None:
    s4async.save(STATE, tmp_path / "x.s4")
    with pytest.raises(kind, match=f"map_location={place!r}"):
        s4async.load(tmp_path / "x.s4", map_location=place)


@pytest.mark.parametrize("metadata", [{"a": {1, 2}}, {"a": float("nan")}, [1], "text"])
def test_metadata_is_plain_json(metadata: Any) -> None:
    with pytest.raises(UsageError, match="JSON"):
        s4async.save(STATE, io.BytesIO(), metadata=metadata)
