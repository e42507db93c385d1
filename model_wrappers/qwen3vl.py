"""Qwen3-VL: one block of visual tokens per picture, one per temporal group of a video, with a time stamp before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from transformers.video_utils import VideoMetadata

from core_bench.media import Visual
from core_bench.model_wrappers.base import Components, ModelWrapper, frames_TCHW, runs_of
from core_bench.schema import TokenMap, VisualBlock

_PARTS = ("image_processor", "video_processor")
# What the processors and the model's config call the same size.
_SIZES = {
    "patch_size": "patch_size",
    "merge_size": "spatial_merge_size",
    "temporal_patch_size": "temporal_patch_size",
}


class Qwen3VL(ModelWrapper):
    """Qwen3-VL of any size, dense or MoE; a picture is resized whole, never cropped: pixels map to cells by a scale.

    `max_pixels` caps the pixels of each picture after resizing, and for each video those of all its frames together,
    as the processor counts them.
    """

    FAMILY: ClassVar[str] = "qwen3vl"
    MODEL_TYPES: ClassVar[tuple[str, ...]] = ("qwen3_vl", "qwen3_vl_moe")
    BOXES: ClassVar[str] = "thousandths"
    COMPONENTS: ClassVar[Components] = Components(
        language_model="model.language_model", vision_tower="model.visual", lm_head="lm_head"
    )
    MUST_AGREE: ClassVar[tuple[tuple[str, str], ...]] = (
        ("vision_start_token_id", "vision_start_token_id"),
        ("vision_end_token_id", "vision_end_token_id"),
        *((f"{part}.{size}", f"vision_config.{_SIZES[size]}") for part in _PARTS for size in _SIZES),
    )

    def __init__(self, model: Any, processor: Any, *, checkpoint: str = "", revision: str | None = None) -> None:
        super().__init__(model, processor, checkpoint=checkpoint, revision=revision)
        video = processor.video_processor
        if getattr(video, "cap_pixels_per_frame", False) is None:
            # Newer releases warn that an unset cap will change meaning: pinned, so that token counts stay the same.
            video.cap_pixels_per_frame = False

    def media_options(self, visuals: Sequence[Visual], max_pixels: int | None) -> dict[str, Any]:
        """Pixel budgets; for videos their frame numbers and rates too, of which the prompt's time stamps are made."""
        clips = [self._whole_group(visual) for visual in visuals if visual.kind == "clip"]
        # Lists of indices are made afresh: the processor appends its padding frames to the one it is given. It divides
        # them by the rate, so for a file of variable rate they are ticks.
        metadata = [
            VideoMetadata(
                total_num_frames=clip.n_frames, fps=clip.fps, frames_indices=list(map(clip.tick, clip.frames))
            )
            for clip in clips
        ]
        as_they_are = {"do_sample_frames": False, "video_metadata": metadata, "input_data_format": "channels_first"}
        pictured = any(visual.kind == "picture" for visual in visuals)
        return {
            "videos": [frames_TCHW(clip) for clip in clips],
            "images_kwargs": _budget(self.processor.image_processor, max_pixels) if pictured else {},
            "videos_kwargs": as_they_are | _budget(self.processor.video_processor, max_pixels) if clips else {},
        }

    def token_map(
        self, ids: Sequence[int], inputs: Mapping[str, Any], visuals: Sequence[Visual], max_pixels: int | None
    ) -> TokenMap:
        """The blocks from the grids and ids that the processor returned; markers are the vision start and end tokens.

        The template puts a start and an end around a whole video too, besides those around each of its groups.
        """
        blocks = self._blocks(ids, inputs, visuals)
        starts, ends = self.processor.vision_start_token_id, self.processor.vision_end_token_id
        for block in blocks:
            last = block.start + block.rows * block.cols
            if block.start == 0 or ids[block.start - 1] != starts or last >= len(ids) or ids[last] != ends:
                raise RuntimeError(f"no vision start and end tokens around the visual tokens at {block.start}")
        markers = tuple(position for position, token in enumerate(ids) if token in (starts, ends))
        return TokenMap(blocks=blocks, length=len(ids), markers=markers)

    @property
    def _group_size(self) -> int:
        """Frames merged into one temporal group."""
        return int(self.processor.video_processor.temporal_patch_size)

    def _whole_group(self, clip: Visual) -> Visual:
        """A clip of at least one temporal group: the processor refuses fewer frames, so the last one is repeated."""
        missing = max(0, self._group_size - len(clip.pictures))
        return _extended(clip, missing) if missing else clip

    def _blocks(
        self, ids: Sequence[int], inputs: Mapping[str, Any], visuals: Sequence[Visual]
    ) -> tuple[VisualBlock, ...]:
        """The blocks in prompt order, from the grids and ids that the processor returned."""
        image_runs = iter(runs_of(ids, self.processor.image_token_id))
        video_runs = iter(runs_of(ids, self.processor.video_token_id))
        image_grids = iter(_grids(inputs, "image_grid_thw"))
        video_grids = iter(_grids(inputs, "video_grid_thw"))
        blocks: list[VisualBlock] = []
        for medium, visual in enumerate(visuals):
            if visual.kind == "picture":
                merge = int(self.processor.image_processor.merge_size)
                blocks += self._medium_blocks(medium, visual, next(image_grids), merge, image_runs)
            else:
                merge = int(self.processor.video_processor.merge_size)
                blocks += self._medium_blocks(medium, visual, next(video_grids), merge, video_runs)
        spare = [*image_runs, *video_runs]
        if spare:
            raise RuntimeError(
                f"{len(spare)} runs of visual tokens belong to no medium, first at position {spare[0][0]}"
            )
        return tuple(sorted(blocks, key=lambda block: block.start))

    def _medium_blocks(
        self, medium: int, visual: Visual, grid: tuple[int, int, int], merge: int, runs: Iterable[tuple[int, int]]
    ) -> list[VisualBlock]:
        """One block per temporal group of one medium; `grid` counts patches (groups, rows, columns) before merging."""
        groups, rows, cols = grid[0], grid[1] // merge, grid[2] // merge
        members = self._members(visual, groups)
        width, height = visual.size
        blocks = []
        for group, (start, length) in zip(range(groups), runs, strict=False):
            if length != rows * cols:
                raise RuntimeError(
                    f"{length} visual tokens at position {start}, the processor's grid has {rows} x {cols}"
                )
            merged = members[group]
            ticks = [visual.tick(frame) for frame in merged]
            seconds = (ticks[0] + ticks[-1]) / 2 / visual.fps if ticks and visual.fps else None
            blocks.append(
                VisualBlock(
                    medium=medium,
                    start=start,
                    rows=rows,
                    cols=cols,
                    row_stride=cols,
                    scale_x=cols / width,
                    scale_y=rows / height,
                    frames=tuple(dict.fromkeys(merged)),
                    seconds=seconds,
                )
            )
        if len(blocks) != groups:
            raise RuntimeError(f"{visual.path}: {groups} temporal groups, but only {len(blocks)} runs of visual tokens")
        return blocks

    def _members(self, visual: Visual, groups: int) -> list[tuple[int, ...]]:
        """The native frames of each group; the last is filled up with its last frame. A picture: one empty group."""
        if visual.kind == "picture":
            if groups != 1:
                raise RuntimeError(f"{visual.path}: a picture became {groups} temporal groups")
            return [()]
        size = self._group_size
        frames = visual.frames + visual.frames[-1:] * (-len(visual.frames) % size)
        if len(frames) != groups * size:
            raise RuntimeError(f"{visual.path}: {len(visual.frames)} frames became {groups} groups of {size}")
        return [frames[at : at + size] for at in range(0, len(frames), size)]


def _extended(clip: Visual, missing: int) -> Visual:
    pictures = clip.pictures + clip.pictures[-1:] * missing
    return replace(clip, pictures=pictures, frames=clip.frames + clip.frames[-1:] * missing)


def _budget(processor: Any, max_pixels: int | None) -> dict[str, Any]:
    """The `size` option that caps pixels at `max_pixels`; the lower bound gives way when it lies above."""
    if max_pixels is None:
        return {}
    return {"size": {"shortest_edge": min(processor.size["shortest_edge"], max_pixels), "longest_edge": max_pixels}}


def _grids(inputs: Mapping[str, Any], name: str) -> list[tuple[int, int, int]]:
    grid_M3 = inputs.get(name)
    return [] if grid_M3 is None else [(int(t), int(h), int(w)) for t, h, w in grid_M3.tolist()]
