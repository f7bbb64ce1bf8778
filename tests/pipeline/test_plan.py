"""Regions -> frames."""

from hypothesis import given
from hypothesis import strategies as st

from s4async.frame import Region
from s4async.pipeline.plan import SHARED_FRAME_NBYTES, plan, rounding_candidates

FRAME, SMALL = 64 << 10, 4 << 10
SIZES = st.lists(st.tuples(st.sampled_from(["float32", "bfloat16", "uint8", "complex64"]), st.integers(0, 200_000)))


@given(SIZES)
def test_every_byte_travels_once_and_in_order(sizes: list[tuple[str, int]]) -> None:
    regions = [Region(f"m/{i % 3}/w{i % 2}", dtype, nbytes) for i, (dtype, nbytes) in enumerate(sizes)]
    covered = [0] * len(regions)
    for i, frame in enumerate(plan(regions, FRAME, SMALL)):
        assert frame.index == i
        assert 0 < frame.raw_nbytes <= max(FRAME, SHARED_FRAME_NBYTES)
        for extent in frame.extents:
            assert extent.offset == covered[extent.region]
            covered[extent.region] += extent.nbytes
    assert covered == [region.nbytes for region in regions]


def test_large_regions_never_share_a_frame() -> None:
    regions = [Region("a", "float32", FRAME + 4), Region("b", "float32", SMALL)]
    assert [len(frame.extents) for frame in plan(regions, FRAME, SMALL)] == [1, 1, 1]


def test_small_regions_share_with_their_likes() -> None:
    names = ["0/exp_avg", "0/exp_avg_sq", "1/exp_avg", "1/exp_avg_sq", "net.0.bias", "net.1.bias"]
    regions = [Region(name, "float32", 800) for name in names]
    frames = plan(regions, FRAME, SMALL)
    assert [[regions[e.region].name for e in f.extents] for f in frames] == [names[0:3:2], names[1:4:2], names[4:]]


def test_many_tiny_regions_do_not_make_many_frames() -> None:
    """Whatever they are called: numbered keys, items of lists, or names that all differ."""
    for name in ("k{}", "buffers/{}", "layer.{}.w{}", "{:x}a"):
        regions = [Region(name.format(i, i), "float32", 4 * (i % 7)) for i in range(20_000)]
        assert len(plan(regions, 4 << 20, 256 << 10)) <= 2


def test_regions_of_broken_elements_are_bytes() -> None:
    assert [f.dtype for f in plan([Region("odd", "float32", SMALL + 2)], FRAME, SMALL)] == ["uint8"]


def test_a_possible_rounding_keeps_a_frame_of_its_own() -> None:
    regions = [Region("a/w", "bfloat16", 512), Region("b/w", "bfloat16", 514), Region("m/w", "float32", 1024)]
    assert rounding_candidates(regions) == {0: (2,)}
    assert [tuple(e.region for e in f.extents) for f in plan(regions, FRAME, SMALL)] == [(0,), (1,), (2,)]
