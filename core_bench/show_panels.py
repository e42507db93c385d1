"""What of a sample is drawn: its pictures, each with the blocks of visual tokens that show it, and which of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from core_bench.media import Visual
from core_bench.schema import Box, Region, Sample, TokenMap, View, VisualBlock

MAX_PANELS = 12
_Key = tuple[int, tuple[int, ...], View]


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """One picture and the blocks that show it in one way: whole, as a thumbnail, or in tiles.

    `boxes`: evidence on this very picture, in its pixels; `others`: that on the other frames merged into the same
    blocks. `omega`: the evidence tokens among those of the blocks.
    """

    picture: Image.Image
    label: str
    blocks: tuple[VisualBlock, ...]
    boxes: tuple[Box, ...]
    others: tuple[Box, ...]
    omega: frozenset[int]

    @property
    def has_evidence(self) -> bool:
        return bool(self.boxes or self.others or self.omega)

    def positions(self) -> list[int]:
        """Token positions of all cells of its blocks."""
        return [position for block in self.blocks for position in block.positions()]


def cell_box(block: VisualBlock, row: int, col: int) -> Box:
    """The rectangle of cell (row, col) in pixels of the original medium: the block's affine map turned round.

    It may reach beyond the medium where the block has padding.
    """
    return (
        (col - block.offset_x) / block.scale_x,
        (row - block.offset_y) / block.scale_y,
        (col + 1 - block.offset_x) / block.scale_x,
        (row + 1 - block.offset_y) / block.scale_y,
    )


def make_panels(
    sample: Sample, visuals: Sequence[Visual], token_map: TokenMap, omega: Sequence[int]
) -> tuple[Panel, ...]:
    """Every picture that the prompt shows, in prompt order. Of the frames merged into one block, the first with
    evidence is drawn, else the first."""
    groups: dict[_Key, list[VisualBlock]] = {}
    for block in sorted(token_map.blocks, key=lambda block: block.start):
        groups.setdefault((block.medium, block.frames, block.view), []).append(block)
    return tuple(_panel(sample, visuals, tuple(blocks), set(omega)) for blocks in groups.values())


def choose(panels: Sequence[Panel], mass_M: NDArray[np.float64], limit: int = MAX_PANELS) -> tuple[int, ...]:
    """Indices of the panels to draw, ascending: all if at most `limit`; else those with evidence, evenly spaced if
    these are too many themselves, and their neighbours as far as there is room. Without evidence: those with the most
    of `mass_M`, a mass a token."""
    if len(panels) <= limit:
        return tuple(range(len(panels)))
    with_evidence = [n for n, panel in enumerate(panels) if panel.has_evidence]
    if not with_evidence:
        mass = [float(mass_M[panel.positions()].sum()) for panel in panels]
        return tuple(sorted(sorted(range(len(panels)), key=lambda n: -mass[n])[:limit]))
    if len(with_evidence) >= limit:
        spaced = np.linspace(0, len(with_evidence) - 1, limit).round().astype(int)
        return tuple(with_evidence[n] for n in spaced)
    neighbours = {n + step for n in with_evidence for step in (-1, 1)} - set(with_evidence)
    inside = sorted(n for n in neighbours if 0 <= n < len(panels))
    return tuple(sorted(with_evidence + inside[: limit - len(with_evidence)]))


def _panel(sample: Sample, visuals: Sequence[Visual], blocks: tuple[VisualBlock, ...], omega: set[int]) -> Panel:
    first = blocks[0]
    visual = visuals[first.medium]
    regions = [region for region in sample.evidence if region.medium == first.medium]
    frame = _drawn_frame(first.frames, regions)
    picture = visual.pictures[0 if frame is None else visual.frames.index(frame)]
    whole = (0.0, 0.0, float(picture.width), float(picture.height))
    here = [region for region in regions if region.frame is None or region.frame in first.frames]
    on_it = [region for region in here if region.frame in (None, frame)]
    return Panel(
        picture=picture,
        label=_label(sample, visual, first, frame, len(blocks)),
        blocks=blocks,
        boxes=tuple(region.box or whole for region in on_it),
        others=tuple(region.box or whole for region in here if region not in on_it),
        omega=frozenset(omega.intersection(position for block in blocks for position in block.positions())),
    )


def _drawn_frame(frames: tuple[int, ...], regions: Sequence[Region]) -> int | None:
    with_evidence = {region.frame for region in regions}
    return next((frame for frame in frames if frame in with_evidence), frames[0] if frames else None)


def _label(sample: Sample, visual: Visual, block: VisualBlock, frame: int | None, n_blocks: int) -> str:
    medium = sample.media[block.medium]
    parts = [Path(medium.path).name]
    if medium.kind == "page":
        parts.append(f"page index {medium.page or 0}")
    if frame is not None:
        second = visual.second(frame)
        parts.append(f"frame {frame}" if second is None else f"frame {frame} ({second:.1f} s)")
        merged = [str(other) for other in block.frames if other != frame]
        if merged:
            parts.append(f"with {', '.join(merged)}")
    if block.view != "whole":
        parts.append(block.view if n_blocks == 1 else f"{n_blocks} {block.view}")
    return ", ".join(parts)
