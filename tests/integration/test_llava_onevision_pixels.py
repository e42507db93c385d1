"""LLaVA-OneVision's token map against pixels: what changes in a medium changes the tokens that its geometry names.

In the model under test patches do not mix: the output projections of vision attention are zero. Pixels of the original
file are changed, and the embeddings that reach the language model are compared at every position. Which should change
is worked out here from the resampling kernel, the tiles and the interpolation of tokens, without the token map; the map
must then say the same.

Where tokens were interpolated by a factor that is not whole, a token mixes unequal parts of its neighbours, and the map
may name one next to it.
"""

from __future__ import annotations

import itertools
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
from transformers import LlavaOnevisionForConditionalGeneration

from core_bench.bundled.architectures import llava_onevision as bundled
from core_bench.bundled.pages import Page
from core_bench.bundled.pdf import pdf_bytes
from core_bench.errors import SampleError
from core_bench.evidence import omega
from core_bench.model_wrappers.llava_onevision import LlavaOneVision
from core_bench.schema import Media, Prepared, Region, Sample

Pixels = NDArray[np.uint8]  # [height, width, 3], of a video [frames, height, width, 3]
Patch = tuple[int, int, int, int]  # x0, y0, x1, y1 in pixels of the medium
Place = tuple[int, int | None, Patch]  # medium, frame, patch
Cells = frozenset[int]
KERNEL = 2.0  # half the width of a bicubic kernel, in pixels of the coarser grid


@dataclass(frozen=True)
class Kind:
    """Tiles of `tile` pixels in patches of `patch`, canvases (height, width), and at most `most` tiles of tokens."""

    tile: int
    patch: int
    canvases: tuple[tuple[int, int], ...]
    most: int

    @property
    def side(self) -> int:
        return self.tile // self.patch

    def canvas(self, width: int, height: int, limit: float = math.inf) -> tuple[int, int]:
        """Width and height of the canvas that keeps most of the picture's pixels, and is the smallest of those."""
        best, order = (0, 0), (0, 0)
        for high, wide in self.canvases:
            scale = min(wide / width, high / height)
            kept = min(int(width * scale) * int(height * scale), width * height)
            if high * wide <= limit and (kept, kept - high * wide) > order:
                best, order = (wide, high), (kept, kept - high * wide)
        return best


def fitted(width: int, height: int, canvas: tuple[int, int]) -> tuple[int, int]:
    """The picture's size on its canvas."""
    if canvas[0] / width < canvas[1] / height:
        return canvas[0], min(math.ceil(height * (canvas[0] / width)), canvas[1])
    return min(math.ceil(width * (canvas[1] / height)), canvas[0]), canvas[1]


@dataclass(frozen=True)
class Axis:
    """One axis of one view: `margin` pixels are added before, the whole is resampled to each of `extents` in turn
    and laid on the canvas at `paste`; `padding` cells are cut off on either side, `kept` are left and interpolated
    to `cells`."""

    kind: Kind
    extents: tuple[int, ...]
    tiles: int
    kept: int
    cells: int
    margin: int = 0
    paste: int = 0

    @property
    def mixed(self) -> bool:
        """Whether a cell of the map cannot be exact."""
        gaps = self.kind.tile % self.kind.patch > 0 and self.tiles > 1
        return self.cells != self.kept and (self.kept % self.cells > 0 or gaps)

    def source(self, pixel: int) -> int | None:
        """The cell, before interpolation, that sees a pixel of the canvas."""
        tile, inside = divmod(pixel, self.kind.tile)
        cell = inside // self.kind.patch
        if not 0 <= tile < self.tiles or cell >= self.kind.side:
            return None
        cell += tile * self.kind.side - (self.tiles * self.kind.side - self.kept) // 2
        return cell if 0 <= cell < self.kept else None

    def reached(self, low: int, high: int) -> Cells:
        """Cells that pixels [low, high) of the medium reach."""
        low, high = low + self.margin, high + self.margin
        for extent, wide in itertools.pairwise(self.extents):
            low, high = resampled(low, high, extent, wide)
        sources = {self.source(pixel) for pixel in range(low + self.paste, high + self.paste)}
        return frozenset(cell for cell in range(self.cells) if sources & set(self.mixture(cell)))

    def mixture(self, cell: int) -> list[int]:
        """The cells before interpolation that have a weight in `cell`."""
        center = max((cell + 0.5) * self.kept / self.cells - 0.5, 0.0)
        first = math.floor(center + 1e-6)
        return [first] if center - first < 1e-6 else [first, min(first + 1, self.kept - 1)]

    def on_canvas(self, at: float) -> float:
        """Where a coordinate of the medium lies on the canvas."""
        return float((at + self.margin) * self.extents[-1] / self.extents[0]) + self.paste

    def off_canvas(self, at: float) -> float:
        return (at - self.paste) * self.extents[0] / self.extents[-1] - self.margin

    def own(self, low: int, high: int) -> Cells:
        """The cell of the middle of [low, high), if any."""
        cell = self.source(math.floor(self.on_canvas((low + high) / 2)))
        return frozenset() if cell is None else frozenset([int((cell + 0.5) * self.cells / self.kept)])

    def named(self, low: int, high: int) -> tuple[Cells, Cells]:
        """Cells that the map must name for [low, high), and those that it may."""
        own, reached = self.own(low, high), self.reached(low, high)
        if not self.mixed:
            return own, reached
        inside = self.on_canvas((low + high) / 2) % self.kind.tile % self.kind.patch - self.kind.patch / 2
        apart = (self.on_canvas(high) - self.on_canvas(low)) / 2 - self.kind.tile % self.kind.patch / 2
        sure = own if abs(inside) < apart else frozenset[int]()
        return sure, reached | {cell + step for cell in own | reached for step in (-1, 1)}


def resampled(low: int, high: int, extent: int, wide: int) -> tuple[int, int]:
    """Pixels [first, last) of an axis of `wide` pixels that pixels [low, high) of `extent` reach."""
    if extent == wide:
        return low, high
    scale = extent / wide
    support = KERNEL * max(scale, 1.0) + 0.5  # and half a pixel, as libraries round differently
    first = max(0, math.ceil((low + 0.5 - support) / scale - 0.5))
    last = min(wide - 1, math.floor((high - 0.5 + support) / scale - 0.5))
    return first, last + 1


@dataclass(frozen=True)
class View:
    """Cells y x x with `stride` tokens a row, the first at position `start`."""

    start: int
    stride: int
    y: Axis
    x: Axis

    def tokens(self, rows: Cells, cols: Cells) -> set[int]:
        inside_y, inside_x = (
            [c for c in sorted(cells) if 0 <= c < axis.cells] for cells, axis in ((rows, self.y), (cols, self.x))
        )
        return {self.start + row * self.stride + col for row in inside_y for col in inside_x}


Shown = dict[tuple[int, int | None], list[View]]  # the views of a picture or a frame


def alone(kind: Kind, width: int, height: int, limit: float) -> tuple[list[View], int]:
    """A picture that is alone in its prompt, and how many tokens it has."""
    extents: list[tuple[int, ...]] = [(width,), (height,)]
    if math.prod(kind.canvas(width, height)) > limit:
        reduced = fitted(width, height, kind.canvas(width, height, max(limit, kind.tile**2)))
        extents = [(width, reduced[0]), (height, reduced[1])]
    size = extents[0][-1], extents[1][-1]
    canvas = kind.canvas(*size)
    target = fitted(*size, canvas)
    tiles = [pixels // kind.tile for pixels in canvas]
    whole = [count * kind.side for count in tiles]
    ratios = Fraction(size[0], size[1]), Fraction(size[1], size[0])
    exact = [math.floor(ratio * full) for ratio, full in zip(ratios, reversed(whole), strict=True)]
    kept = [full - (full - min(full, new)) // 2 * 2 for full, new in zip(whole, exact, strict=True)]
    excess = math.sqrt(math.prod(kept) / (kind.most * kind.side**2))
    cells = [int(count // excess) for count in kept] if excess > 1.1 else kept
    x, y = (
        Axis(kind, (*extents[n], target[n]), tiles[n], kept[n], cells[n], paste=(canvas[n] - target[n]) // 2)
        for n in (0, 1)
    )
    base_x, base_y = (Axis(kind, (*extents[n], kind.tile), 1, kind.side, kind.side) for n in (0, 1))
    views = [View(0, kind.side, base_y, base_x), View(kind.side**2, cells[0] + 1, y, x)]
    return views, kind.side**2 + cells[1] * (cells[0] + 1)


def squeezed(kind: Kind, extent: int, cells: int, square: int | None = None) -> Axis:
    """An axis of one tile, padded to `square` pixels before."""
    square = square or extent
    return Axis(kind, (square, kind.tile), 1, kind.side, cells, margin=(square - extent) // 2)


def everything_shown(
    kind: Kind, contents: Sequence[Pixels], frames: Sequence[Sequence[int]], limit: float
) -> tuple[Shown, dict[str, int]]:
    """What a prompt shows, by medium and frame, positions counted among the tokens of its kind; and their numbers."""
    shown: Shown = {}
    counts = {"image": 0, "video": 0}
    pooled = math.ceil(kind.side / 2)
    for medium, pixels in enumerate(contents):
        height, width = pixels.shape[-3:-1]
        if frames[medium]:
            for frame in frames[medium]:
                y, x = (squeezed(kind, extent, pooled) for extent in (height, width))
                shown[medium, frame] = [View(counts["video"], pooled, y, x)]
                counts["video"] += pooled**2
            counts["video"] += 1
        elif sum(not each for each in frames) == 1:
            shown[medium, None], counts["image"] = alone(kind, width, height, limit)
        else:
            y, x = (squeezed(kind, extent, kind.side, max(width, height)) for extent in (height, width))
            shown[medium, None] = [View(counts["image"], kind.side, y, x)]
            counts["image"] += kind.side**2 + 1
    return shown, counts


class _Embedded(Exception):
    """Stops a forward where the language model begins."""


def embedded(wrapper: LlavaOneVision, prepared: Prepared) -> torch.Tensor:
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
    projections = [m for name, m in model.model.vision_tower.named_modules() if name.endswith("self_attn.out_proj")]
    assert projections
    for projection in projections:
        torch.nn.init.zeros_(projection.weight)
        torch.nn.init.zeros_(projection.bias)
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


def patches(kind: Kind, views: Sequence[View], size: tuple[int, int], n: int, seed: int) -> list[Patch]:
    """The medium's first corner, then corners and middles of patches of the finest view.

    They are as large as a pixel of the coarsest view, so that every view sees them; on corners at least two pixels;
    where cells are mixed, larger than what patches do not fill.
    """
    rng = np.random.default_rng(seed)
    found = []
    for number in range(n):
        edges = []
        for extent, axis in zip(size, (views[-1].x, views[-1].y), strict=True):
            wide = max(math.ceil(axis.extents[0] / kind.tile), 2 if number % 3 == 1 else 1)
            if axis.mixed:
                gap = kind.tile % kind.patch
                wide = max(wide, math.ceil(axis.off_canvas(gap + 2.0) - axis.off_canvas(0.0)))
            wide = min(wide, extent)
            tile, cell = divmod(int(rng.integers(axis.tiles * kind.side)), kind.side)
            middle = tile * kind.tile + (cell + (0.0 if number % 3 == 1 else 0.5)) * kind.patch
            low = round(axis.off_canvas(middle) - wide / 2)
            low = min(max(low, 0), extent - wide) if number else 0
            edges.append((low, low + wide))
        (x0, x1), (y0, y1) = edges
        found.append((x0, y0, x1, y1))
    return found


def changed(contents: Sequence[Pixels], place: Place) -> list[Pixels]:
    medium, frame, (x0, y0, x1, y1) = place
    after = [pixels.copy() if number == medium else pixels for number, pixels in enumerate(contents)]
    (after[medium] if frame is None else after[medium][frame])[y0:y1, x0:x1] += 128
    return after


def check(
    wrapper: LlavaOneVision,
    kind: Kind,
    folder: Path,
    contents: Sequence[Pixels],
    n: int = 6,
    pages: bool = False,
    max_pixels: int | None = None,
    **options: Any,
) -> tuple[int, int]:
    """Test `n` patches of every medium and frame; how many under rule A (no view is reached beyond the cell of the
    patch's middle), and B (one is)."""

    def prepared(contents: Sequence[Pixels]) -> Prepared:
        media = written(folder, contents, pages)
        sample = Sample(task="t", id="s", cluster="c", media=media, prompt="What?", question="What?", target="x")
        return wrapper.prepare(sample, max_pixels=max_pixels, **options)

    before = prepared(contents)
    base, ids = embedded(wrapper, before), before.inputs["input_ids"][0].numpy()
    config = wrapper.model.config
    positions = {
        name: np.flatnonzero(ids == getattr(config, f"{name}_token_id")).tolist() for name in ("image", "video")
    }
    limit = math.inf if max_pixels is None else max_pixels
    everything, numbers = everything_shown(kind, contents, before.frames, limit)
    assert numbers == {name: len(found) for name, found in positions.items()}
    counts = [0, 0]
    for (medium, frame), views in everything.items():
        at = positions["image" if frame is None else "video"]
        height, width = contents[medium].shape[-3:-1]
        for patch in patches(kind, views, (width, height), n, seed=medium):
            after = prepared(changed(contents, (medium, frame, patch)))
            assert after.token_map == before.token_map
            moved = set(((embedded(wrapper, after) - base).abs().amax(1) > 1e-6).nonzero()[:, 0].tolist())
            (x, y), sets = (patch[::2], patch[1::2]), []
            for pick in (
                lambda axis, edges: axis.own(*edges),
                lambda axis, edges: axis.reached(*edges),
                lambda axis, edges: axis.named(*edges)[0],
                lambda axis, edges: axis.named(*edges)[1],
            ):
                sets.append({at[o] for view in views for o in view.tokens(pick(view.y, y), pick(view.x, x))})
            own, reach, must, may = sets
            found = named_by_map(before, Region(medium=medium, frame=frame, box=patch))
            counts[own != reach] += 1
            assert own <= moved <= reach
            assert must <= found <= may
            if own == reach and must == may:
                assert found == moved
    print(f"{counts[0]} patches under rule A, {counts[1]} under rule B")
    return counts[0], counts[1]


def named_by_map(prepared: Prepared, region: Region) -> set[int]:
    try:
        return set(omega([region], prepared.token_map))
    except SampleError:
        return set()


def squares(tile: int, across: int, down: int, most: int) -> tuple[tuple[int, int], ...]:
    """All canvases of up to `across` x `down` tiles and `most` in all."""
    counts = itertools.product(range(1, down + 1), range(1, across + 1))
    return tuple((tile * high, tile * wide) for high, wide in counts if high * wide <= most)


def build(kind: Kind) -> LlavaOneVision:
    """An untrained model that is small but for its tiles."""
    tokenizer = bundled.build_tokenizer()
    config = bundled.build_config(tokenizer)
    config.vision_config.image_size, config.vision_config.patch_size = kind.tile, kind.patch
    config.image_grid_pinpoints = [list(canvas) for canvas in kind.canvases]
    config.vision_aspect_ratio = f"anyres_max_{kind.most}"
    config.text_config.num_hidden_layers = config.vision_config.num_hidden_layers = 1
    config.text_config.layer_types = config.text_config.layer_types[:1]
    processor = bundled.build_processor(tokenizer)
    for part in (processor.image_processor, processor.video_processor):
        part.size = {"height": kind.tile, "width": kind.tile}
    processor.image_processor.image_grid_pinpoints = config.image_grid_pinpoints
    processor.num_image_tokens = kind.side**2
    processor.vision_aspect_ratio = config.vision_aspect_ratio
    torch.manual_seed(0)
    return LlavaOneVision(without_mixing(LlavaOnevisionForConditionalGeneration(config)), processor)


BUNDLED = Kind(bundled.TILE, bundled.PATCH, tuple((h, w) for h, w in bundled.PINPOINTS), bundled.MOST_TILES)
REAL = Kind(384, 14, squares(384, 6, 6, 36), 9)
REDUCED = Kind(64, 16, squares(64, 4, 4, 16), 4)
GAPS = Kind(60, 14, squares(60, 3, 3, 9), 9)
GAPS_REDUCED = Kind(90, 14, squares(90, 4, 4, 16), 4)


@pytest.fixture(scope="module")
def wrapper() -> LlavaOneVision:
    return LlavaOneVision(without_mixing(bundled.build_model()), bundled.build_processor())


@pytest.fixture(scope="module")
def real() -> LlavaOneVision:
    """Tiles, patches, tokens and canvases of the released models."""
    return build(REAL)


@pytest.mark.parametrize(("width", "height"), [(28, 28), (256, 256), (768, 512), (451, 300), (97, 640), (1000, 37)])
def test_a_picture(wrapper: LlavaOneVision, tmp_path: Path, width: int, height: int) -> None:
    assert min(check(wrapper, BUNDLED, tmp_path, [noise(height, width)], n=9)) > 0


@pytest.mark.parametrize("kind", [REDUCED, GAPS, GAPS_REDUCED])
def test_tokens_that_are_reduced_and_tiles_that_patches_do_not_fill(tmp_path: Path, kind: Kind) -> None:
    small = build(kind)
    sizes = [(4, 4), (4, 3), (3, 4), (2, 1), (3, 3)]
    pictures = [(kind.tile * across, kind.tile * down) for across, down in sizes] + [(300, 211), (200, 331)]
    counts = [check(small, kind, tmp_path, [noise(height, width)]) for width, height in pictures]
    counts.append(check(small, kind, tmp_path, [noise(3, 60, 90), noise(50, 70), noise(80, 60)]))
    assert min(np.sum(counts, axis=0)) > 10


def test_several_pictures_and_videos_in_one_prompt(wrapper: LlavaOneVision, tmp_path: Path) -> None:
    contents = [noise(200, 310), noise(3, 90, 160), noise(64, 64), noise(3, 64, 48), noise(310, 100)]
    assert min(check(wrapper, BUNDLED, tmp_path, contents, n=3)) > 0


def test_one_picture_among_videos_has_tiles(wrapper: LlavaOneVision, tmp_path: Path) -> None:
    assert min(check(wrapper, BUNDLED, tmp_path, [noise(2, 90, 160), noise(500, 300), noise(2, 48, 64)], n=3)) > 0


def test_pages_of_a_document(wrapper: LlavaOneVision, tmp_path: Path) -> None:
    pages = [noise(396, 306), noise(306, 396)]
    assert min(check(wrapper, BUNDLED, tmp_path, pages, n=4, pages=True)) > 0
    assert min(check(wrapper, BUNDLED, tmp_path, pages[:1], n=6, pages=True)) > 0


@pytest.mark.parametrize(("n_frames", "asked"), [(1, None), (9, 5)])
def test_a_video(wrapper: LlavaOneVision, tmp_path: Path, n_frames: int, asked: int | None) -> None:
    assert min(check(wrapper, BUNDLED, tmp_path, [noise(n_frames, 100, 180)], n=6, frames=asked)) > 0


@pytest.mark.parametrize("tiles", [0, 1, 2, 5])
def test_a_budget_of_pixels(wrapper: LlavaOneVision, tmp_path: Path, tiles: int) -> None:
    budget = max(1, tiles * BUNDLED.tile**2 + 127)
    assert sum(check(wrapper, BUNDLED, tmp_path, [noise(700, 900)], n=6, max_pixels=budget)) == 6


@pytest.mark.slow
def test_every_canvas(wrapper: LlavaOneVision, tmp_path: Path) -> None:
    for high, wide in BUNDLED.canvases:
        assert BUNDLED.canvas(wide, high) == (wide, high)
        assert min(check(wrapper, BUNDLED, tmp_path, [noise(high, wide)], n=4)) > 0


@pytest.mark.slow
def test_wide_sweep(wrapper: LlavaOneVision, tmp_path: Path) -> None:
    sizes = [(28, 600), (33, 47), (60, 2900), (256, 255), (3840, 2160), (2160, 3840), (4000, 90), (1920, 1080), (1, 1)]
    counts = [check(wrapper, BUNDLED, tmp_path, [noise(height, width)]) for width, height in sizes]
    assert min(np.sum(counts, axis=0)) > len(sizes)


@pytest.mark.slow
def test_tiles_of_the_released_models(real: LlavaOneVision, tmp_path: Path) -> None:
    sizes = [(384, 384), (640, 480), (768, 1152), (1920, 1080), (3840, 2160), (2304, 2304), (300, 1700)]
    counts = [check(real, REAL, tmp_path, [noise(height, width)], n=4) for width, height in sizes]
    assert min(np.sum(counts, axis=0)) > len(sizes)
    assert min(check(real, REAL, tmp_path, [noise(3, 480, 640)], n=6)) > 0
    assert min(check(real, REAL, tmp_path, [noise(792, 612), noise(612, 792)], n=6, pages=True)) > 0
