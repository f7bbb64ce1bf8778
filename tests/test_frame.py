"""The vocabulary's small arithmetic."""

import pytest

from s4async.frame import ALIGNMENT, Blob, Extent, Frame, align


@pytest.mark.parametrize(("offset", "expected"), [(0, 0), (1, 16), (15, 16), (16, 16), (17, 32), (1 << 40, 1 << 40)])
def test_align(offset: int, expected: int) -> None:
    assert ALIGNMENT == 16
    assert align(offset) == expected


def test_sizes_of_a_frame() -> None:
    blobs = (Blob(0, "zstd", 12, 5, 0, 4096, (5,)), Blob(1, "raw", 12, 12, 0), Blob(2, "constant", 12, 0, 0))
    frame = Frame(0, "float32", (Extent(0, 0, 16), Extent(3, 0, 20)), blobs=blobs)
    assert frame.raw_nbytes == 36
    assert frame.stored_nbytes == 32
