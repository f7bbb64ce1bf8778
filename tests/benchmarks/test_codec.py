"""The codec benchmark runs, at a size of seconds, and writes what it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import codec
from benchmarks.coders import coders
from benchmarks.states import RECIPES, Shape, trained

TINY = Shape(width=16, layers=1, context=16, batch=2, steps=2, corpus_bytes=1 << 14)


def test_it_measures_trained_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "codec.jsonl"
    arguments = ["codec", "--tiny", "--repeat", "1", "--folder", str(tmp_path), "--results", str(results)]
    assert command.main(arguments) == 0
    record = json.loads(results.read_text())
    assert record["benchmark"] == "codec"
    assert record["machine"]["versions"]["numpy"] == np.__version__
    groups = {(row["group"], row["dtype"]) for row in record["rows"]}
    assert {("bf16 weights", "bfloat16"), ("fp32 exp_avg_sq", "float32"), ("fp16 weights", "float16")} <= groups
    assert {row["coder"] for row in record["rows"]} >= {"s4async", "zstd -1", "zstd -3", "memcpy"}
    for row in record["rows"]:
        assert 0 < row["bound"] <= 100
        assert min(row["stored"], row["encode"], row["decode"]) > 0
    assert record["scaling"].keys() == {"bf16 weights", "fp16 weights", "fp32 weights"}
    assert "two threads on two cores" in capsys.readouterr().out


def test_it_measures_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"a": torch.randn(5000), "b": torch.randn(300, 300), "steps": 3}, tmp_path / "some.pt")
    codec.main(["--state", str(tmp_path / "some.pt"), "--repeat", "1", "--mb", "0.2", "--results", str(tmp_path / "r")])
    printed = capsys.readouterr().out
    for dtype in ("float32", "bfloat16", "float16"):
        assert f"some {dtype} weights" in printed


def test_coders_that_err_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(type(next(coders("float32")))):  # type: ignore[misc]  # our own coder, one bit off
        def decode(self, stored: object, raw: np.ndarray) -> None:
            super().decode(stored, raw)
            raw[-1] ^= 1

    monkeypatch.setattr(codec, "coders", lambda dtype: [Wrong(dtype)])
    torch.save({"a": torch.randn(5000)}, tmp_path / "some.pt")
    with pytest.raises(AssertionError, match="s4async does not give back"):
        codec.main(["--state", str(tmp_path / "some.pt"), "--repeat", "1", "--results", str(tmp_path / "r")])


@pytest.mark.parametrize("recipe", RECIPES)
def test_states_are_trained_once_and_alike(recipe: str, tmp_path: Path) -> None:
    first, second = trained(recipe, tmp_path / "a", TINY), trained(recipe, tmp_path / "b", TINY)
    kinds = {key.partition(".")[0] for key in first}
    assert kinds == {"model", "exp_avg", "exp_avg_sq"} | ({"master"} if recipe == "mixed" else set())
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(tensor.any() for key, tensor in first.items() if key.startswith("exp_avg_sq."))
    if recipe == "mixed":
        assert all(torch.equal(first[key], first[key.replace("model", "master", 1)].bfloat16())
                   for key in first if key.startswith("model."))  # fmt: skip
    (file,) = (tmp_path / "a").iterdir()
    changed = file.stat().st_mtime_ns
    trained(recipe, tmp_path / "a", TINY)
    assert file.stat().st_mtime_ns == changed


def test_training_leaves_the_callers_settings(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected, threads = torch.rand(3), torch.get_num_threads()
    torch.manual_seed(5)
    trained("fp32", tmp_path, TINY)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_unknown_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["nonsense"]) == 2
    assert command.main([]) == 2
    error = capsys.readouterr().err
    assert "codec" in error
    assert "states" not in error
