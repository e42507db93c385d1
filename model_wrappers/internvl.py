"""InternVL (Hugging Face format): a picture in tiles and a thumbnail of it, a clip in one tile a frame.

The picture is squeezed on to a canvas of whole tiles, whatever its aspect ratio; the tiles follow each other row by row
inside one `<img>` ... `</img>`, the thumbnail last. Pixel shuffle leaves the tokens of a tile in raster order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas

from core_bench.errors import SampleError
from core_bench.media import Visual, read_visual
from core_bench.model_wrappers.base import Components, ModelWrapper, as_noise, runs_of
from core_bench.schema import Prepared, Sample, TokenMap, View, VisualBlock

_Run = tuple[int, int]  # first position, number of tokens


class InternVL(ModelWrapper):
    """InternVL of any size, in the format that transformers loads without code from the checkpoint (names in `-HF`)."""

    FAMILY: ClassVar[str] = "internvl"
    MODEL_TYPES: ClassVar[tuple[str, ...]] = ("internvl",)
    COMPONENTS: ClassVar[Components] = Components(
        language_model="model.language_model", vision_tower="model.vision_tower", lm_head="lm_head"
    )

    def prepare(
        self,
        sample: Sample,
        *,
        frames: int | None = None,
        fps: float | None = None,
        max_pixels: int | None = None,
        noise_seed: int | None = None,
    ) -> Prepared:
        """Inputs of one sample: the media in order, then the prompt; `prime` after the generation prompt.

        Videos: `frames` or `fps`; with neither, up to 32 frames, uniformly spaced. `max_pixels` caps the pixels of a
        picture's tiles, its thumbnail apart: as many whole tiles as fit, at least one and never more than the
        checkpoint's own limit. It does not touch videos, whose frames are one tile each. `noise_seed` replaces every
        picture and frame by seeded noise of the same size. Raises SampleError for media that cannot be read, a medium
        the processor refuses, videos of unequal numbers of frames, and control tokens in the sample's texts.
        """
        visuals = [read_visual(medium, frames=frames, fps=fps) for medium in sample.media]
        if noise_seed is not None:
            visuals = [as_noise(visual, sample.id, n, noise_seed) for n, visual in enumerate(visuals)]
        pictures = [visual.pictures[0] for visual in visuals if visual.kind == "picture"]
        clips = [visual for visual in visuals if visual.kind == "clip"]
        _refuse_unequal(clips)
        limits = self._tile_limits(max_pixels)
        chat = self.render_chat(sample, [{"type": "image" if v.kind == "picture" else "video"} for v in visuals])
        try:
            inputs = self.processor(
                text=[chat.text],
                images=pictures or None,
                videos=[_frames_TCHW(clip) for clip in clips] or None,
                return_tensors="pt",
                add_special_tokens=self.adds_bos(chat.text),
                images_kwargs={"min_patches": limits[0], "max_patches": limits[1]} if pictures else {},
                videos_kwargs={"do_sample_frames": False, "input_data_format": "channels_first"} if clips else {},
            )
        except ValueError as error:
            names = ", ".join(visual.path for visual in visuals) or "no media"
            raise SampleError(f"{names}: refused by the processor ({str(error).splitlines()[0]})") from error
        ids = inputs["input_ids"][0].tolist()
        return Prepared(
            inputs=dict(inputs),
            token_map=self._token_map(ids, inputs, visuals, limits),
            spans=self.query_spans(sample, chat, ids),
            frames=tuple(visual.frames for visual in visuals),
        )

    def _tile_limits(self, max_pixels: int | None) -> tuple[int, int]:
        """Fewest and most tiles of a picture, the thumbnail not counted."""
        processor = self.processor.image_processor
        fewest, most = int(processor.min_patches), int(processor.max_patches)
        if max_pixels is not None:
            most = min(most, max(1, max_pixels // (processor.size["height"] * processor.size["width"])))
        return min(fewest, most), most

    def _token_map(
        self, ids: Sequence[int], inputs: Mapping[str, Any], visuals: Sequence[Visual], limits: tuple[int, int]
    ) -> TokenMap:
        """The blocks in prompt order, from the ids and tiles that the processor returned."""
        runs = runs_of(ids, self.processor.image_token_id)
        side = self._tile_side(inputs)
        markers = self._markers(ids, runs)
        shown = inputs["pixel_values"].shape[0] if "pixel_values" in inputs else 0
        if sum(length for _, length in runs) != shown * side * side:
            raise RuntimeError(
                f"{sum(length for _, length in runs)} visual tokens for {shown} tiles of {side} x {side} tokens"
            )
        left = iter(runs)
        blocks: list[VisualBlock] = []
        for medium, visual in enumerate(visuals):
            if visual.kind == "picture":
                blocks += self._picture_blocks(medium, visual, _take(left, 1, visual)[0], side, limits)
            else:
                blocks += _clip_blocks(medium, visual, _take(left, len(visual.pictures), visual), side)
        if spare := list(left):
            raise RuntimeError(
                f"{len(spare)} runs of visual tokens belong to no medium, first at position {spare[0][0]}"
            )
        return TokenMap(blocks=tuple(blocks), length=len(ids), markers=markers)

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
        self, medium: int, visual: Visual, run: _Run, side: int, limits: tuple[int, int]
    ) -> list[VisualBlock]:
        """One block a tile, row by row, and the thumbnail's; a single tile shows the whole picture."""
        start, length = run
        tiles = length // (side * side)
        width, height = visual.size
        if tiles == 1:
            return [_block(medium, start, side, side / width, side / height)]
        size = self.processor.image_processor.size
        # The output says how many tiles there are, not how they lie: their grid is the processor's own choice, redone.
        across, down = get_optimal_tiled_canvas((height, width), (size["height"], size["width"]), *limits)
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
        seconds = frame / clip.fps if clip.fps else None
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


def _refuse_unequal(clips: Sequence[Visual]) -> None:
    """The processor stacks all clips of a prompt in one tensor."""
    counts = [len(clip.pictures) for clip in clips]
    if len(set(counts)) > 1:
        names = ", ".join(f"{clip.path} ({count} frames)" for clip, count in zip(clips, counts, strict=True))
        raise SampleError(f"{names}: InternVL's processor needs the same number of frames of every video in a prompt")


def _frames_TCHW(clip: Visual) -> torch.Tensor:
    """uint8 [frames, 3, height, width]; where a file changes its resolution, frames are resized to the first."""
    pictures = [p if p.size == clip.size else p.resize(clip.size) for p in clip.pictures]
    return torch.from_numpy(np.stack([np.asarray(p) for p in pictures])).permute(0, 3, 1, 2).contiguous()
