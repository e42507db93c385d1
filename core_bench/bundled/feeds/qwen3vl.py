"""Qwen3-VL: one token a cell. Pixels are cut into patches here as the real processors do, ten times faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from core_bench.bundled.feeds import Layout, Pixels, Plan
from core_bench.bundled.scene import CELL

PATCH, MERGE, TEMPORAL = 16, 2, 2


def patchify(pixels: np.ndarray) -> torch.Tensor:
    """uint8 [H, W, 3] to normalised float32 patches [H/16 * W/16, 3*2*16*16], in the processor's 2x2-block order."""
    height, width, channels = pixels.shape
    x = torch.from_numpy(pixels).permute(2, 0, 1).float() / 127.5 - 1.0
    block = (channels, height // CELL, MERGE, PATCH, width // CELL, MERGE, PATCH)
    x = x.reshape(block).permute(1, 4, 2, 5, 0, 3, 6)
    x = x.unsqueeze(5).expand(-1, -1, -1, -1, -1, TEMPORAL, -1, -1)
    return x.reshape(height * width // PATCH**2, channels * TEMPORAL * PATCH * PATCH)


class MediaFeed:
    """Sizes are free: any number of cells has as many tokens."""

    probe_plans = (Plan("picture", 32, 1, 4, 4, (10, 10)),)

    def __init__(self, processor: Any) -> None:
        self.encode = lru_cache(maxsize=4096)(
            lambda text: tuple(processor.tokenizer.encode(text, add_special_tokens=False))
        )
        self.image_id, self.video_id = processor.image_token_id, processor.video_token_id
        self.visual_ids = (self.image_id, self.video_id)

    def fit(self, plan: Plan) -> Plan:
        return plan

    def length(self, plan: Plan) -> int:
        return plan.parts * (plan.rows * plan.cols + (11 if plan.kind == "clip" else 2))

    def pictures(self, parts: int, rows: int, cols: int) -> Layout:
        opened, closed = self.encode("<|vision_start|>"), self.encode("<|vision_end|>")
        one = [*opened, *([self.image_id] * (rows * cols)), *closed]
        return Layout(one * parts, lambda part, row, col: (part * len(one) + len(opened) + row * cols + col,))

    def clip(self, stamps: Sequence[float], rows: int, cols: int, wrapped: bool = True) -> Layout:
        """One group for each time stamp. `wrapped`: the processor of transformers 5.24 leaves the template's own vision
        marks around the groups, older ones replace them."""
        ids, starts = list(self.encode("<|vision_start|>")) if wrapped else [], []
        for stamp in stamps:
            ids += self.encode(f"<{stamp:.1f} seconds><|vision_start|>")
            starts.append(len(ids))
            ids += [*([self.video_id] * (rows * cols)), *self.encode("<|vision_end|>")]
        ids += self.encode("<|vision_end|>") if wrapped else ()
        return Layout(ids, lambda part, row, col: (starts[part] + row * cols + col,))

    def inputs(self, plan: Plan, media: Sequence[Pixels], ids: torch.Tensor) -> dict[str, torch.Tensor]:
        patches = torch.cat([patchify(picture) for pixels in media for picture in pixels])
        height, width = plan.rows * MERGE, plan.cols * MERGE
        kinds = {"mm_token_type_ids": ((ids == self.image_id) + 2 * (ids == self.video_id)).int()}
        if plan.kind == "clip":
            grids = torch.tensor([[plan.parts, height, width]] * len(media))
            return kinds | {"pixel_values_videos": patches, "video_grid_thw": grids}
        grids = torch.tensor([[1, height, width]] * sum(map(len, media)))
        return kinds | {"pixel_values": patches, "image_grid_thw": grids}

    def positions(self, model: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """M-RoPE: int64 [3, rows, columns]."""
        grids = {name: grid for name, grid in inputs.items() if name.endswith("grid_thw")}
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        kinds = inputs["mm_token_type_ids"]
        positions: torch.Tensor
        positions, _ = model.model.get_rope_index(ids, mm_token_type_ids=kinds, attention_mask=mask, **grids)
        return positions
