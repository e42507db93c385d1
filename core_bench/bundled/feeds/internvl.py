"""InternVL: pictures in tiles of 4 x 4 tokens, row by row, and a thumbnail where there are several; a tile a frame.

A token of a tile shows one cell; in a thumbnail it shows as many as the picture has tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from core_bench.bundled.clip import FPS
from core_bench.bundled.feeds import Layout, Pixels, Plan, plain_positions
from core_bench.bundled.feeds.llava_onevision import as_CHW, tiled

TILE = 4  # cells a side of a tile, and of a frame
MOST_PAGES, MOST_SIDE = 12, 16


class MediaFeed:
    """Pixels go through the real processors."""

    probe_plans = (Plan("picture", 32, 1, TILE, TILE, (10, 10)),)

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.encode = lru_cache(maxsize=4096)(
            lambda text: tuple(processor.tokenizer.encode(text, add_special_tokens=False))
        )
        self.image_id = processor.image_token_id
        self.visual_ids = (self.image_id,)

    def fit(self, plan: Plan) -> Plan:
        return tiled(plan, 2 * TILE, MOST_SIDE, MOST_PAGES)

    def length(self, plan: Plan) -> int:
        if plan.kind == "clip":
            return plan.parts * FPS * (TILE * TILE + 10)
        return len(self.pictures(plan.parts, plan.rows, plan.cols).ids)

    def pictures(self, parts: int, rows: int, cols: int) -> Layout:
        across, tiles = cols // TILE, rows // TILE * (cols // TILE)
        views = tiles + (tiles > 1)
        one = [*self.encode("<img>"), *([self.image_id] * (views * TILE * TILE)), *self.encode("</img>")]

        def at(part: int, row: int, col: int) -> tuple[int, ...]:
            start = part * len(one) + 1
            tile = row // TILE * across + col // TILE
            found = [start + tile * TILE * TILE + row % TILE * TILE + col % TILE]
            if tiles > 1:
                found.append(start + tiles * TILE * TILE + row * TILE // rows * TILE + col * TILE // cols)
            return tuple(found)

        return Layout(one * parts, at)

    def clip(self, stamps: Sequence[float], rows: int, cols: int, wrapped: bool = True) -> Layout:
        ids: list[int] = []
        starts = []
        for frame in range(len(stamps) * FPS):
            newline = "\n" if frame else ""
            ids += self.encode(f"{newline}Frame{frame + 1}: <img>")
            starts.append(len(ids))
            ids += [*([self.image_id] * (rows * cols)), *self.encode("</img>")]

        def at(part: int, row: int, col: int) -> tuple[int, ...]:
            return tuple(starts[part * FPS + frame] + row * cols + col for frame in range(FPS))

        return Layout(ids, at)

    def inputs(self, plan: Plan, media: Sequence[Pixels], ids: torch.Tensor) -> dict[str, torch.Tensor]:
        if plan.kind == "clip":
            clips = [as_CHW(pixels).repeat_interleave(FPS, dim=0) for pixels in media]
            read = self.processor.video_processor(videos=clips, do_sample_frames=False, return_tensors="pt")
            return {"pixel_values": read["pixel_values_videos"].flatten(0, 1)}
        pictures = [picture for pixels in media for picture in as_CHW(pixels)]
        return {"pixel_values": self.processor.image_processor(images=pictures, return_tensors="pt")["pixel_values"]}

    def positions(self, model: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return plain_positions(inputs)
