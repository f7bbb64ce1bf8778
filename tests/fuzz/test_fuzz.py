"""Damaged and hostile inputs by the hundred: never a wrong tensor, a foreign error, a hang or a crash."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mutators import MUTATORS
from tests.fuzz.oracle import RECORD, SEEDS, check


@pytest.mark.parametrize("target", MUTATORS)
def test_mutants_load_or_are_refused(target: str) -> None:
    @settings(max_examples=400)
    @given(st.sampled_from(sorted(SEEDS)), st.integers(0, 1 << 32))
    def run(name: str, seed: int) -> None:
        data = RECORD if target == "record" else SEEDS[name]
        check(target, name, MUTATORS[target](data, Random(seed)))

    run()


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_seeds_load(name: str) -> None:
    assert check("raw", name, SEEDS[name]) == "loaded"


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    assert check("manifest", "empty", data) != "loaded"
