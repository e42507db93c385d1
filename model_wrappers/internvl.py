"""InternVL (Hugging Face format): a picture in tiles and a thumbnail of it, a clip in one tile a frame.

The picture is squeezed on to a canvas of whole tiles, whatever its aspect ratio; the tiles follow each other row by row
inside one `<img>` ... `</img>`, the thumbnail last. Pixel shuffle leaves the tokens of a tile in raster order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas

from core_bench.errors import SampleError
from core_bench.media import Visual
from core_bench.model_wrappers.base import Components, ModelWrapper, runs_of
from core_bench.schema import TokenMap, View, VisualBlock

_Run = tuple[int, int]  # first position, number of tokens


class InternVL(ModelWrapper):
    """InternVL of any size, in the format that transformers loads without code from the checkpoint (names in `-HF`).

    `max_pixels` caps the pixels of a picture's tiles, its thumbnail apart: as many whole tiles as fit, at least one and
    never more than the checkpoint's own limit. It does not touch videos, whose frames are one tile each.
    """

    FAMILY: ClassVar[str] = "internvl"
    MODEL_TYPES: ClassVar[tuple[str, ...]] = ("internvl",)
    BOXES: ClassVar[str] = "thousandths"
    COMPONENTS: ClassVar[Components] = Components(
        language_model="model.language_model", vision_tower="model.vision_tower", lm_head="lm_head"
    )
    MUST_AGREE: ClassVar[tuple[tuple[str, str], ...]] = (
        ("image_seq_length", "image_seq_length"),
        ("image_processor.size", "vision_config.image_size"),
        ("video_processor.size", "vision_config.image_size"),
    )

    def media_options(self, visuals: Sequence[Visual], max_pixels: int | None) -> dict[str, Any]:
        clips = [visual for visual in visuals if visual.kind == "clip"]
        counts = [len(clip.pictures) for clip in clips]
        if len(set(counts)) > 1:
            names = ", ".join(f"{clip.path} ({count} frames)" for clip, count in zip(clips, counts, strict=True))
            raise SampleError(f"{names}: InternVL's processor needs videos of one prompt to have equally many frames")
        fewest, most = self._tile_limits(max_pixels)
        return {
            "images_kwargs": {"min_patches": fewest, "max_patches": most} if len(clips) < len(visuals) else {},
            "videos_kwargs": {"do_sample_frames": False, "input_data_format": "channels_first"} if clips else {},
        }

    def token_map(
        self, ids: Sequence[int], inputs: Mapping[str, Any], visuals: Sequence[Visual], max_pixels: int | None
    ) -> TokenMap:
        runs = runs_of(ids, self.processor.image_token_id)
        side = self._tile_side(inputs)
        tiles, tokens = len(inputs.get("pixel_values", ())), sum(length for _, length in runs)
        if tokens != tiles * side * side:
            raise RuntimeError(f"{tokens} visual tokens for {tiles} tiles of {side} x {side} tokens")
        markers = self._markers(ids, runs)
        left = iter(runs)
        blocks: list[VisualBlock] = []
        for medium, visual in enumerate(visuals):
            if visual.kind == "picture":
                (run,) = _take(left, 1, visual)
                blocks += self._picture_blocks(medium, visual, run, side, max_pixels)
            else:
                blocks += _clip_blocks(medium, visual, _take(left, len(visual.pictures), visual), side)
        if spare := list(left):
            raise RuntimeError(
                f"{len(spare)} runs of visual tokens belong to no medium, first at position {spare[0][0]}"
            )
        return TokenMap(blocks=tuple(blocks), length=len(ids), markers=markers)

    def _tile_limits(self, max_pixels: int | None) -> tuple[int, int]:
        """Fewest and most tiles of a picture, the thumbnail not counted."""
        processor = self.processor.image_processor
        fewest, most = int(processor.min_patches), int(processor.max_patches)
        if max_pixels is not None:
            most = min(most, max(1, max_pixels // (processor.size["height"] * processor.size["width"])))
        return min(fewest, most), most

    def _tile_side(self, inputs: Mapping[str, Any]) -> int:
        """Tokens along each side of a tile, from the pixels of a tile; 0 without media."""
        if "pixel_values" not in inputs:
            return 0
        height, width = inputs["pixel_values"].shape[-2:]
        config = self.model.config
        rows, cols = (
            int(pixels // patch * config.downsample_ratio)
            for pixels, patch in zip((height, width), config.vision_config.patch_size, strict=True)
        )
        if rows != cols or rows * cols != self.processor.image_seq_length:
            raise RuntimeError(
                f"a tile of {height} x {width} pixels is {rows} x {cols} tokens to the model, "
                f"{self.processor.image_seq_length} to the processor"
            )
        return rows

    def _markers(self, ids: Sequence[int], runs: Sequence[_Run]) -> tuple[int, ...]:
        """Positions of `<img>` and `</img>`: one right before and one right after every run of visual tokens."""
        expected = {at for start, length in runs for at in (start - 1, start + length)}
        named = (self.processor.start_image_token_id, self.processor.end_image_token_id)
        found = {position for position, token in enumerate(ids) if token in named}
        if found != expected:
            raise RuntimeError(f"{len(runs)} runs of visual tokens, but markers at {sorted(found ^ expected)[:4]}")
        return tuple(sorted(found))

    def _picture_blocks(
        self, medium: int, visual: Visual, run: _Run, side: int, max_pixels: int | None
    ) -> list[VisualBlock]:
        """One block a tile, row by row, and the thumbnail's; a single tile shows the whole picture."""
        start, length = run
        tiles = length // (side * side)
        width, height = visual.size
        if tiles == 1:
            return [_block(medium, start, side, side / width, side / height)]
        size = self.processor.image_processor.size
        # The output says how many tiles there are, not how they lie: their grid is the processor's own choice, redone.
        across, down = get_optimal_tiled_canvas(
            (height, width), (size["height"], size["width"]), *self._tile_limits(max_pixels)
        )
        if across * down + 1 != tiles:
            raise RuntimeError(f"{visual.path}: {tiles} tiles came, expected {across} x {down} and a thumbnail")
        blocks = [
            _block(
                medium,
                start + (row * across + col) * side * side,
                side,
                across * side / width,
                down * side / height,
                offset=(-col * side, -row * side),
                view="tiles",
            )
            for row in range(down)
            for col in range(across)
        ]
        thumbnail = start + (tiles - 1) * side * side
        return [*blocks, _block(medium, thumbnail, side, side / width, side / height, view="thumbnail")]


def _clip_blocks(medium: int, clip: Visual, runs: Sequence[_Run], side: int) -> list[VisualBlock]:
    """One block a frame."""
    width, height = clip.size
    blocks = []
    for frame, (start, length) in zip(clip.frames, runs, strict=True):
        if length != side * side:
            raise RuntimeError(f"{clip.path}: frame {frame} became {length} tokens, expected {side} x {side}")
        seconds = clip.second(frame)
        blocks.append(_block(medium, start, side, side / width, side / height, frames=(frame,), seconds=seconds))
    return blocks


def _block(
    medium: int,
    start: int,
    side: int,
    scale_x: float,
    scale_y: float,
    *,
    offset: tuple[int, int] = (0, 0),
    view: View = "whole",
    frames: tuple[int, ...] = (),
    seconds: float | None = None,
) -> VisualBlock:
    """The block of one tile of `side` x `side` tokens."""
    return VisualBlock(
        medium=medium,
        start=start,
        rows=side,
        cols=side,
        row_stride=side,
        scale_x=scale_x,
        scale_y=scale_y,
        offset_x=offset[0],
        offset_y=offset[1],
        frames=frames,
        seconds=seconds,
        view=view,
    )


def _take(runs: Iterator[_Run], n: int, visual: Visual) -> list[_Run]:
    """The next `n` runs, which show `visual`."""
    taken = list(islice(runs, n))
    if len(taken) != n:
        raise RuntimeError(f"{visual.path}: {n} runs of visual tokens expected, {len(taken)} left in the prompt")
    return taken
