"""Loading elsewhere: other devices, fewer of them, other models."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

import s4async
from s4async.errors import DeviceError, OperationalError, StateMismatchError, UnsafeLoadError, UsageError
from tests.cases.harness import assert_same, child, edit_manifest, full, moved, noise
from tests.state import classes_of_tests

State = dict[str, Any]

# ---- another device, fewer devices, none (pytorch/pytorch#15848, CAREamics/careamics#145, mlcommons/GaNDLF#249)


def _state(device: str = "cpu") -> State:
    return {
        "w": torch.arange(6.0, device=device).reshape(2, 3).t(),
        "p": torch.nn.Parameter(torch.ones(3, device=device)),
        "rng": torch.get_rng_state(),
        "n": 3,
    }


def _callables() -> dict[str, Any]:
    return {
        "text": "cpu",
        "device": torch.device("cpu"),
        "mapping": {"cuda:7": "cpu"},
        "function": lambda storage, location: storage,
        "function of cpu": lambda storage, location: storage.cpu() if location.startswith("cuda") else None,
    }


@pytest.mark.parametrize("form", _callables())
def test_a_checkpoint_of_another_machine_is_mapped(tmp_path: Path, form: str) -> None:
    """Saved on the eighth card of a big machine, loaded on a laptop, with every form of ``map_location``."""
    s4async.save(_state(), tmp_path / "here.s4")
    place = edit_manifest(tmp_path / "here.s4", moved("cuda:7"), tmp_path / "there.s4")
    loaded = s4async.load(place, map_location=_callables()[form])
    assert_same(_state() | {"rng": loaded["rng"]}, loaded)
    assert loaded["w"].stride() == (1, 3) and loaded["p"].requires_grad
    torch.set_rng_state(loaded["rng"])


@pytest.mark.parametrize("location", ["cuda:7", "cuda:99", "xpu:0", "no such device"])
def test_a_device_that_is_not_here_is_told_with_the_remedy(tmp_path: Path, location: str) -> None:
    """Elsewhere: "attempting to deserialize object on a CUDA device" out of the middle of torch, or an invalid ordinal.
    Right: a typed error that names the device and ``map_location``."""
    s4async.save(_state(), tmp_path / "here.s4")
    place = edit_manifest(tmp_path / "here.s4", moved(location), tmp_path / "there.s4")
    for load in (s4async.load, lambda f: s4async.load_async(f).result(60)):
        with pytest.raises(DeviceError, match="map_location") as caught:
            load(place)
        assert location in str(caught.value)
    s4async.verify(place)
    target = _state() | {"w": torch.zeros(3, 2)}
    s4async.load(place, into=target)  # the caller's tensors say where: nothing to map
    assert torch.equal(target["w"], _state()["w"])


def test_a_map_to_nowhere_is_the_callers_error(tmp_path: Path) -> None:
    """A ``map_location`` that names a device that does not exist says so, and so does one that returns nonsense."""
    s4async.save(_state(), tmp_path / "ck.s4")
    for wrong in ("cuda:99", {"cpu": "cuda:99"}, lambda storage, location: torch.zeros(1)):
        with pytest.raises((OperationalError, UsageError), match="map_location"):
            s4async.load(tmp_path / "ck.s4", map_location=wrong)  # type: ignore[arg-type]


@pytest.mark.gpu
def test_a_state_goes_back_to_its_gpu_or_where_it_is_mapped(tmp_path: Path) -> None:
    """By default back where it was; host tensors stay on the host; and the same values without any GPU."""
    last, place = f"cuda:{torch.cuda.device_count() - 1}", tmp_path / "ck.s4"
    s4async.save(_state(last), place)
    loaded = s4async.load(place)
    assert str(loaded["w"].device) == str(loaded["p"].device) == last and loaded["rng"].device.type == "cpu"
    assert_same(_state(last) | {"rng": loaded["rng"]}, loaded)
    for target in ("cpu", torch.device("cpu"), {last: "cpu"}):
        assert s4async.load(place, map_location=target)["w"].device.type == "cpu"
    assert s4async.load(place, map_location="cuda:0")["w"].device == torch.device("cuda:0")
    done = child(
        f"""
        loaded = s4async.load({str(place)!r}, map_location="cpu")
        assert loaded["w"].tolist() == [[0, 3], [1, 4], [2, 5]]
        try:
            s4async.load({str(place)!r})
        except S4AsyncError as error:
            assert "map_location" in str(error), error
        else:
            raise SystemExit("loaded to a device that is not there")
        """,
        CUDA_VISIBLE_DEVICES="",
    )
    assert (done.returncode, done.stderr) == (0, "")


# ---- missing and unexpected keys (pytorch/pytorch#126881, ScrollPrize/villa#1475, pytorch/executorch#9660)


def test_a_model_that_has_changed_is_refused_whole(tmp_path: Path) -> None:
    """Elsewhere keys on one side only are skipped without a word and the rest keeps its random start values. Right:
    both lists in one message, nothing changed; relaxed, it says what it skipped."""
    place = tmp_path / "ck.s4"
    s4async.save({"a": full(2, 1), "b": full(2, 2), "old": full(2, 3)}, place)
    target = {"a": full(2, 0), "b": full(2, 0), "new": full(2, 0)}
    with pytest.raises(StateMismatchError, match="new") as caught:
        s4async.load(place, into=target)
    assert "old" in str(caught.value)
    assert (caught.value.missing, caught.value.unexpected) == (("new",), ("old",))
    assert all(tensor.eq(0).all() for tensor in target.values())
    kept = dict(target)
    report = s4async.load(place, into=target, strict=False)
    assert (list(report.missing), list(report.unexpected), list(report.mismatched)) == (["new"], ["old"], [])
    assert [tensor[0].item() for tensor in target.values()] == [1, 2, 0]
    assert all(target[name] is kept[name] for name in kept)


@pytest.mark.parametrize("background", [False, True])
def test_shapes_and_dtypes_that_differ_are_listed(tmp_path: Path, background: bool) -> None:
    """Broadcasting or casting into a tensor of another shape or dtype is silently another checkpoint."""
    place = tmp_path / "ck.s4"
    s4async.save({"shape": full(4, 1), "dtype": full(4, 2), "rank": full(1, 3), "good": full(4, 4)}, place)

    def load(target: State, strict: bool = True) -> Any:
        if background:
            return s4async.load_async(place, into=target, strict=strict).result(60)
        return s4async.load(place, into=target, strict=strict)

    def make() -> State:
        return {"shape": full(8, 0), "dtype": full(4, 0).half(), "rank": torch.tensor(0.0), "good": full(4, 0)}

    target = make()
    with pytest.raises(StateMismatchError) as caught:
        load(target)
    assert sorted(name.split(":")[0] for name in caught.value.mismatched) == ["dtype", "rank", "shape"]
    assert all(part in str(caught.value) for part in ("shape", "dtype", "rank", "float16"))
    assert_same(make(), target)
    report = load(target, strict=False)
    assert len(report.mismatched) == 3 and target["good"].eq(4).all()
    assert_same(make() | {"good": full(4, 4)}, target)


def test_nested_places_are_named_by_their_path(tmp_path: Path) -> None:
    """A list of paths, not of last names: which of the forty ``weight`` is missing?"""
    place = tmp_path / "ck.s4"
    s4async.save({"m": {"l": [{"w": full(2, 1)}, {"w": full(2, 2)}]}, "o": {0: full(1, 1)}}, place)
    target = {"m": {"l": [{"w": full(2, 0)}, {"v": full(2, 0)}]}, "o": {1: full(1, 0)}}
    with pytest.raises(StateMismatchError) as caught:
        s4async.load(place, into=target)
    assert sorted(caught.value.missing) == ["m/l/1/v", "o/1"]
    assert sorted(caught.value.unexpected) == ["m/l/1/w", "o/0"]


def test_modules_are_strict_about_every_entry(tmp_path: Path) -> None:
    """A module with a bias and a checkpoint without one, a renamed layer, a buffer that came later."""
    place = tmp_path / "ck.s4"
    s4async.save(torch.nn.Linear(2, 2, bias=False).state_dict(), place)
    model = torch.nn.Linear(2, 2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(StateMismatchError, match="bias"):
        s4async.load(place, into=model)
    assert_same(before, dict(model.state_dict()))
    s4async.save(torch.nn.Sequential(torch.nn.Linear(2, 2)), place)
    renamed = torch.nn.Sequential()
    renamed.add_module("first", torch.nn.Linear(2, 2))
    with pytest.raises(StateMismatchError) as caught:
        s4async.load(place, into=renamed)
    assert sorted(caught.value.missing) == ["first.bias", "first.weight"]
    assert sorted(caught.value.unexpected) == ["0.bias", "0.weight"]


def test_plain_values_are_restored_too(tmp_path: Path) -> None:
    """Elsewhere tensors are filled and the epoch and the learning rate quietly stay what they were."""
    place = tmp_path / "ck.s4"
    s4async.save({"epoch": 20, "lr": 0.5, "none": None, "hist": [1, {"k": "v"}], "w": full(2, 1)}, place)
    target: State = {"epoch": 0, "lr": 0.0, "none": None, "hist": [0, {"k": ""}], "w": full(2, 0)}
    report = s4async.load(place, into=target)
    assert not report.missing and not report.unexpected
    assert_same({"epoch": 20, "lr": 0.5, "none": None, "hist": [1, {"k": "v"}], "w": full(2, 1)}, target)


def test_a_part_by_name_fills_that_part_only(tmp_path: Path) -> None:
    """``keys`` narrows what is loaded; what was not asked for is neither missing nor touched."""
    place = tmp_path / "ck.s4"
    s4async.save({"m": {"a": full(2, 1), "b": full(2, 2)}, "o": full(2, 3)}, place)
    assert_same({"m": {"a": full(2, 1), "b": full(2, 2)}}, s4async.load(place, keys="m/*"))
    assert_same({"m": {"b": full(2, 2)}}, s4async.load(place, keys=["m/b"]))
    target = {"m": {"a": full(2, 0), "b": full(2, 0)}, "o": full(2, 0)}
    s4async.load(place, keys="m/a", into=target)
    assert [target["m"]["a"][0], target["m"]["b"][0], target["o"][0]] == [1, 0, 0]  # type: ignore[index]
    assert_same({"o": full(2, 3)}, s4async.load(place, keys=iter(["o"])))
    with pytest.raises(UsageError, match="nope"):
        s4async.load(place, keys="nope")


def test_a_failed_read_changes_nothing_that_was_checked_before(tmp_path: Path) -> None:
    """Damage found while filling is an error, never a success with half the values."""
    place = tmp_path / "ck.s4"
    s4async.save({"a": noise(5000, 1), "b": noise(5000, 2)}, place)
    data = bytearray(place.read_bytes())
    data[len(data) // 2] ^= 1
    place.write_bytes(data)
    with pytest.raises(s4async.errors.IntegrityError):
        s4async.load(place, into={"a": full(5000, 0), "b": full(5000, 0)})


def test_a_class_that_is_not_loaded_is_told_before_anything_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load in place that fails halfway leaves a model that is neither old nor new. Right: told first."""
    file = io.BytesIO()
    s4async.save({"w": full(4, 1), "cfg": classes_of_tests.Config(2.0)}, file)
    file.seek(0)
    w = full(4, 0)
    monkeypatch.delattr(classes_of_tests, "Config")
    with pytest.raises(UnsafeLoadError, match="Config"):
        s4async.load(file, into={"w": w, "cfg": None})
    assert w.eq(0).all()


@pytest.mark.parametrize("keys", [5, [5], [b"w"]])
def test_keys_that_are_no_text_are_refused(keys: Any) -> None:
    """Right: a ``UsageError`` that says so, not a ``TypeError`` from deep inside."""
    file = io.BytesIO()
    s4async.save({"w": full(4, 1)}, file)
    file.seek(0)
    with pytest.raises(UsageError, match="as text"):
        s4async.load(file, keys=keys)
