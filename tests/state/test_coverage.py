"""Coverage arithmetic against counting elements one by one."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from s4async.state.coverage import Span, families, hidden_units, is_dense, self_overlaps, span


def _bytes(s: Span) -> list[int]:
    found: list[int] = []
    for index in product(*(range(size) for _, size in s.dims)):
        first = s.offset + sum(i * stride for i, (stride, _) in zip(index, s.dims, strict=True)) * s.itemsize
        found += range(first, first + s.itemsize)
    return found


@st.composite
def _span(draw: st.DrawFn) -> Span:
    itemsize = draw(st.sampled_from([1, 2, 4]))
    shape = draw(st.lists(st.integers(1, 4), max_size=3))
    strides = [draw(st.integers(0, 9)) for _ in shape]
    return span(draw(st.integers(0, 12)) * itemsize, itemsize, shape, strides)


@settings(max_examples=300)
@given(_span())
def test_density_and_overlap_of_one_span(s: Span) -> None:
    own = _bytes(s)
    assert s.end == max(own) + 1 and s.offset == min(own)
    assert is_dense(s.dims) == (len(set(own)) == s.end - s.offset)
    assert s.nbytes == len(own)
    if not self_overlaps(s.dims):
        assert len(set(own)) == len(own)


@settings(max_examples=300)
@given(st.lists(_span(), min_size=1, max_size=5))
def test_families_of_spans(spans: list[Span]) -> None:
    every = [set(_bytes(s)) for s in spans]
    nbytes, kin = families(spans)
    union = set().union(*every)
    assert nbytes == len(union)
    assert sorted(number for family in kin for number in family) == list(range(len(spans)))
    home = {number: i for i, family in enumerate(kin) for number in family}
    for a in range(len(spans)):
        for b in range(a):
            if every[a] & every[b]:
                assert home[a] == home[b]
    for family in kin:  # connected: nobody is in it without sharing
        reached, pending = {family[0]}, [family[0]]
        while pending:
            at = pending.pop()
            near = [number for number in family if number not in reached and every[at] & every[number]]
            reached |= set(near)
            pending += near
        assert reached == set(family)
    start, end = min(union), max(union) + 1
    unit, hidden = hidden_units(spans, start, end)
    shown = {start + i * unit + j for i, flag in enumerate(hidden) if not flag for j in range(unit)}
    assert shown == union


def test_column_slices_are_looked_at_in_one_row() -> None:
    """A million rows: the map of owners must not have a million rows."""
    rows, width = 1 << 40, 12
    left = Span(0, 4, ((1, 5), (width, rows)))
    right = Span(20, 4, ((1, 7), (width, rows)))
    assert families([left, right]) == (48 * rows, [[0], [1]])
    assert families([left, right._replace(dims=((1, 6), (width, rows)))]) == (44 * rows, [[0], [1]])
    assert families([left, right._replace(offset=16)])[1] == [[0, 1]]
