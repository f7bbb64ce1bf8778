"""Golden files: what version 1 wrote must be read for ever, and is still written bit for bit."""

import pytest

import s4async
from tests.cases.harness import assert_same
from tests.vectors.golden import FOLDER, encoded, parts, path
from tests.vectors.states import STATES


def test_no_vector_is_missing_or_left_over() -> None:
    assert {file.stem for file in FOLDER.glob("*.s4")} == set(STATES), "run `make vectors` and look at the difference"


@pytest.mark.parametrize("name", STATES)
def test_a_golden_file_gives_its_state(name: str) -> None:
    assert_same(STATES[name](), s4async.load(path(name)))
    s4async.verify(path(name))


@pytest.mark.parametrize("name", STATES)
def test_the_state_is_still_written_so(name: str) -> None:
    stored, now = parts(path(name).read_bytes()), parts(encoded(STATES[name]()))
    for part, before, after in zip(("header", "frames", "manifest"), stored, now, strict=True):
        assert before == after, f"the {part} of {name} changed: a new format version, FORMAT.md and `make vectors`?"
