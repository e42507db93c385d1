"""InternVL's token map against pixels: what changes in a medium changes exactly the tokens that its geometry names.

In the model under test patches do not mix: the output projections of vision attention are zero. Pixels of the original
file are changed, and the embeddings that reach the language model are compared at every position. Which should change
is worked out here from the resampling kernel and the tiles, without the token map; the map must then say the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import (
    GotOcr2ImageProcessor,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    InternVLVideoProcessor,
)

from core_bench.bundled.architectures import internvl as bundled
from core_bench.bundled.pages import Page
from core_bench.bundled.pdf import pdf_bytes
from core_bench.evidence import omega
from core_bench.model_wrappers.internvl import InternVL
from core_bench.schema import Media, Prepared, Region, Sample

Pixels = NDArray[np.uint8]  # [height, width, 3], of a video [frames, height, width, 3]
Patch = tuple[int, int, int, int]  # x0, y0, x1, y1 in pixels of the medium
Place = tuple[int, int | None, Patch]  # medium, frame, patch
KERNEL = 2.0  # half the width of a bicubic kernel, in pixels of the coarser grid


@dataclass(frozen=True)
class Tiling:
    """Tiles of `tile` x `tile` pixels in `side` x `side` tokens, `fewest` to `most` of them for a picture."""

    tile: int
    side: int
    fewest: int
    most: int

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Tiles across and down: the closest aspect ratio; of equals the largest that is below twice the picture."""
        numbers = range(1, self.most + 1)
        grids = [(a, d) for a in numbers for d in numbers if self.fewest <= a * d <= self.most]
        grids.sort(key=lambda grid: grid[0] * grid[1])
        apart = [abs(Fraction(width, height) - Fraction(*grid)) for grid in grids]
        equals = [grid for grid, distance in zip(grids, apart, strict=True) if distance == min(apart)]
        fitting = [(a, d) for a, d in equals if self.tile**2 * a * d < 2 * width * height]
        return fitting[-1] if fitting else equals[0]


@dataclass(frozen=True)
class Shown:
    """A picture or a frame; `views`: (tiles across, tiles down, ordinal of the first of its tokens)."""

    tiling: Tiling
    width: int
    height: int
    views: tuple[tuple[int, int, int], ...]

    def reached(self, patch: Patch) -> list[frozenset[int]]:
        """By view: ordinals of the tokens that the resampled pixels of `patch` can reach."""
        found = []
        for across, down, first in self.views:
            cols = self._cells(patch[0], patch[2], self.width, across)
            rows = self._cells(patch[1], patch[3], self.height, down)
            found.append(frozenset(self._ordinal(r, c, across, first) for r in rows for c in cols))
        return found

    def own(self, patch: Patch) -> frozenset[int]:
        """In every view the token in whose cell the middle of `patch` lies."""
        x, y = (patch[0] + patch[2]) / 2 / self.width, (patch[1] + patch[3]) / 2 / self.height
        side = self.tiling.side
        return frozenset(
            self._ordinal(int(y * down * side), int(x * across * side), across, first)
            for across, down, first in self.views
        )

    def _cells(self, low: int, high: int, extent: int, tiles: int) -> range:
        """Cells along one axis that pixels [low, high) of `extent` reach when resized to `tiles` tiles."""
        wide = tiles * self.tiling.tile
        scale = extent / wide
        support = KERNEL * max(scale, 1.0) + 0.5  # and half a pixel, as libraries round differently
        first = max(0, math.ceil((low + 0.5 - support) / scale - 0.5))
        last = min(wide - 1, math.floor((high - 0.5 + support) / scale - 0.5))
        pixels = self.tiling.tile // self.tiling.side
        return range(first // pixels, last // pixels + 1)

    def _ordinal(self, row: int, col: int, across: int, first: int) -> int:
        """Tile by tile, row-major, and row-major within a tile."""
        side = self.tiling.side
        return first + (row // side * across + col // side) * side**2 + row % side * side + col % side


def everything_shown(
    tiling: Tiling, contents: Sequence[Pixels], frames: Sequence[Sequence[int]]
) -> tuple[dict[tuple[int, int | None], Shown], int]:
    """What a prompt shows, by medium and frame, and the number of its visual tokens."""
    shown: dict[tuple[int, int | None], Shown] = {}
    at, tokens = 0, tiling.side**2
    for medium, pixels in enumerate(contents):
        height, width = pixels.shape[-3:-1]
        for frame in frames[medium] or (None,):
            across, down = tiling.grid(width, height) if frame is None else (1, 1)
            views = [(across, down, at)]
            at += across * down * tokens
            if across * down > 1:
                views.append((1, 1, at))
                at += tokens
            shown[medium, frame] = Shown(tiling, width, height, tuple(views))
    return shown, at


class _Embedded(Exception):
    """Stops a forward where the language model begins."""


def embedded(wrapper: InternVL, prepared: Prepared) -> torch.Tensor:
    """What the language model is given: float32 [prompt, hidden]."""
    seen: list[torch.Tensor] = []

    def stop(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        seen.append(kwargs["inputs_embeds"][0])
        raise _Embedded

    handle = wrapper.language_model.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        with torch.inference_mode(), pytest.raises(_Embedded):
            wrapper.model(**wrapper.device_inputs(prepared))
    finally:
        handle.remove()
    return seen[0]


def without_mixing(model: Any) -> Any:
    """Vision attention adds nothing any more, so that a patch sees itself alone."""
    for layer in model.model.vision_tower.encoder.layer:
        torch.nn.init.zeros_(layer.attention.projection_layer.weight)
        torch.nn.init.zeros_(layer.attention.projection_layer.bias)
    return model


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


def patches(shown: Shown, n: int, seed: int = 0) -> list[Patch]:
    """Middles and corners of cells of the finest view; as large as a pixel of the coarsest, so that every view sees
    them."""
    rng = np.random.default_rng(seed)
    (across, down, _), side, tile = shown.views[0], shown.tiling.side, shown.tiling.tile
    wide, high = math.ceil(shown.width / tile), math.ceil(shown.height / tile)
    found = []
    for number in range(n):
        inside = 0.5 if number % 3 else 0.0
        x = int((rng.integers(across * side) + inside) / (across * side) * shown.width - wide / 2)
        y = int((rng.integers(down * side) + inside) / (down * side) * shown.height - high / 2)
        x, y = min(max(x, 0), shown.width - wide), min(max(y, 0), shown.height - high)
        found.append((x, y, x + wide, y + high))
    return found


def changed(contents: Sequence[Pixels], place: Place) -> list[Pixels]:
    medium, frame, (x0, y0, x1, y1) = place
    after = [pixels.copy() if number == medium else pixels for number, pixels in enumerate(contents)]
    (after[medium] if frame is None else after[medium][frame])[y0:y1, x0:x1] += 128
    return after


def check(
    wrapper: InternVL,
    tiling: Tiling,
    folder: Path,
    contents: Sequence[Pixels],
    n: int = 6,
    pages: bool = False,
    **options: Any,
) -> tuple[int, int]:
    """Test `n` patches of every medium and frame; how many under rule A (one cell a view is reached), and B (more)."""

    def prepared(contents: Sequence[Pixels]) -> Prepared:
        media = written(folder, contents, pages)
        return wrapper.prepare(
            Sample(task="t", id="s", cluster="c", media=media, prompt="What?", question="What?", target="x"), **options
        )

    before = prepared(contents)
    base = embedded(wrapper, before)
    visual = np.flatnonzero(before.inputs["input_ids"][0].numpy() == wrapper.model.config.image_token_id).tolist()
    everything, tokens = everything_shown(tiling, contents, before.frames)
    assert len(visual) == tokens
    counts = [0, 0]
    for (medium, frame), shown in everything.items():
        for patch in patches(shown, n, seed=medium):
            after = prepared(changed(contents, (medium, frame, patch)))
            assert after.token_map == before.token_map
            moved = ((embedded(wrapper, after) - base).abs().amax(1) > 1e-6).nonzero()[:, 0].tolist()
            reached = [{visual[ordinal] for ordinal in cells} for cells in shown.reached(patch)]
            own, reach = {visual[ordinal] for ordinal in shown.own(patch)}, set().union(*reached)
            found = set(omega([Region(medium=medium, frame=frame, box=patch)], before.token_map))
            several = any(len(cells) > 1 for cells in reached)
            counts[several] += 1
            for tokens_of in (set(moved), found):
                assert own <= tokens_of <= reach
                assert several or tokens_of == own
    print(f"{counts[0]} patches under rule A, {counts[1]} under rule B")
    return counts[0], counts[1]


def build(tiling: Tiling, patch: int) -> InternVL:
    """An untrained model that is small but for its tiles; the picture processor alone would not cut any."""
    tokenizer = bundled.build_tokenizer()
    config = bundled.build_config(tokenizer)
    config.vision_config.image_size, config.vision_config.patch_size = (tiling.tile,) * 2, (patch,) * 2
    config.image_seq_length = tiling.side**2
    config.text_config.num_hidden_layers = config.vision_config.num_hidden_layers = 1
    config.text_config.layer_types = config.text_config.layer_types[:1]
    pixels: dict[str, Any] = {"size": {"height": tiling.tile, "width": tiling.tile}}
    processor = InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(min_patches=tiling.fewest, max_patches=tiling.most, **pixels),
        tokenizer=tokenizer,
        video_processor=InternVLVideoProcessor(**pixels),
        image_seq_length=tiling.side**2,
        chat_template=bundled.CHAT_TEMPLATE,
    )
    torch.manual_seed(0)
    return InternVL(without_mixing(InternVLForConditionalGeneration(config)), processor)


BUNDLED = Tiling(bundled.TILE, 4, 1, bundled.MOST_TILES)
REAL = Tiling(448, 16, 1, 12)


@pytest.fixture(scope="module")
def wrapper() -> InternVL:
    return InternVL(without_mixing(bundled.build_model()), bundled.build_processor())


@pytest.fixture(scope="module")
def real() -> InternVL:
    """Tiles, patches, tokens and limits of the released models."""
    return build(REAL, 14)


@pytest.mark.parametrize(("width", "height"), [(28, 28), (128, 128), (384, 256), (451, 300), (97, 640), (1000, 37)])
def test_a_picture(wrapper: InternVL, tmp_path: Path, width: int, height: int) -> None:
    assert min(check(wrapper, BUNDLED, tmp_path, [noise(height, width)])) > 0


def test_several_pictures_and_videos_in_one_prompt(wrapper: InternVL, tmp_path: Path) -> None:
    contents = [noise(200, 310), noise(3, 90, 160), noise(64, 64), noise(3, 64, 48), noise(310, 200)]
    assert min(check(wrapper, BUNDLED, tmp_path, contents, n=2)) > 0


def test_pages_of_a_document(wrapper: InternVL, tmp_path: Path) -> None:
    assert min(check(wrapper, BUNDLED, tmp_path, [noise(396, 306), noise(306, 396)], n=3, pages=True)) > 0


@pytest.mark.parametrize(("n_frames", "asked"), [(1, None), (9, 5)])
def test_a_video(wrapper: InternVL, tmp_path: Path, n_frames: int, asked: int | None) -> None:
    assert min(check(wrapper, BUNDLED, tmp_path, [noise(n_frames, 100, 180)], n=3, frames=asked)) > 0


def test_a_budget_of_pixels(wrapper: InternVL, tmp_path: Path) -> None:
    for tiles in (1, 2, 5):
        tiling = Tiling(BUNDLED.tile, BUNDLED.side, 1, tiles)
        check(wrapper, tiling, tmp_path, [noise(480, 640)], n=2, max_pixels=tiles * 128 * 128 + 127)


@pytest.mark.slow
def test_wide_sweep(wrapper: InternVL, tmp_path: Path) -> None:
    sizes = [(28, 600), (33, 47), (60, 2900), (256, 255), (3840, 2160), (2160, 3840), (4000, 90), (1920, 1080), (1, 1)]
    counts = [check(wrapper, BUNDLED, tmp_path, [noise(height, width)], n=9) for width, height in sizes]
    assert min(np.sum(counts, axis=0)) > len(sizes)


@pytest.mark.slow
def test_tiles_of_the_released_models(real: InternVL, tmp_path: Path) -> None:
    for width, height in [(448, 448), (640, 480), (1920, 1080), (3840, 2160), (300, 1700)]:
        assert min(check(real, REAL, tmp_path, [noise(height, width)])) > 0
    assert min(check(real, REAL, tmp_path, [noise(3, 180, 320)], n=3)) > 0
    assert min(check(real, REAL, tmp_path, [noise(792, 612), noise(612, 792)], n=3, pages=True)) > 0


@pytest.mark.slow
def test_a_least_number_of_tiles(tmp_path: Path) -> None:
    tiling = Tiling(64, 2, 4, 6)
    for width, height in [(64, 64), (300, 100), (90, 400)]:
        assert check(build(tiling, 16), tiling, tmp_path, [noise(height, width)])[1] > 0
