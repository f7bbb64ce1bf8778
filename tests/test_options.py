"""Options: ranges, and the environment as the one other source."""

import pytest

from s4async.errors import OptionsError
from s4async.options import Options


def test_defaults_are_valid_and_frozen() -> None:
    options = Options()
    assert options.worker_threads >= 1
    with pytest.raises(AttributeError):
        options.threads = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("frame_bytes", 100),
        ("frame_bytes", 4097),
        ("chunk_bytes", 0),
        ("window_bytes", -1),
        ("read_bytes", 1),
        ("small_bytes", -1),
        ("threads", -1),
        ("niceness", -1),
        ("exit_timeout_s", -0.5),
        ("on_overlap", "queue"),
    ],
)
def test_values_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(OptionsError, match=field):
        Options(**{field: value})  # type: ignore[arg-type]


def test_every_field_can_be_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"URL": "memory://x", "THREADS": "3", "EXIT_TIMEOUT_S": "1.5", "ON_OVERLAP": "skip", "FRAME_BYTES": "8192"}
    for name, text in given.items():
        monkeypatch.setenv(f"S4ASYNC_{name}", text)
    assert Options.from_env() == Options(
        url="memory://x", threads=3, exit_timeout_s=1.5, on_overlap="skip", frame_bytes=8192
    )


@pytest.mark.parametrize(("name", "text"), [("THREADS", "many"), ("FRAME_BYTES", "4M"), ("ON_OVERLAP", "never")])
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(f"S4ASYNC_{name}", text)
    with pytest.raises(OptionsError, match=f"{name}.*{text}|{name.lower()}.*{text}"):
        Options.from_env()
