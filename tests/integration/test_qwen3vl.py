"""The token map against pixels: what changes in a picture must change exactly the tokens that the map names.

Tokens are observed at the vision tower's patch embedding: the processor's pixel rows, merge**2 consecutive rows a
token, handed to the visual placeholders of the prompt in order.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from core_bench.errors import SampleError
from core_bench.evidence import omega
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.schema import Media, Prepared, Region, Sample, VisualBlock

Pixels = NDArray[np.uint8]


@pytest.fixture(scope="session")
def wrapper(tiny_model: Any, tiny_processor: Any) -> Qwen3VL:
    return Qwen3VL(tiny_model, tiny_processor)


def noise(*shape: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)


def picture_file(path: Path, pixels: Pixels) -> Media:
    Image.fromarray(pixels).save(path)
    return Media(kind="image", path=str(path))


def video_file(path: Path, frames: Pixels) -> Media:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("png", rate=10)
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], "rgb24"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return Media(kind="video", path=str(path))


def sample_of(*media: Media, prompt: str = "What is this?") -> Sample:
    return Sample(task="t", id="s1", cluster="c", media=media, prompt=prompt, question=prompt, target="x")


def token_change(wrapper: Qwen3VL, one: Prepared, two: Prepared) -> dict[int, float]:
    """Largest pixel change of every visual token that changed, by its position in the prompt."""
    assert torch.equal(one.inputs["input_ids"], two.inputs["input_ids"])
    ids = one.inputs["input_ids"][0].numpy()
    kinds = [
        ("pixel_values", wrapper.processor.image_token_id, wrapper.processor.image_processor.merge_size),
        ("pixel_values_videos", wrapper.processor.video_token_id, wrapper.processor.video_processor.merge_size),
    ]
    changes: dict[int, float] = {}
    for name, token_id, merge in kinds:
        positions = np.flatnonzero(ids == token_id)
        if name not in one.inputs:
            assert not len(positions)
            continue
        rows = (one.inputs[name] - two.inputs[name]).abs().amax(dim=1)
        per_token = rows.reshape(-1, merge**2).amax(dim=1).numpy()
        assert len(per_token) == len(positions)
        changes |= {int(p): float(c) for p, c in zip(positions, per_token, strict=True) if c > 1e-6}
    return changes


def cell_box(block: VisualBlock, row: int, col: int) -> tuple[float, float, float, float]:
    return (col / block.scale_x, row / block.scale_y, (col + 1) / block.scale_x, (row + 1) / block.scale_y)


SIZES = [(128, 96), (451, 300), (300, 451), (20, 13), (33, 500), (1000, 37), (1, 1), (3, 3), (64, 64)]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_pixels_of_a_cell_are_the_cells_token(wrapper: Qwen3VL, tmp_path: Path, width: int, height: int) -> None:
    pixels = noise(height, width) // 4
    before = wrapper.prepare(sample_of(picture_file(tmp_path / "a.png", pixels)))
    (block,) = before.token_map.blocks
    exact = width % 32 == height % 32 == 0  # no resizing: no cell bleeds into its neighbours
    for index in range(0, block.rows * block.cols, max(1, block.rows * block.cols // 7)):
        row, col = divmod(index, block.cols)
        x0, y0, x1, y1 = (round(side) for side in cell_box(block, row, col))
        changed = pixels.copy()
        if exact:
            changed[y0:y1, x0:x1] += 100
        else:
            changed[min((y0 + y1) // 2, height - 1), min((x0 + x1) // 2, width - 1)] = 255
        after = wrapper.prepare(sample_of(picture_file(tmp_path / "b.png", changed)))
        changes = token_change(wrapper, before, after)
        token = block.positions()[index]
        if exact:
            assert set(changes) == {token}
        elif min(width, height) > 5:  # a picture of a few pixels is blurred over many cells
            assert max(changes, key=lambda position: changes[position]) == token
            near = {block.start + r * block.cols + c for r in range(row - 1, row + 2) for c in range(col - 1, col + 2)}
            assert set(changes) <= near
        inner = cell_box(block, row, col)
        margin_x, margin_y = 0.1 / block.scale_x, 0.1 / block.scale_y
        box = (inner[0] + margin_x, inner[1] + margin_y, inner[2] - margin_x, inner[3] - margin_y)
        assert omega([Region(medium=0, box=box)], before.token_map) == (token,)


@pytest.mark.parametrize("max_pixels", [None, 40_000, 1])
def test_the_map_follows_the_pixel_budget(wrapper: Qwen3VL, tmp_path: Path, max_pixels: int | None) -> None:
    media = picture_file(tmp_path / "a.png", noise(480, 640))
    prepared = wrapper.prepare(sample_of(media), max_pixels=max_pixels)
    (block,) = prepared.token_map.blocks
    _, high, wide = prepared.inputs["image_grid_thw"][0].tolist()
    assert (block.rows * 2, block.cols * 2) == (high, wide)
    assert block.rows * block.cols * 32 * 32 <= max(max_pixels or 640 * 480, 32 * 32)
    assert (block.cols / block.scale_x, block.rows / block.scale_y) == pytest.approx((640, 480))
    ids = prepared.inputs["input_ids"][0]
    assert (ids[block.positions()] == wrapper.processor.image_token_id).all()
    assert int((ids == wrapper.processor.image_token_id).sum()) == prepared.token_map.n_visual


def test_grid_to_token_to_grid(wrapper: Qwen3VL, tmp_path: Path) -> None:
    prepared = wrapper.prepare(sample_of(picture_file(tmp_path / "a.png", noise(300, 451))))
    (block,) = prepared.token_map.blocks
    positions = block.positions()
    assert len(set(positions)) == block.rows * block.cols
    assert [divmod(p - block.start, block.row_stride) for p in positions] == [
        (r, c) for r in range(block.rows) for c in range(block.cols)
    ]


def test_every_medium_of_a_mixed_prompt_owns_its_tokens(wrapper: Qwen3VL, tmp_path: Path) -> None:
    shapes = [(64, 96), (4, 64, 64), (96, 32), (2, 96, 128), (64, 64)]
    contents = [noise(*shape, seed=i) // 4 for i, shape in enumerate(shapes)]

    def prepared(changed: int | None) -> Prepared:
        media = []
        for number, pixels in enumerate(contents):
            pixels = pixels + 100 if number == changed else pixels
            write = picture_file if pixels.ndim == 3 else video_file
            media.append(write(tmp_path / f"{number}.{'png' if pixels.ndim == 3 else 'mov'}", pixels.astype(np.uint8)))
        return wrapper.prepare(sample_of(*media))

    before = prepared(None)
    starts = [block.start for block in before.token_map.blocks]
    assert starts == sorted(starts)
    assert [block.medium for block in before.token_map.blocks] == [0, 1, 1, 2, 3, 4]
    assert before.frames == ((), (0, 1, 2, 3), (), (0, 1), ())
    for number in range(len(shapes)):
        changes = token_change(wrapper, before, prepared(number))
        assert set(changes) == set(omega([Region(medium=number)], before.token_map))


def with_sizes(wrapper: Qwen3VL, temporal: int, merge: int) -> Qwen3VL:
    processor = copy.deepcopy(wrapper.processor)
    processor.video_processor.temporal_patch_size = temporal
    processor.video_processor.merge_size = merge
    return Qwen3VL(wrapper.model, processor)


@pytest.mark.parametrize(("temporal", "merge"), [(2, 2), (4, 2), (3, 1), (1, 2), (2, 4)])
@pytest.mark.parametrize("n_frames", [1, 5, 8])
def test_a_frame_changes_the_block_that_merged_it(
    wrapper: Qwen3VL, tmp_path: Path, temporal: int, merge: int, n_frames: int
) -> None:
    unequal = with_sizes(wrapper, temporal, merge)
    frames = noise(n_frames, 128, 192) // 4
    media = video_file(tmp_path / "a.mov", frames)
    before = unequal.prepare(sample_of(media), frames=5)
    blocks = before.token_map.blocks
    assert len(blocks) == -(-len(before.frames[0]) // temporal)
    assert [frame for block in blocks for frame in block.frames] == list(before.frames[0])
    side = 16 * merge
    for frame in before.frames[0]:
        changed = frames.copy()
        changed[frame, side : 2 * side, :side] += 100
        after = unequal.prepare(sample_of(video_file(tmp_path / "b.mov", changed)), frames=5)
        expected = omega([Region(medium=0, frame=frame, box=(0, side, side, 2 * side))], before.token_map)
        assert set(token_change(unequal, before, after)) == set(expected)
        assert len(expected) == 1


def test_a_frame_that_was_not_sampled_is_not_covered(wrapper: Qwen3VL, tmp_path: Path) -> None:
    prepared = wrapper.prepare(sample_of(video_file(tmp_path / "a.mov", noise(9, 64, 64))), frames=3)
    assert prepared.frames == ((0, 4, 8),)
    with pytest.raises(SampleError, match="none of the 1 frames"):
        omega([Region(medium=0, frame=3)], prepared.token_map)


def test_time_stamps_in_the_prompt_are_native_seconds(wrapper: Qwen3VL, tmp_path: Path) -> None:
    media = video_file(tmp_path / "a.mov", noise(40, 64, 64))
    prepared = wrapper.prepare(sample_of(Media(kind="video", path=media.path, span=(10, 40))), fps=2)
    assert prepared.frames == ((10, 16, 22, 27, 33, 39),)
    ids, tokenizer = prepared.inputs["input_ids"][0].tolist(), wrapper.processor.tokenizer
    for block, seconds in zip(prepared.token_map.blocks, (1.3, 2.45, 3.6), strict=True):
        assert block.seconds == pytest.approx(seconds)
        stamp = re.search(r"<([0-9.]+) seconds>$", tokenizer.decode(ids[: block.start - 1]))
        assert stamp is not None
        assert float(stamp[1]) == pytest.approx(seconds, abs=0.051)


def test_default_is_up_to_32_frames(wrapper: Qwen3VL, tmp_path: Path) -> None:
    assert len(wrapper.prepare(sample_of(video_file(tmp_path / "a.mov", noise(50, 32, 32)))).frames[0]) == 32
    assert len(wrapper.prepare(sample_of(video_file(tmp_path / "b.mov", noise(7, 32, 32)))).frames[0]) == 7


def test_noise_keeps_the_map_and_hides_the_picture(wrapper: Qwen3VL, tmp_path: Path) -> None:
    media = [picture_file(tmp_path / "a.png", noise(90, 70)), video_file(tmp_path / "b.mov", noise(4, 64, 64))]
    black = [
        picture_file(tmp_path / "c.png", np.zeros((90, 70, 3), np.uint8)),
        video_file(tmp_path / "d.mov", np.zeros((4, 64, 64, 3), np.uint8)),
    ]
    seen = wrapper.prepare(sample_of(*media))
    blind, again, other = (wrapper.prepare(sample_of(*media), noise_seed=seed) for seed in (1, 1, 2))
    of_black = wrapper.prepare(sample_of(*black), noise_seed=1)
    assert blind.token_map == seen.token_map
    for name in ("pixel_values", "pixel_values_videos"):
        assert torch.equal(blind.inputs[name], again.inputs[name])
        assert torch.equal(blind.inputs[name], of_black.inputs[name])  # nothing of the picture is left
        assert not torch.equal(blind.inputs[name], other.inputs[name])
        assert not torch.equal(blind.inputs[name], seen.inputs[name])


def test_a_medium_that_the_processor_refuses_is_named(wrapper: Qwen3VL, tmp_path: Path) -> None:
    media = picture_file(tmp_path / "long line.png", noise(1, 300))
    with pytest.raises(SampleError, match=r"long line\.png: refused by the processor \(absolute aspect ratio"):
        wrapper.prepare(sample_of(media))


def test_genuine_media_prepare_and_generate(wrapper: Qwen3VL, genuine_data: Path) -> None:
    folder = genuine_data / "media"
    names = ["img_chelsea.png", "img_exif_orientation6.jpg", "img_cmyk.jpg", "vid_1x1.mp4", "vid_one_frame.webm"]
    names += ["vid_vfr_rotated180.mp4", "vid_av1.mkv", "doc_malformed.pdf", "doc_table_nics.pdf"]
    for name in names:
        kind = "page" if name.endswith(".pdf") else "image" if name.startswith("img") else "video"
        media = Media(kind=kind, path=str(folder / name), page=0)  # type: ignore[arg-type]
        prepared = wrapper.prepare(sample_of(media), frames=4, max_pixels=60_000)
        ids = prepared.inputs["input_ids"][0]
        visual = torch.isin(ids, torch.tensor([wrapper.processor.image_token_id, wrapper.processor.video_token_id]))
        assert omega([Region(medium=0)], prepared.token_map) == tuple(visual.nonzero()[:, 0].tolist())
        assert isinstance(wrapper.generate(prepared, 2), str)
