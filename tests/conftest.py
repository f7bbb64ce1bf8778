"""What every test shares: how hypothesis searches, and what a missing GPU means.

Runs are the same everywhere by default: hypothesis draws the same examples each time. ``HYPOTHESIS_PROFILE=explore``
searches further, with fresh examples. The time limit of a test is in pyproject.toml.
"""

from __future__ import annotations

import os

import hypothesis
import pytest

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2_000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked ``gpu`` where there is none, by name and reason."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch  # only where it matters: importing it costs a second

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch finds none"))
