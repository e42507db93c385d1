"""LLaVA-OneVision: a picture whole at 8 x 8 tokens, then its tiles with a newline token a row; a clip in 4 x 4 a frame.

Tiles of 256 pixels have 8 x 8 tokens, so pictures of whole tiles show one cell a token. Pages of a document come
whole only, and are one tile large. Frames are enlarged to a tile and pooled: with 4 x 4 cells, one cell is one token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from core_bench.bundled.clip import FPS
from core_bench.bundled.feeds import Layout, Pixels, Plan, plain_positions

TILE, FRAME = 8, 4  # cells a side of a tile, and of a frame
MOST_SECONDS, MOST_PAGES, MOST_SIDE = 32, 12, 16


class MediaFeed:
    """Pixels go through the real processors."""

    probe_plans = (Plan("picture", 24, 1, TILE, TILE, (16, 16)), Plan("clip", 32, 1, FRAME, FRAME, (8, 8)))

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.image_id, self.video_id = processor.image_token_id, processor.video_token_id
        self.visual_ids = (self.image_id, self.video_id)

    def fit(self, plan: Plan) -> Plan:
        return tiled(plan, TILE, MOST_SIDE, MOST_PAGES)

    def length(self, plan: Plan) -> int:
        if plan.kind == "clip":
            return plan.parts * FPS * FRAME * FRAME + 1
        return len(self.pictures(plan.parts, plan.rows, plan.cols).ids)

    def pictures(self, parts: int, rows: int, cols: int) -> Layout:
        base = TILE * TILE
        if parts > 1:  # several pictures: each whole, with one newline
            return Layout(
                [self.image_id] * (parts * (base + 1)), lambda part, row, col: (part * (base + 1) + row * TILE + col,)
            )

        def at(part: int, row: int, col: int) -> tuple[int, ...]:
            return row * TILE // rows * TILE + col * TILE // cols, base + row * (cols + 1) + col

        return Layout([self.image_id] * (base + rows * (cols + 1)), at)

    def clip(self, stamps: Sequence[float], rows: int, cols: int, wrapped: bool = True) -> Layout:
        cells = rows * cols

        def at(part: int, row: int, col: int) -> tuple[int, ...]:
            return tuple((part * FPS + frame) * cells + row * cols + col for frame in range(FPS))

        return Layout([self.video_id] * (len(stamps) * FPS * cells + 1), at)

    def inputs(self, plan: Plan, media: Sequence[Pixels], ids: torch.Tensor) -> dict[str, torch.Tensor]:
        if plan.kind == "clip":
            clips = [as_CHW(pixels).repeat_interleave(FPS, dim=0) for pixels in media]
            return dict(self.processor.video_processor(videos=clips, do_sample_frames=False, return_tensors="pt"))
        pictures = [list(as_CHW(pixels)) for pixels in media]
        return dict(self.processor.image_processor(images=pictures, return_tensors="pt"))

    def positions(self, model: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return plain_positions(inputs)


def tiled(plan: Plan, tile: int, most_side: int, most_pages: int) -> Plan:
    """The plan with pictures of whole tiles of `tile` cells a side, pages of 8 x 8 cells, and frames of 4 x 4.

    Long clips become longer instead of larger.
    """
    if plan.kind == "picture":
        rows, cols = (min(most_side, max(tile, tile * round(side / tile))) for side in (plan.rows, plan.cols))
        return replace(plan, rows=rows, cols=cols)
    if plan.kind == "document":
        cells = plan.parts * plan.rows * plan.cols
        pages = min(most_pages, max(2, plan.parts, round(cells / 64)))
        return replace(plan, parts=pages, rows=8, cols=8)
    seconds = plan.parts
    if not plan.moment:
        seconds = min(MOST_SECONDS, max(plan.parts, plan.parts * plan.rows * plan.cols // (2 * FRAME * FRAME)))
    return replace(plan, parts=seconds, rows=FRAME, cols=FRAME)


def as_CHW(pixels: Pixels) -> torch.Tensor:
    """uint8 [parts, 3, height, width]."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
