"""Reading back: names, descriptions, selection, what a build is given and what it refuses."""

from __future__ import annotations

import fnmatch
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from s4async.errors import FormatError, StateMismatchError, UnsafeLoadError, UsageError
from s4async.state import Skeleton, capture
from tests.state.classes_of_tests import Config, Frozen, Point
from tests.state.playback import assert_same, regions_of, round_trip, storages_of


def _skeleton(state: object, **options: bool) -> Skeleton:
    captured = capture(state, **options)
    return Skeleton.decode(captured.skeleton, regions_of(captured))


def _state() -> dict[str, Any]:
    return {
        "model": {"a.weight": torch.ones(2), "b.weight": torch.zeros(3)},
        "optim": {
            "state": {0: {"step": torch.tensor(1.0)}, 1: {"step": torch.tensor(2.0)}},
            "groups": [{"lr": 0.1}, 5],
        },
        "epoch": 3,
        "empty": {},
        "pair": Point(torch.ones(1), 2),
        "cfg": Config(0.5, [1], None),
    }


def test_names_are_paths_of_leaves_in_order() -> None:
    assert _skeleton(_state()).names == (
        *("model/a.weight", "model/b.weight", "optim/state/0/step", "optim/state/1/step", "optim/groups/0/lr"),
        *("optim/groups/1", "epoch", "empty", "pair/x", "pair/y"),
        *("cfg/lr", "cfg/layers/0", "cfg/extra", "cfg/derived"),
    )
    assert _skeleton(torch.ones(1)).names == ("",)
    assert _skeleton([]).names == ("",)
    assert _skeleton({1: 0, "1": 1, "a/b": 2, "a": {"b": 3}, "": {"": 4}, None: 5}).names == (
        *("1", "1", "a/b", "a/b", "", "None"),
    )


def test_leaves_say_what_they_are() -> None:
    state = {
        "w": torch.nn.Parameter(torch.ones(2, 3)),
        "t": torch.zeros(4, dtype=torch.bfloat16),
        "s": torch.eye(3).to_sparse(),
        "n": np.zeros((2, 2)),
        "r": np.zeros(2, [("a", "i4")]),
        "text": "x" * 5000,
        "i": 1,
        "f": 0.5,
        "none": None,
        "d": {},
        "set": {1},
    }
    leaves = {leaf.path: (leaf.kind, leaf.dtype, leaf.shape, leaf.region) for leaf in _skeleton(state).leaves}
    assert leaves == {
        "w": ("parameter", "float32", (2, 3), 0),
        "t": ("tensor", "bfloat16", (4,), 1),
        "s": ("sparse tensor", "float32", (3, 3), 2),
        "n": ("ndarray", "<f8", (2, 2), None),
        "r": ("ndarray", "structured", (2,), None),
        "text": ("str", None, None, 4),
        "i": ("int", None, None, None),
        "f": ("float", None, None, None),
        "none": ("NoneType", None, None, None),
        "d": ("dict", None, None, None),
        "set": ("set", None, None, None),
    }


def test_host_regions_hold_no_tensor() -> None:
    skeleton = _skeleton({"w": torch.ones(3), "a": np.zeros(999), "t": "x" * 5000, "s": torch.eye(2).to_sparse()})
    assert skeleton.region_indexes == {0, 1, 2, 3, 4} and skeleton.host_regions == {1, 2}


def test_selecting_by_name_glob_and_ancestor() -> None:
    state = _state()
    for keys in ("model", "model/*", "model*", ["model/a.weight", "model/b.*"], ("*.weight",)):
        assert_same({"model": state["model"]}, round_trip(state, keys))
    assert_same({"optim": {"state": {1: state["optim"]["state"][1]}}}, round_trip(state, "optim/state/1"))
    assert_same({"optim": {"state": state["optim"]["state"]}}, round_trip(state, "optim/*/step"))
    assert_same({"epoch": 3, "empty": {}}, round_trip(state, ["epoch", "empty"]))
    assert_same(state, round_trip(state, "*"))
    assert_same(state, round_trip(state, None))
    assert_same({}, round_trip(state, []))
    assert_same({}, round_trip(state, "nothing*"))
    assert_same(state["model"]["a.weight"], round_trip(state["model"]["a.weight"], "*"))


def test_positions_that_were_not_selected_are_none() -> None:
    state: dict[str, Any] = {
        "layers": [torch.ones(1), torch.zeros(2), {"k": 1, "l": 2}],
        "p": Point(1, torch.ones(2)),
        "f": Frozen("n", 1),
    }
    assert_same({"layers": [None, state["layers"][1], None]}, round_trip(state, "layers/1"))
    assert_same({"layers": [None, None, {"l": 2}]}, round_trip(state, "layers/2/l"))
    assert_same({"p": Point(1, None)}, round_trip(state, "p/x"))
    assert_same({"f": Frozen(None, 1)}, round_trip(state, "f/weight"))  # type: ignore[arg-type]
    assert _skeleton(state).select("layers/1").names == ("layers/1",)


def test_only_the_regions_of_the_selection_are_needed() -> None:
    big = torch.ones(100)
    skeleton = _skeleton({"a": big, "tied": big[3:5], "b": torch.ones(2), "c": "x" * 3000})
    assert skeleton.region_indexes == {0, 1, 2}
    assert skeleton.select("tied").region_indexes == {0}
    assert skeleton.select(["b", "c"]).region_indexes == {1, 2}


def test_one_path_may_name_several_leaves() -> None:
    assert round_trip({1: "int", "1": "str", "2": 0}, "1") == {1: "int", "1": "str"}
    assert round_trip({"a": {"b": 1}, "a/b": 2}, "a/b") == {"a": {"b": 1}, "a/b": 2}


def test_an_exact_key_that_is_not_there_is_missing() -> None:
    skeleton = _skeleton(_state())
    with pytest.raises(StateMismatchError, match=r"not in the checkpoint: nope, model/c") as caught:
        skeleton.select(["model", "nope", "model/c", "model/a.weight", "none*"])
    assert caught.value.missing == ("nope", "model/c")


def test_keys_with_glob_letters_match_themselves() -> None:
    state = {"a[0]": 1, "a0": 2, "b*": 3, "bc": 4}
    assert round_trip(state, "a[0]") == {"a[0]": 1, "a0": 2}
    assert round_trip(state, "b*") == {"b*": 3, "bc": 4}


_names = st.sampled_from(["a", "b", "ab", "a.b", "x1"])
_keys = st.sampled_from(["a", "a/*", "*b", "x1/a", "?", "*/*", "b/a/a", "a.b"])
_trees = st.recursive(st.integers(0, 9), lambda inner: st.dictionaries(_names, inner, max_size=3), max_leaves=8)


@settings(max_examples=200)
@given(
    st.dictionaries(_names, _trees, max_size=3),
    st.lists(st.sampled_from(["a", "a/*", "*b", "x1/a", "?", "*/*", "b/a/a", "a.b"])),
)
def test_a_selection_is_what_its_definition_says(state: dict[str, Any], keys: list[str]) -> None:
    skeleton = _skeleton(state)

    def chosen(path: str) -> bool:
        steps = path.split("/")
        ancestors = ["/".join(steps[: i + 1]) for i in range(len(steps))]
        return any(fnmatch.fnmatchcase(ancestor, key) for ancestor in ancestors for key in keys)

    exact = [key for key in keys if not set(key) & set("*?")]
    reached = {"/".join(name.split("/")[: i + 1]) for name in skeleton.names for i in range(name.count("/") + 1)}
    missing = [key for key in exact if key not in reached]
    if missing:
        with pytest.raises(StateMismatchError) as caught:
            skeleton.select(keys)
        assert list(caught.value.missing) == missing
        return
    selected = skeleton.select(keys)
    assert selected.names == tuple(name for name in skeleton.names if chosen(name)) or not selected.root.children
    assert all(selected.selects(name) == chosen(name) for name in skeleton.names if name)


def test_pickled_leaves_need_consent() -> None:
    class_of = type("Local", (), {})
    captured = capture({"a": {"fn": print, "w": torch.ones(1)}, "b": 1}, pickle_objects=True)
    skeleton = Skeleton.decode(captured.skeleton, regions_of(captured))
    with pytest.raises(UnsafeLoadError, match="'a/fn'.*weights_only=False.*keys="):
        skeleton.build(storages_of(captured))
    assert skeleton.build(storages_of(captured), weights_only=False)["a"]["fn"] is print
    assert skeleton.select("a/w").build(storages_of(captured))["a"]["w"] == 1
    with pytest.raises(Exception, match="x/0.*pickle cannot carry it either"):
        capture({"x": [class_of()]}, pickle_objects=True)


def test_a_storage_that_is_not_its_region_is_refused() -> None:
    captured = capture({"w": torch.ones(4)})
    skeleton = Skeleton.decode(captured.skeleton, regions_of(captured))
    for wrong in (torch.UntypedStorage(15), torch.UntypedStorage(17), torch.ones(4)):
        with pytest.raises(UsageError, match="region 'w'.*map_location"):
            skeleton.build({0: wrong})  # type: ignore[dict-item]
    with pytest.raises(FormatError, match="region 0 was not restored"):
        skeleton.build({})


def test_every_build_is_a_new_state() -> None:
    captured = capture({"l": [1], "d": {}, "s": {1}, "a": np.zeros(3), "b": bytearray(b"x")})
    skeleton = Skeleton.decode(captured.skeleton, [])
    one, two = skeleton.build({}), skeleton.build({})
    assert all(one[key] is not two[key] for key in one)
