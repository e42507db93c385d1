"""From evidence regions in pixels to token positions (Omega), and placebo regions of the same shape elsewhere.

Omega is the set of visual tokens whose cell overlaps a region by more than a given share of the cell.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core_bench.errors import SampleError
from core_bench.schema import Region, TokenMap, VisualBlock

# Pixel-to-cell maps are floating-point: an edge that falls exactly on a cell border must not leak into the next cell.
_AREA_EPS = 1e-9


def omega(regions: Sequence[Region], token_map: TokenMap, overlap: float = 0.0) -> tuple[int, ...]:
    """Token positions of the evidence, sorted and unique.

    A token counts when a region covers more than `overlap` (0 <= overlap < 1) of its cell's area; 0 means any
    positive area. A region with a `frame` touches only blocks that merged this very frame: a frame that was not
    sampled is not covered. One without a frame touches every block of its medium. Raises SampleError, with the
    reason, when no token counts.
    """
    if not 0.0 <= overlap < 1.0:
        raise ValueError(f"overlap: expected 0 <= overlap < 1, got {overlap}")
    if not regions:
        raise SampleError("no evidence: the sample names no region")
    hits: set[int] = set()
    reached = False
    for region in regions:
        blocks = [block for block in token_map.blocks if _shows(block, region)]
        reached = reached or bool(blocks)
        for block in blocks:
            rows_N, cols_N = np.nonzero(covered_cells(region, block) > overlap + _AREA_EPS)
            hits.update(
                block.start + int(row) * block.row_stride + int(col) for row, col in zip(rows_N, cols_N, strict=True)
            )
    if not hits:
        raise SampleError(f"no evidence token: {_why_empty(regions, token_map, overlap, reached)}")
    return tuple(sorted(hits))


def covered_cells(region: Region, block: VisualBlock) -> NDArray[np.float64]:
    """Share of each cell's area, [rows, cols] in [0, 1], that the region's box covers; a box of None covers all."""
    if region.box is None:
        return np.ones((block.rows, block.cols))
    x0, y0, x1, y1 = region.box
    wide_C = _covered(x0 * block.scale_x + block.offset_x, x1 * block.scale_x + block.offset_x, block.cols)
    high_R = _covered(y0 * block.scale_y + block.offset_y, y1 * block.scale_y + block.offset_y, block.rows)
    return np.outer(high_R, wide_C)


def placebos(
    omega_positions: Sequence[int], token_map: TokenMap, n: int = 8, seed: int = 0
) -> tuple[tuple[int, ...], ...]:
    """Up to `n` distinct token sets of Omega's shape and size, disjoint from Omega; the same seed gives the same sets.

    In every block that Omega touches, its cells are shifted as one stencil to a place free of Omega in the same
    block, or, where the block has no such place, in another block of the same grid. Fewer than `n` sets, or none,
    come back when the prompt has no room for more.
    """
    taken = set(omega_positions)
    stencils = [stencil for block in token_map.blocks if (stencil := _stencil(block, taken)) is not None]
    if not stencils or n <= 0:
        return ()
    rng = random.Random(seed)
    options = [_places(stencil, token_map.blocks, taken) for stencil in stencils]
    if not all(options):
        return ()
    found: dict[tuple[int, ...], None] = {}
    longest = max(len(places) for places in options)
    for attempt in range(max(longest, 8 * n)):
        if attempt % longest == 0:  # every wheel has gone round: new pairings
            for places in options:
                rng.shuffle(places)
        placed = _combine(stencils, options, attempt)
        if placed:
            found.setdefault(placed)
        if len(found) == n:
            break
    return tuple(found)


@dataclass(frozen=True)
class _Stencil:
    """Omega's cells inside one block, cut to their bounding rectangle."""

    block: VisualBlock
    mask: NDArray[np.bool_]


def _stencil(block: VisualBlock, taken: set[int]) -> _Stencil | None:
    mask = _taken_cells(block, taken)
    rows, cols = np.nonzero(mask)
    if not len(rows):
        return None
    return _Stencil(block, mask[rows.min() : rows.max() + 1, cols.min() : cols.max() + 1])


def _taken_cells(block: VisualBlock, taken: set[int]) -> NDArray[np.bool_]:
    flags = [position in taken for position in block.positions()]
    return np.array(flags, dtype=bool).reshape(block.rows, block.cols)


def _places(stencil: _Stencil, blocks: Sequence[VisualBlock], taken: set[int]) -> list[tuple[int, ...]]:
    """Token positions of every allowed shift: in the stencil's own block, else in blocks of the same grid."""
    own = list(_shifts(stencil, stencil.block, taken))
    if own:
        return own
    grid = (stencil.block.rows, stencil.block.cols)
    same = [block for block in blocks if (block.rows, block.cols) == grid and block != stencil.block]
    return list(itertools.chain.from_iterable(_shifts(stencil, block, taken) for block in same))


def _shifts(stencil: _Stencil, block: VisualBlock, taken: set[int]) -> Iterator[tuple[int, ...]]:
    free = ~_taken_cells(block, taken)
    height, width = stencil.mask.shape
    rows, cols = np.nonzero(stencil.mask)
    for down in range(block.rows - height + 1):
        for right in range(block.cols - width + 1):
            if free[down + rows, right + cols].all():
                yield tuple((block.start + (down + rows) * block.row_stride + right + cols).tolist())


def _combine(
    stencils: Sequence[_Stencil], options: Sequence[list[tuple[int, ...]]], attempt: int
) -> tuple[int, ...] | None:
    """One place per stencil, none overlapping another; None when a stencil finds none. `attempt` turns the wheels."""
    placed: set[int] = set()
    for number in range(len(stencils)):
        places = options[number]
        turned = (places[(attempt + step) % len(places)] for step in range(len(places)))
        choice = next((place for place in turned if placed.isdisjoint(place)), None)
        if choice is None:
            return None
        placed.update(choice)
    return tuple(sorted(placed))


def _covered(low: float, high: float, cells: int) -> NDArray[np.float64]:
    """How much of each unit interval [i, i + 1), i < cells, lies inside [low, high): float64 [cells]."""
    edges_C = np.arange(cells, dtype=np.float64)
    return np.clip(np.minimum(edges_C + 1, high) - np.maximum(edges_C, low), 0.0, 1.0)


def _shows(block: VisualBlock, region: Region) -> bool:
    return block.medium == region.medium and (region.frame is None or region.frame in block.frames)


def _why_empty(regions: Sequence[Region], token_map: TokenMap, overlap: float, reached: bool) -> str:
    if reached:
        boxes = [region.box for region in regions if region.box is not None]
        if any(not math.isfinite(side) for box in boxes for side in box):
            return f"a box is not finite: {boxes[0]}"
        return f"no cell is covered by more than {overlap:g} by any of {len(regions)} regions, first {boxes[0]}"
    media = {block.medium for block in token_map.blocks}
    wanted = sorted({region.medium for region in regions})
    if not media & set(wanted):
        return f"the regions lie in media {wanted}, the prompt shows media {sorted(media)}"
    frames = sorted({region.frame for region in regions if region.frame is not None})
    return f"none of the {len(frames)} frames with a region ({frames[0]} to {frames[-1]}) was sampled"
