"""The command line: what it prints, and its exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import s4async
from s4async.cli import main
from s4async.version import __version__


@pytest.fixture
def place(tmp_path: Path) -> Path:
    s4async.save({"model": {"w": torch.arange(3000.0), "b": torch.zeros(7)}, "step": 3}, tmp_path / "x.s4")
    return tmp_path / "x.s4"


def test_inspect_shows_the_leaves(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(place)]) == 0
    out = capsys.readouterr().out
    assert "model/w" in out and "float32" in out and "12,000" in out
    assert "12,028 bytes raw" in out and "restorable without a GPU: yes" in out


def test_inspect_takes_globs_and_gives_json(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(place), "--keys", "model/*", "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in seen["entries"]] == ["model/w", "model/b"]
    assert seen["raw_bytes"] == 12_028


def test_verify_says_ok(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(place)]) == 0
    assert capsys.readouterr().out.startswith("ok: ")


def test_steps_of_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2):
        s4async.save_checkpoint({"n": step}, tmp_path / "store", step=step)
    assert main(["inspect", str(tmp_path / "store"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 2
    assert main(["verify", str(tmp_path / "store"), "--step", "1"]) == 0
    assert "step 1" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "store"), "--step", "9"]) == 1
    assert "step 9 is not committed" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["inspect", "verify"])
@pytest.mark.parametrize("data", [b"", b"garbage" * 20, None])
def test_what_cannot_be_read_is_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, data: bytes | None
) -> None:
    if data is not None:
        (tmp_path / "x").write_bytes(data)
    assert main([verb, str(tmp_path / "x")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ") and str(tmp_path / "x") in err and "Traceback" not in err


def test_damage_is_found_by_verify_only(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(place.read_bytes())
    data[100] ^= 1
    place.write_bytes(data)
    assert main(["inspect", str(place)]) == 0
    assert main(["verify", str(place)]) == 1
    assert "checksum" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["erase"], ["inspect"], ["verify", "x", "--step", "one"]])
def test_a_wrong_command_line_is_exit_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: s4async" in capsys.readouterr().err


def test_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "s4async", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"s4async {__version__}\n"
