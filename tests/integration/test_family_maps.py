"""Token maps of every family over pictures and clips of any size: no visual token is lost, none is claimed twice, cells
tile what they show, and places and tokens are each other's inverse. The *_pixels.py tests hold the maps to pixels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from core_bench.bundled.architectures import FAMILIES
from core_bench.evidence import omega
from core_bench.model_wrappers.base import ModelWrapper
from core_bench.model_wrappers.llava_onevision import LlavaOneVision
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.schema import Media, Prepared, Region, Sample, VisualBlock

FloatArray = NDArray[np.float64]
MediaFile = Callable[[NDArray[np.uint8]], Media]
Size = tuple[bool, int, int]  # whether it is a clip, width, height
SIDES = st.integers(8, 300)
SIZES = st.lists(st.tuples(st.booleans(), SIDES, SIDES), min_size=1, max_size=4)


@pytest.fixture(scope="module", params=[*FAMILIES, "qwen3vl, groups of 3"])
def wrapper(request: pytest.FixtureRequest, untrained_of: Callable[[str], ModelWrapper]) -> ModelWrapper:
    """Every family, and a Qwen3-VL whose temporal patch size (3) is not its merge size (2)."""
    if request.param in FAMILIES:
        return untrained_of(request.param)
    usual = untrained_of("qwen3vl")
    processor = copy.deepcopy(usual.processor)
    processor.video_processor.temporal_patch_size = 3
    return Qwen3VL(usual.model, processor)


def prepared(wrapper: ModelWrapper, media_file: MediaFile, sizes: list[Size], frames: int, **options: Any) -> Prepared:
    """Noise media; all clips have as many frames, as two of the families demand."""
    media = tuple(
        media_file(np.full((frames, h, w, 3) if clip else (h, w, 3), 9, dtype=np.uint8)) for clip, w, h in sizes
    )
    sample = Sample(task="t", id="s", cluster="c", media=media, prompt="What?", question="What?", target="x")
    return wrapper.prepare(sample, **options)


def boxes(block: VisualBlock, width: int, height: int) -> FloatArray:
    """(x0, y0, x1, y1) in pixels of every cell in raster order, cut to the medium."""
    rows, cols = np.divmod(np.arange(block.rows * block.cols), block.cols)
    x, y = cols - block.offset_x, rows - block.offset_y
    sides = [x / block.scale_x, y / block.scale_y, (x + 1) / block.scale_x, (y + 1) / block.scale_y]
    return np.stack([np.clip(side, 0, extent) for side, extent in zip(sides, [width, height] * 2, strict=True)], axis=1)


@settings(max_examples=25, deadline=None)
@given(sizes=SIZES, frames=st.integers(1, 5), max_pixels=st.none() | st.integers(1, 400_000))
@example(sizes=[(False, 300, 8), (True, 8, 300), (False, 256, 256)], frames=2, max_pixels=None)
@example(sizes=[(False, 300, 217)], frames=1, max_pixels=None)
def test_no_visual_token_is_lost_and_the_cells_tile_every_view(
    wrapper: ModelWrapper, media_file: MediaFile, sizes: list[Size], frames: int, max_pixels: int | None
) -> None:
    shown = prepared(wrapper, media_file, sizes, frames, max_pixels=max_pixels)
    found, ids = shown.token_map, shown.inputs["input_ids"][0].tolist()
    names = ("image_token_id", "video_token_id")
    visual = {getattr(wrapper.model.config, name, None) for name in names} - {None}
    roles = found.roles()
    assert [role in ("cell", "newline") for role in roles] == [token in visual for token in ids]
    assert roles.count("cell") == found.n_visual
    assert not found.newlines or isinstance(wrapper, LlavaOneVision)
    assert not {ids[position] for position in found.markers} & visual
    tiles = [block for block in found.blocks if block.view == "tiles"]
    if isinstance(wrapper, LlavaOneVision):  # a row of these ends with a newline
        row_ends = {position + 1 for block in tiles for position in block.positions()[block.cols - 1 :: block.cols]}
        assert {roles[position] for position in row_ends} <= {"newline"}
    for number, (clip, width, height) in enumerate(sizes):
        blocks = [block for block in found.blocks if block.medium == number]
        assert shown.frames[number] == tuple(frame for block in blocks for frame in block.frames)
        assert len(shown.frames[number]) == (frames if clip else 0)
        for view in {(block.view, block.frames) for block in blocks}:
            cells = [boxes(block, width, height) for block in blocks if (block.view, block.frames) == view]
            check_tiling(np.concatenate(cells), width, height, cut=view[0] == "tiles")


def check_tiling(cells: FloatArray, width: int, height: int, cut: bool) -> None:
    """The cells share no place and together are the medium; where the model may `cut` its edges off (LLaVA-OneVision
    removes whole rows and columns of cells with padding), less than one cell of it may lack on each axis."""
    sides = cells[:, 2:] - cells[:, :2]
    assert (sides > 0).all()
    assert len({tuple(corner) for corner in cells[:, :2].round(6)}) == len(cells)
    low, high = cells[:, :2].min(axis=0), cells[:, 2:].max(axis=0)
    assert np.prod(sides, axis=1).sum() == pytest.approx(np.prod(high - low))
    lack = np.array([width, height]) - (high - low)
    assert (lack < (sides.max(axis=0) if cut else 1e-6)).all()


@settings(max_examples=10, deadline=None)
@given(size=st.tuples(st.booleans(), SIDES, SIDES), others=st.integers(0, 1))
def test_grid_to_token_to_grid(wrapper: ModelWrapper, media_file: MediaFile, size: Size, others: int) -> None:
    """The middle of a cell, as evidence, is this cell's token and those of other views that lie there."""
    found = prepared(wrapper, media_file, [(False, 40, 40)] * others + [size], 4).token_map
    mine = [block for block in found.blocks if block.medium == others]
    for block in mine:
        cells = list(zip(block.positions(), boxes(block, *size[1:]), strict=True))
        for token, (x0, y0, x1, y1) in cells[:: block.cols + 1]:
            dot = (0.52 * x0 + 0.48 * x1, 0.52 * y0 + 0.48 * y1, 0.48 * x0 + 0.52 * x1, 0.48 * y0 + 0.52 * y1)
            frame = block.frames[0] if block.frames else None
            tokens = omega([Region(medium=others, frame=frame, box=dot)], found)
            assert set(tokens) & set(block.positions()) == {token}
            for other in set(tokens) - {token}:
                (there,) = [each for each in mine if other in each.positions()]
                a, b, c, d = boxes(there, *size[1:])[there.positions().index(other)]
                assert (there.view, there.frames) != (block.view, block.frames)
                assert a < dot[2]
                assert b < dot[3]
                assert c > dot[0]
                assert d > dot[1]
