"""LLaVA-OneVision: one picture whole and in tiles, several pictures whole, a clip in pooled frames.

A picture alone in its prompt comes twice: squeezed into one tile, then resized and centred on a canvas of tiles, whose
tokens form one grid without the rows or columns of padding, a newline token after every row. A grid that is too large
is reduced by bilinear interpolation. Several pictures are padded to a square and come in one tile each, a newline token
after each, which is how this family was trained on them. A frame is squeezed into one tile and pooled to half as many
rows and columns; one newline token ends a clip.

Where patches do not fill a tile (384 pixels are 27 patches of 14 and 6 pixels more), its last pixels reach no token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from PIL import Image
from transformers.image_processing_utils import get_patch_output_size, select_best_resolution
from transformers.image_utils import ChannelDimension
from transformers.models.llava_onevision.modeling_llava_onevision import unpad_image

from core_bench.errors import SampleError, UserError
from core_bench.media import Visual
from core_bench.model_wrappers.base import Components, ModelWrapper
from core_bench.model_wrappers.llava_grid import Span, Tile
from core_bench.schema import TokenMap, View, VisualBlock

_Size = tuple[int, int]  # height, width

_REDUCED_ABOVE = 1.1  # a grid is reduced where its side exceeds the limit by more than this factor


class LlavaOneVision(ModelWrapper):
    """LLaVA-OneVision of any size.

    `max_pixels` caps the pixels of the canvas of tiles of a picture that is alone in its prompt: such a picture is
    reduced, before anything else, to fit the best canvas that is small enough, or the smallest there is. Several
    pictures and frames are one tile each, whatever `max_pixels` says.
    """

    FAMILY: ClassVar[str] = "llava_onevision"
    MODEL_TYPES: ClassVar[tuple[str, ...]] = ("llava_onevision",)
    BOXES: ClassVar[str] = "shares"
    COMPONENTS: ClassVar[Components] = Components(
        language_model="model.language_model", vision_tower="model.vision_tower", lm_head="lm_head"
    )

    def __init__(self, model: Any, processor: Any, *, checkpoint: str = "", revision: str | None = None) -> None:
        super().__init__(model, processor, checkpoint=checkpoint, revision=revision)
        vision = model.config.vision_config
        self.tile = Tile(int(vision.image_size), int(vision.patch_size))
        self.canvases = _canvases(model.config.image_grid_pinpoints)
        self._must_agree()

    def media_options(self, visuals: Sequence[Visual], max_pixels: int | None) -> dict[str, Any]:
        pictures = [visual for visual in visuals if visual.kind == "picture"]
        clips = [visual for visual in visuals if visual.kind == "clip"]
        counts = [len(clip.pictures) for clip in clips]
        if len(set(counts)) > 1:
            names = ", ".join(f"{clip.path} ({count} frames)" for clip, count in zip(clips, counts, strict=True))
            raise SampleError(f"{names}: LLaVA-OneVision needs videos of one prompt to have equally many frames")
        if len(pictures) == 1:
            shown = [self._within(pictures[0], max_pixels)]
        else:
            shown = [picture.pictures[0] for picture in pictures]
        return {
            "images": [shown] if shown else [],  # nested: the pictures of one prompt
            "videos_kwargs": {"do_sample_frames": False, "input_data_format": "channels_first"} if clips else {},
        }

    def token_map(
        self, ids: Sequence[int], inputs: Mapping[str, Any], visuals: Sequence[Visual], max_pixels: int | None
    ) -> TokenMap:
        pictures = [(n, visual) for n, visual in enumerate(visuals) if visual.kind == "picture"]
        clips = [(n, visual) for n, visual in enumerate(visuals) if visual.kind == "clip"]
        sizes = [(int(height), int(width)) for height, width in inputs.get("image_sizes", ())]
        if len(sizes) != len(pictures):
            raise RuntimeError(f"{len(pictures)} pictures, but {len(sizes)} came from the processor")
        blocks: list[VisualBlock] = []
        tokens = _Tokens(ids, self.processor.image_token_id)
        tiles = self._tiles(inputs, "pixel_values")
        for (medium, visual), size in zip(pictures, sizes, strict=True):
            if len(pictures) == 1:
                blocks += self._alone(medium, visual, size, tiles, tokens)
            else:
                blocks.append(self._squared(medium, visual, tiles, tokens))
        frames, video_tokens = self._tiles(inputs, "pixel_values_videos"), _Tokens(ids, self.processor.video_token_id)
        for medium, visual in clips:
            blocks += self._pooled(medium, visual, frames, video_tokens)
        cells = {position for block in blocks for position in block.positions()}
        return TokenMap(
            blocks=tuple(sorted(blocks, key=lambda block: block.start)),
            length=len(ids),
            newlines=tuple(sorted({*tokens.all_taken(), *video_tokens.all_taken()} - cells)),
        )

    def _must_agree(self) -> None:
        """The model unpacks what the processor packed: UserError where their settings differ."""
        config, processor = self.model.config, self.processor
        one_tile = {"height": self.tile.pixels, "width": self.tile.pixels}
        for what, found, expected in (
            ("size of pictures", _plain(processor.image_processor.size), one_tile),
            ("size of frames", _plain(processor.video_processor.size), one_tile),
            ("num_image_tokens", processor.num_image_tokens, self.tile.side**2),
            ("image_grid_pinpoints", _canvases(processor.image_processor.image_grid_pinpoints), self.canvases),
            ("vision_aspect_ratio", processor.vision_aspect_ratio, config.vision_aspect_ratio),
            ("vision_feature_select_strategy", processor.vision_feature_select_strategy, "full"),
            ("vision_feature_select_strategy in config.json", config.vision_feature_select_strategy, "full"),
        ):
            if found != expected:
                name = self.checkpoint or "the processor"
                raise UserError(f"--checkpoint {name}: {what}: the model needs {expected}, the processor has {found}")

    def _tiles(self, inputs: Mapping[str, Any], name: str) -> int:
        """Tiles of each picture, or of each clip; 0 without any."""
        if name not in inputs:
            return 0
        _, tiles, _, height, width = inputs[name].shape
        if {height, width} != {self.tile.pixels}:
            raise RuntimeError(f"tiles of {width} x {height} pixels came, expected {self.tile.pixels} on a side")
        return int(tiles)

    def _within(self, visual: Visual, max_pixels: int | None) -> Image.Image:
        """The picture, reduced where its canvas would have more than `max_pixels`.

        A reduced picture is as wide or as high as its canvas, so the processor chooses this one or one of the same or
        fewer pixels.
        """
        picture = visual.pictures[0]
        size = picture.height, picture.width
        canvas = _canvas(visual, size, self.canvases)
        if max_pixels is None or math.prod(canvas) <= max_pixels:
            return picture
        most = max(max_pixels, min(math.prod(each) for each in self.canvases))
        canvas = _canvas(visual, size, [each for each in self.canvases if math.prod(each) <= most])
        height, width = _resized(size, canvas)
        return picture.resize((width, height), Image.Resampling.BICUBIC)

    def _alone(self, medium: int, visual: Visual, size: _Size, tiles: int, tokens: _Tokens) -> list[VisualBlock]:
        """A picture alone in its prompt: its whole, then the grid of its tiles."""
        side, canvas = self.tile.side, _canvas(visual, size, self.canvases)
        down, across = (pixels // self.tile.pixels for pixels in canvas)
        if tiles != 1 + down * across:
            raise RuntimeError(f"{visual.path}: {tiles} tiles came, expected one and {across} x {down}")
        kept = unpad_image(torch.empty((1, down * side, across * side), device="meta"), size).shape[1:]
        most = int(self.model.config.vision_aspect_ratio.removeprefix("anyres_max_"))
        excess = math.sqrt(math.prod(kept) / (most * side**2))
        rows, cols = (int(cells // excess) if excess > _REDUCED_ABOVE else cells for cells in kept)
        whole, grid = tokens.take(side**2, visual), tokens.take(rows * (cols + 1), visual)
        (high, wide), (width, height) = _resized(size, canvas), visual.size
        high_spans = self.tile.joined(height, high, down, kept[0], rows)
        wide_spans = self.tile.joined(width, wide, across, kept[1], cols)
        return [
            _block(medium, whole, side, self.tile.whole(height), self.tile.whole(width), view="thumbnail"),
            *(_block(medium, grid, cols + 1, y, x, view="tiles") for y in high_spans for x in wide_spans),
        ]

    def _squared(self, medium: int, visual: Visual, tiles: int, tokens: _Tokens) -> VisualBlock:
        """One of several pictures, centred on a square; cells of padding alone are left out of the block."""
        if tiles != 1:
            raise RuntimeError(f"{visual.path}: {tiles} tiles came, expected one for each of several pictures")
        start = tokens.take(self.tile.side**2 + 1, visual)
        width, height = visual.size
        square = max(width, height)
        return _block(
            medium, start, self.tile.side, self.tile.centred(height, square), self.tile.centred(width, square)
        )

    def _pooled(self, medium: int, clip: Visual, frames: int, tokens: _Tokens) -> list[VisualBlock]:
        """One block a frame."""
        if frames != len(clip.pictures):
            raise RuntimeError(f"{clip.path}: {len(clip.pictures)} frames became {frames}")
        wide, high = (self.tile.pooled(extent) for extent in clip.size)
        size = high.cells * wide.cells
        start = tokens.take(frames * size + 1, clip)
        return [
            _block(medium, start + n * size, wide.cells, high, wide, frame=frame, seconds=clip.second(frame))
            for n, frame in enumerate(clip.frames)
        ]


class _Tokens:
    """The visual tokens of one kind, handed out in order; media may stand side by side with nothing between them."""

    def __init__(self, ids: Sequence[int], token_id: int) -> None:
        self.positions = [position for position, token in enumerate(ids) if token == token_id]
        self.taken = 0

    def take(self, n: int, visual: Visual) -> int:
        """The first of the next `n` positions, without a gap; 0 where `n` is 0."""
        mine = self.positions[self.taken : self.taken + n]
        if len(mine) != n or (mine and mine[-1] - mine[0] != n - 1):
            raise RuntimeError(f"{visual.path}: {n} visual tokens expected, but they are not there in one piece")
        self.taken += n
        return mine[0] if mine else 0

    def all_taken(self) -> list[int]:
        """All positions; RuntimeError where some belong to no medium."""
        if self.taken != len(self.positions):
            raise RuntimeError(f"{len(self.positions) - self.taken} visual tokens belong to no medium")
        return self.positions


def _block(
    medium: int,
    start: int,
    stride: int,
    y: Span,
    x: Span,
    *,
    view: View = "whole",
    frame: int | None = None,
    seconds: float | None = None,
) -> VisualBlock:
    """The block of the cells y x x of a grid at `start` with `stride` tokens a row."""
    return VisualBlock(
        medium=medium,
        start=start + y.first * stride + x.first,
        rows=y.cells,
        cols=x.cells,
        row_stride=stride,
        scale_x=float(x.scale),
        scale_y=float(y.scale),
        offset_x=float(x.offset),
        offset_y=float(y.offset),
        frames=() if frame is None else (frame,),
        seconds=seconds,
        view=view,
    )


def _canvas(visual: Visual, size: _Size, canvases: Sequence[_Size]) -> _Size:
    """The best canvas of tiles for a picture, chosen as the processor and the model choose it."""
    best: _Size | None = select_best_resolution(size, list(canvases))
    if best is None:
        raise SampleError(f"{visual.path}: {size[1]} x {size[0]} pixels are too narrow for any canvas of tiles")
    return best


def _resized(size: _Size, canvas: _Size) -> _Size:
    """Height and width of a picture on its canvas."""
    height, width = get_patch_output_size(torch.empty((3, *size), device="meta"), canvas, ChannelDimension.FIRST)
    return int(height), int(width)


def _canvases(pinpoints: Sequence[Sequence[int]]) -> list[_Size]:
    return [(int(height), int(width)) for height, width in pinpoints]


def _plain(size: Mapping[str, Any]) -> dict[str, int]:
    """A processor's size without the entries that are unset."""
    return {name: int(value) for name, value in dict(size).items() if value is not None}
