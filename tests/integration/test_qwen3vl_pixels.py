"""Qwen3-VL's token map against pixels: what changes in a medium changes exactly the tokens that its geometry names.

In the model under test patches do not mix: the output projections of vision attention are zero. Pixels of the original
file are changed, and all that the language model is given (embeddings and DeepStack features) is compared at every
position. Which should change is worked out here from the resize rule and the resampling kernel, without the token map;
the map must then say the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import Qwen3VLForConditionalGeneration

from core_bench.bundled.architectures import qwen3vl as bundled
from core_bench.bundled.pages import Page
from core_bench.bundled.pdf import pdf_bytes
from core_bench.evidence import omega
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.schema import Media, Prepared, Region, Sample

Pixels = NDArray[np.uint8]  # [height, width, 3], of a video [frames, height, width, 3]
Patch = tuple[int, int, int, int]  # x0, y0, x1, y1 in pixels of the medium
Place = tuple[int, int | None, Patch]  # medium, frame, patch
PATCH = 16
KERNEL = 2.0  # half the width of a bicubic kernel, in pixels of the coarser grid


@dataclass(frozen=True)
class Geometry:
    """How this model shows media: `merge` x `merge` patches a token, `temporal` frames a group, pixels from `least`
    to `most` (a video's: of all its frames)."""

    temporal: int = 2
    merge: int = 2
    least: int = 64 * 64
    most: int = 16384 * 32 * 32

    @property
    def cell(self) -> int:
        """Pixels of the resized medium along each side of a token."""
        return PATCH * self.merge

    def target(self, width: int, height: int, frames: int | None = None) -> tuple[int, int]:
        """Width and height after resizing: whole tokens; where that is too large or small, scaled as a whole first."""
        shown, padded = 1, 1
        if frames is not None:
            shown, padded = frames, round(frames / self.temporal) * self.temporal
            if min(width, height) < self.cell:
                up = max(self.cell / height, self.cell / width)
                width, height = int(width * up), int(height * up)
        wide, high = (round(side / self.cell) * self.cell for side in (width, height))
        if padded * wide * high > self.most:
            shrink = math.sqrt(shown * width * height / self.most)
            wide, high = (max(self.cell, math.floor(s / shrink / self.cell) * self.cell) for s in (width, height))
        elif padded * wide * high < self.least:
            grow = math.sqrt(self.least / (shown * width * height))
            wide, high = (math.ceil(side * grow / self.cell) * self.cell for side in (width, height))
        return wide, high


@dataclass(frozen=True)
class Shown:
    """A picture, or a group of frames, resized to `wide` x `high`; `first` is the ordinal of its first token."""

    cell: int
    width: int
    height: int
    wide: int
    high: int
    first: int

    @property
    def cols(self) -> int:
        return self.wide // self.cell

    @property
    def tokens(self) -> int:
        return self.cols * (self.high // self.cell)

    def reached(self, patch: Patch) -> set[int]:
        """Ordinals of the tokens that the resampled pixels of `patch` can reach."""
        cols = self._cells(patch[0], patch[2], self.width, self.wide)
        rows = self._cells(patch[1], patch[3], self.height, self.high)
        return {self.first + row * self.cols + col for row in rows for col in cols}

    def own(self, patch: Patch) -> set[int]:
        """The token in whose cell the middle of `patch` lies."""
        x, y = (patch[0] + patch[2]) / 2 / self.width, (patch[1] + patch[3]) / 2 / self.height
        return {self.first + int(y * self.high / self.cell) * self.cols + int(x * self.wide / self.cell)}

    def _cells(self, low: int, high: int, extent: int, resized: int) -> range:
        """Cells along one axis that pixels [low, high) of `extent` reach when resized to `resized` pixels."""
        if extent == resized:  # the kernel is zero at whole distances but its middle
            return range(low // self.cell, (high - 1) // self.cell + 1)
        scale = extent / resized
        support = KERNEL * max(scale, 1.0) + 0.5  # and half a pixel, as libraries round differently
        first = max(0, math.ceil((low + 0.5 - support) / scale - 0.5))
        last = min(resized - 1, math.floor((high - 0.5 + support) / scale - 0.5))
        return range(first // self.cell, last // self.cell + 1)


def everything_shown(
    geometry: Geometry, contents: Sequence[Pixels], frames: Sequence[Sequence[int]]
) -> tuple[dict[tuple[int, int | None], Shown], int]:
    """What a prompt shows, by medium and frame, and the number of its visual tokens. Frames of a group share tokens."""
    shown: dict[tuple[int, int | None], Shown] = {}
    at = 0
    for medium, pixels in enumerate(contents):
        height, width = pixels.shape[-3:-1]
        sampled: list[int | None] = list(frames[medium]) or [None]
        size = geometry.temporal if frames[medium] else 1
        count = max(len(sampled), size) if frames[medium] else None
        wide, high = geometry.target(width, height, count)
        for begin in range(0, len(sampled), size):
            group = Shown(geometry.cell, width, height, wide, high, at)
            shown |= {(medium, frame): group for frame in sampled[begin : begin + size]}
            at += group.tokens
    return shown, at


class _Embedded(Exception):
    """Stops a forward where the language model begins."""


def embedded(wrapper: Qwen3VL, prepared: Prepared) -> torch.Tensor:
    """What the language model is given at every position: float32 [prompt, hidden x (1 + DeepStack layers)]."""
    seen: list[torch.Tensor] = []

    def stop(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        embeds_ND, visual_N = kwargs["inputs_embeds"][0], kwargs["visual_pos_masks"][0]
        for features_VD in kwargs["deepstack_visual_embeds"]:
            deep_ND = torch.zeros_like(embeds_ND)
            deep_ND[visual_N] = features_VD
            seen.append(deep_ND)
        seen.append(embeds_ND)
        raise _Embedded

    handle = wrapper.language_model.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        with torch.inference_mode(), pytest.raises(_Embedded):
            wrapper.model(**wrapper.device_inputs(prepared))
    finally:
        handle.remove()
    return torch.cat(seen, dim=1)


def without_mixing(model: Any) -> Any:
    """Vision attention adds nothing any more, so that a patch sees itself alone."""
    for block in model.model.visual.blocks:
        torch.nn.init.zeros_(block.attn.proj.weight)
        torch.nn.init.zeros_(block.attn.proj.bias)
    return model


def without_attention(model: Any) -> Any:
    """The same, without working out what the zero weights make zero: pictures of many patches take long."""
    for block in without_mixing(model).model.visual.blocks:
        block.attn.forward = lambda hidden, **_: torch.zeros_like(hidden)
    return model


def build(geometry: Geometry) -> Qwen3VL:
    """An untrained model of one text layer."""
    tokenizer = bundled.build_tokenizer()
    config, processor = bundled.build_config(tokenizer), bundled.build_processor(tokenizer)
    config.text_config.num_hidden_layers = 1
    vision = config.vision_config
    vision.temporal_patch_size, vision.spatial_merge_size = geometry.temporal, geometry.merge
    for part in (processor.image_processor, processor.video_processor):
        part.temporal_patch_size, part.merge_size = geometry.temporal, geometry.merge
    torch.manual_seed(0)
    return Qwen3VL(without_mixing(Qwen3VLForConditionalGeneration(config).eval()), processor)


@pytest.fixture(scope="module")
def wrapper() -> Qwen3VL:
    return Qwen3VL(without_mixing(bundled.build_model()), bundled.build_processor())


@pytest.fixture(scope="module")
def quick() -> Qwen3VL:
    return Qwen3VL(without_attention(bundled.build_model()), bundled.build_processor())


def noise(*shape: int) -> Pixels:
    return np.random.default_rng(0).integers(0, 100, (*shape, 3), dtype=np.uint8)


def written(folder: Path, contents: Sequence[Pixels], pages: bool) -> tuple[Media, ...]:
    """Lossless files: pictures and videos, or with `pages` one PDF; sides of pages and frames must be even."""
    if pages:
        sheets = [Page(pixels, (0, 0, pixels.shape[1], pixels.shape[0]), (), ()) for pixels in contents]
        (folder / "a.pdf").write_bytes(pdf_bytes(sheets))
        return tuple(Media(kind="page", path=str(folder / "a.pdf"), page=number) for number in range(len(sheets)))
    media = []
    for number, pixels in enumerate(contents):
        path = folder / f"{number}.{'ppm' if pixels.ndim == 3 else 'mov'}"
        if pixels.ndim == 3:
            Image.fromarray(pixels).save(path)
        else:
            write_video(path, pixels)
        media.append(Media(kind="image" if pixels.ndim == 3 else "video", path=str(path)))
    return tuple(media)


def write_video(path: Path, frames: Pixels) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("png", rate=10)
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], "rgb24"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def patches(shown: Shown, n: int, seed: int) -> list[Patch]:
    """Middles and corners of cells; as large as a pixel of the resized medium, so that it does not vanish there."""
    rng = np.random.default_rng(seed)
    wide, high = math.ceil(shown.width / shown.wide), math.ceil(shown.height / shown.high)
    found = []
    for number in range(n):
        inside = 0.5 if number % 2 else 0.0
        x = int((rng.integers(shown.cols) + inside) * shown.cell / shown.wide * shown.width - wide / 2)
        y = int((rng.integers(shown.tokens // shown.cols) + inside) * shown.cell / shown.high * shown.height - high / 2)
        x, y = min(max(x, 0), shown.width - wide), min(max(y, 0), shown.height - high)
        found.append((x, y, x + wide, y + high))
    return found


def changed(contents: Sequence[Pixels], place: Place) -> list[Pixels]:
    medium, frame, (x0, y0, x1, y1) = place
    after = [pixels.copy() if number == medium else pixels for number, pixels in enumerate(contents)]
    (after[medium] if frame is None else after[medium][frame])[y0:y1, x0:x1] += 128
    return after


def check(
    wrapper: Qwen3VL,
    folder: Path,
    contents: Sequence[Pixels],
    geometry: Geometry = Geometry(),
    *,
    n: int = 6,
    pages: bool = False,
    **options: Any,
) -> tuple[int, int]:
    """Test `n` patches of every medium and frame; how many under rule A (one cell is reached), and B (several are)."""

    def prepared(contents: Sequence[Pixels]) -> Prepared:
        media = written(folder, contents, pages)
        sample = Sample(task="t", id="s", cluster="c", media=media, prompt="What?", question="What?", target="x")
        return wrapper.prepare(sample, **options)

    before = prepared(contents)
    base = embedded(wrapper, before)
    processor = wrapper.processor
    visual_ids = torch.tensor([processor.image_token_id, processor.video_token_id])
    visual = torch.isin(before.inputs["input_ids"][0], visual_ids).nonzero()[:, 0].tolist()
    everything, tokens = everything_shown(geometry, contents, before.frames)
    assert len(visual) == tokens
    counts = [0, 0]
    for (medium, frame), shown in everything.items():
        for patch in patches(shown, n, seed=medium):
            after = prepared(changed(contents, (medium, frame, patch)))
            assert after.token_map == before.token_map
            moved = ((embedded(wrapper, after) - base).abs().amax(1) > 1e-6).nonzero()[:, 0].tolist()
            own, reach = ({visual[n] for n in ordinals(patch)} for ordinals in (shown.own, shown.reached))
            found = omega([Region(medium=medium, frame=frame, box=patch)], before.token_map)
            several = len(reach) > 1
            counts[several] += 1
            for of_patch in (set(moved), set(found)):
                assert own <= of_patch <= reach, (medium, frame, patch)
    where = ", ".join("x".join(str(side) for side in pixels.shape[:-1][::-1]) for pixels in contents)
    print(f"{where}: {counts[0]} patches under rule A, {counts[1]} under rule B")
    return counts[0], counts[1]


def swept(wrapper: Qwen3VL, folder: Path, sizes: Sequence[tuple[int, int]], **options: Any) -> None:
    """`check` of one picture of each (width, height); both rules must have come into play."""
    counts = [check(wrapper, folder, [noise(height, width)], **options) for width, height in sizes]
    assert min(np.sum(counts, axis=0)) >= len(sizes)


def test_a_picture(wrapper: Qwen3VL, tmp_path: Path) -> None:
    swept(wrapper, tmp_path, [(28, 28), (64, 96), (451, 300), (37, 900), (3, 5), (320, 65)])


def test_pixel_limits(wrapper: Qwen3VL, tmp_path: Path) -> None:
    for most in (1, 1024, 40_000, 200_000):
        geometry = Geometry(least=min(64 * 64, most), most=most)
        check(wrapper, tmp_path, [noise(300, 451)], geometry, n=4, max_pixels=most)
    processor = bundled.build_processor()
    processor.image_processor.size = {"shortest_edge": 300_000, "longest_edge": 400_000}
    check(Qwen3VL(wrapper.model, processor), tmp_path, [noise(90, 70)], Geometry(least=300_000, most=400_000), n=4)


def test_several_pictures_and_videos_in_one_prompt(wrapper: Qwen3VL, tmp_path: Path) -> None:
    contents = [noise(64, 90), noise(3, 64, 80), noise(150, 40), noise(2, 100, 64), noise(64, 64)]
    assert min(check(wrapper, tmp_path, contents, n=2)) > 0


def test_pages_of_a_document(wrapper: Qwen3VL, tmp_path: Path) -> None:
    assert min(check(wrapper, tmp_path, [noise(198, 154), noise(154, 198), noise(64, 64)], n=3, pages=True)) > 0


@pytest.mark.parametrize(("n_frames", "asked"), [(1, None), (2, 1), (7, 5)])
def test_a_video(wrapper: Qwen3VL, tmp_path: Path, n_frames: int, asked: int | None) -> None:
    assert min(check(wrapper, tmp_path, [noise(n_frames, 100, 180)], n=4, frames=asked)) > 0


def test_a_video_of_few_pixels_and_a_budget_for_all_its_frames(wrapper: Qwen3VL, tmp_path: Path) -> None:
    assert min(check(wrapper, tmp_path, [noise(3, 20, 46)], n=4)) > 0
    budget = Geometry(least=4096, most=20_000)
    assert min(check(wrapper, tmp_path, [noise(5, 100, 180)], budget, n=3, max_pixels=20_000)) > 0


@pytest.mark.parametrize(("temporal", "merge"), [(3, 2), (2, 3), (1, 4)])
def test_temporal_and_merge_sizes_that_differ(tmp_path: Path, temporal: int, merge: int) -> None:
    geometry = Geometry(temporal=temporal, merge=merge)
    contents = [noise(4, 100, 130), noise(150, 100)]
    assert min(check(build(geometry), tmp_path, contents, geometry, n=3)) > 0


def test_skipping_attention_whose_output_is_zero_changes_nothing(
    wrapper: Qwen3VL, quick: Qwen3VL, tmp_path: Path
) -> None:
    media = written(tmp_path, [noise(100, 130), noise(3, 64, 80)], pages=False)
    sample = Sample(task="t", id="s", cluster="c", media=media, prompt="What?", question="What?", target="x")
    prepared = wrapper.prepare(sample)
    assert torch.equal(embedded(wrapper, prepared), embedded(quick, prepared))


@pytest.mark.slow
def test_wide_sweep(quick: Qwen3VL, tmp_path: Path) -> None:
    swept(quick, tmp_path, [(1, 1), (33, 47), (28, 600), (255, 256), (1920, 1080), (4000, 90), (5970, 30), (30, 5970)])
    swept(quick, tmp_path, [(3840, 2160), (2160, 3840), (4096, 31)], n=4)


@pytest.mark.slow
def test_wide_sweep_under_limits(quick: Qwen3VL, tmp_path: Path) -> None:
    for most in (2048, 250_000, 1_000_000):
        geometry = Geometry(least=min(64 * 64, most), most=most)
        for width, height in ((3840, 2160), (3000, 90), (90, 3000)):
            check(quick, tmp_path, [noise(height, width)], geometry, n=4, max_pixels=most)
    contents = [noise(9, 540, 960), noise(1, 64, 1000)]
    assert min(check(quick, tmp_path, contents, n=2)) > 0
