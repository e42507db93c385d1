"""LLaVA-1.5: a picture is resized by its shorter side and cropped to a square in the middle, one grid of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from core_bench.errors import SampleError
from core_bench.media import Visual
from core_bench.model_wrappers.base import Components, ModelWrapper, runs_of
from core_bench.schema import TokenMap, VisualBlock


class Llava15(ModelWrapper):
    """LLaVA-1.5 of any size, pictures only; `max_pixels` changes nothing, as every picture has the same grid."""

    FAMILY: ClassVar[str] = "llava15"
    MODEL_TYPES: ClassVar[tuple[str, ...]] = ("llava",)
    COMPONENTS: ClassVar[Components] = Components(
        language_model="model.language_model", vision_tower="model.vision_tower", lm_head="lm_head"
    )
    MUST_AGREE: ClassVar[tuple[tuple[str, str], ...]] = (
        ("patch_size", "vision_config.patch_size"),
        ("image_processor.crop_size", "vision_config.image_size"),
        ("vision_feature_select_strategy", "vision_feature_select_strategy"),
    )

    def media_options(self, visuals: Sequence[Visual], max_pixels: int | None) -> dict[str, Any]:
        if clips := [visual.path for visual in visuals if visual.kind == "clip"]:
            raise SampleError(f"{', '.join(clips)}: LLaVA-1.5 reads no videos")
        return {}

    def token_map(
        self, ids: Sequence[int], inputs: Mapping[str, Any], visuals: Sequence[Visual], max_pixels: int | None
    ) -> TokenMap:
        patch = int(self.processor.patch_size)
        rows, cols = (side // patch for side in inputs["pixel_values"].shape[-2:]) if visuals else (0, 0)
        runs = runs_of(ids, self.processor.image_token_id)
        if sum(length for _, length in runs) != len(visuals) * rows * cols:
            raise RuntimeError(f"{len(visuals)} pictures of {rows} x {cols} tokens, but runs of {runs}")
        # Pictures may stand side by side with nothing between them: one run, several pictures.
        starts = [at for start, length in runs for at in range(start, start + length, rows * cols)]
        blocks = []
        for medium, (start, visual) in enumerate(zip(starts, visuals, strict=True)):
            scale_x, offset_x = self._axis(visual.size[0], min(visual.size), cols * patch)
            scale_y, offset_y = self._axis(visual.size[1], min(visual.size), rows * patch)
            blocks.append(
                VisualBlock(
                    medium=medium, start=start, rows=rows, cols=cols, row_stride=cols,
                    scale_x=scale_x, scale_y=scale_y, offset_x=offset_x, offset_y=offset_y,
                )
            )  # fmt: skip
        return TokenMap(blocks=tuple(blocks), length=len(ids))

    def _axis(self, extent: int, shorter: int, crop: int) -> tuple[float, float]:
        """Scale and offset, in cells, of an axis of `extent` pixels: resized, then cropped to `crop` in the middle."""
        resized = int(self.processor.image_processor.size["shortest_edge"] * extent / shorter)
        cut = int((resized - crop) / 2)
        patch = int(self.processor.patch_size)
        return resized / extent / patch, -cut / patch
