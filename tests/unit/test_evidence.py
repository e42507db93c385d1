"""Omega against exact rational areas, placebos against brute-force shifts."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_bench.errors import SampleError
from core_bench.evidence import omega, placebos
from core_bench.schema import Region, TokenMap, VisualBlock


def block(rows: int, cols: int, start: int = 5, width: int = 640, height: int = 480, **more: object) -> VisualBlock:
    options = {"medium": 0, "row_stride": cols, "scale_x": cols / width, "scale_y": rows / height} | more
    return VisualBlock(start=start, rows=rows, cols=cols, **options)  # type: ignore[arg-type]


def token_map(*blocks: VisualBlock) -> TokenMap:
    return TokenMap(blocks=blocks, length=max(max(b.positions()) for b in blocks) + 1)


def exact_share(box: tuple[int, ...], row: int, col: int, b: VisualBlock, width: int, height: int) -> Fraction:
    """Share of the cell's pixels that the box covers, by rational arithmetic on pixel edges."""
    left, right = Fraction(col * width, b.cols), Fraction((col + 1) * width, b.cols)
    top, bottom = Fraction(row * height, b.rows), Fraction((row + 1) * height, b.rows)
    wide = max(Fraction(0), min(right, Fraction(box[2])) - max(left, Fraction(box[0])))
    high = max(Fraction(0), min(bottom, Fraction(box[3])) - max(top, Fraction(box[1])))
    return wide * high / ((right - left) * (bottom - top))


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(1, 9),
    cols=st.integers(1, 9),
    width=st.integers(1, 700),
    height=st.integers(1, 700),
    corners=st.tuples(*[st.integers(-20, 720)] * 4),
    overlap=st.sampled_from([Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(9, 10)]),
)
def test_omega_equals_exact_areas(
    rows: int, cols: int, width: int, height: int, corners: tuple[int, int, int, int], overlap: Fraction
) -> None:
    b = block(rows, cols, width=width, height=height)
    box = (min(corners[::2]), min(corners[1::2]), max(corners[::2]), max(corners[1::2]))
    expected = [
        b.start + r * cols + c
        for r in range(rows)
        for c in range(cols)
        if exact_share(box, r, c, b, width, height) > overlap
    ]
    regions = [Region(medium=0, box=box)]
    if expected:
        assert omega(regions, token_map(b), float(overlap)) == tuple(expected)
    else:
        with pytest.raises(SampleError, match="no evidence token"):
            omega(regions, token_map(b), float(overlap))


def test_a_box_on_cell_borders_touches_no_neighbour() -> None:
    assert 49 * (1 / 49) < 1  # so a box that starts on the border would leak into the cell before it
    b = block(7, 13, width=13 * 49, height=7 * 49)
    for r in range(7):
        for c in range(13):
            box = (c * 49, r * 49, (c + 1) * 49, (r + 1) * 49)
            assert omega([Region(medium=0, box=box)], token_map(b)) == (b.start + r * 13 + c,)


def test_row_stride_and_offset() -> None:
    b = block(2, 3, start=10, width=30, height=20, row_stride=4, offset_x=1.0)  # a newline token ends every row
    assert omega([Region(medium=0, box=(0, 10, 10, 20))], token_map(b)) == (10 + 4 + 1,)


def test_no_box_is_the_whole_picture_and_only_its_medium() -> None:
    tm = token_map(block(2, 2, start=1), block(3, 2, start=9, medium=1))
    assert omega([Region(medium=1)], tm) == tuple(range(9, 15))


def test_regions_unite_without_repeats() -> None:
    tm = token_map(block(1, 4, start=0, width=40, height=10))
    boxes = [(0, 0, 20, 10), (10, 0, 30, 10), (0, 0, 20, 10)]
    assert omega([Region(medium=0, box=box) for box in boxes], tm) == (0, 1, 2)


def test_a_frame_hits_only_the_group_that_merged_it() -> None:
    tm = token_map(block(1, 2, start=0, frames=(0, 8)), block(1, 2, start=7, frames=(16, 24)))
    assert omega([Region(medium=0, frame=24)], tm) == (7, 8)
    assert omega([Region(medium=0, frame=8), Region(medium=0, frame=9)], tm) == (0, 1)
    assert omega([Region(medium=0)], tm) == (0, 1, 7, 8)


@pytest.mark.parametrize(
    ("regions", "reason"),
    [
        ([], "names no region"),
        ([Region(medium=0, frame=9), Region(medium=0, frame=3)], r"none of the 2 frames with a region \(3 to 9\)"),
        ([Region(medium=2)], r"lie in media \[2\], the prompt shows media \[0\]"),
        ([Region(medium=0, box=(700, 0, 800, 10))], "no cell is covered"),
        ([Region(medium=0, box=(50, 50, 50, 90))], "no cell is covered"),
        ([Region(medium=0, box=(float("nan"), 0, 5, 5))], "not finite"),
    ],
)
def test_empty_omega_says_why(regions: list[Region], reason: str) -> None:
    with pytest.raises(SampleError, match=reason):
        omega(regions, token_map(block(4, 4, frames=(0, 1))))


def shifted_sets(cells: set[tuple[int, int]], rows: int, cols: int) -> set[frozenset[tuple[int, int]]]:
    """Every shift of `cells` that stays inside the grid and avoids them, by trying all."""
    found = set()
    for down in range(-rows, rows + 1):
        for right in range(-cols, cols + 1):
            moved = {(r + down, c + right) for r, c in cells}
            inside = all(0 <= r < rows and 0 <= c < cols for r, c in moved)
            if inside and not moved & cells:
                found.add(frozenset(moved))
    return found


@st.composite
def grids_with_cells(draw: st.DrawFn) -> tuple[int, int, set[tuple[int, int]]]:
    rows, cols = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    cell = st.tuples(st.integers(0, rows - 1), st.integers(0, cols - 1))
    return rows, cols, draw(st.sets(cell, min_size=1, max_size=6))


@settings(max_examples=100, deadline=None)
@given(grids_with_cells(), st.integers(0, 3))
def test_placebos_in_one_block_are_shifts_and_as_many_as_there_are(
    grid: tuple[int, int, set[tuple[int, int]]], seed: int
) -> None:
    rows, cols, cells = grid
    b = block(rows, cols)
    taken = sorted(b.start + r * cols + c for r, c in cells)
    allowed = shifted_sets(cells, rows, cols)
    sets = placebos(taken, token_map(b), n=8, seed=seed)
    as_cells = [frozenset(divmod(position - b.start, cols) for position in one) for one in sets]
    assert set(as_cells) <= allowed
    assert len(set(as_cells)) == len(sets) == min(8, len(allowed))
    assert sets == placebos(taken, token_map(b), n=8, seed=seed)


def test_placebos_of_a_full_block_lie_in_blocks_of_the_same_grid() -> None:
    blocks = [block(2, 2, start=start, frames=(start,)) for start in (0, 10, 20, 30)] + [block(3, 3, start=40)]
    sets = placebos([0, 1, 2, 3, 10, 11, 12, 13], token_map(*blocks), n=8)
    assert set(sets) == {(20, 21, 22, 23, 30, 31, 32, 33)}
    sets = placebos([0, 1, 2, 3], token_map(*blocks), n=8)
    assert set(sets) == {(10, 11, 12, 13), (20, 21, 22, 23), (30, 31, 32, 33)}


def test_placebos_over_several_blocks_keep_the_share_of_each() -> None:
    tm = token_map(block(4, 4, start=0, frames=(0,)), block(4, 4, start=20, frames=(1,)))
    taken = [0, 1, 4, 5, 25]
    sets = placebos(taken, tm, n=12, seed=1)
    assert len(set(sets)) == 12
    for one in sets:
        assert not set(one) & set(taken)
        assert (sum(p < 20 for p in one), sum(p >= 20 for p in one)) == (4, 1)


def test_no_room_for_a_placebo() -> None:
    assert placebos([0, 1, 2, 3], token_map(block(2, 2, start=0), block(3, 3, start=9))) == ()
    assert placebos([], token_map(block(2, 2))) == ()
