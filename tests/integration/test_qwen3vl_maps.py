"""Qwen3-VL's token map: properties over many media, contradictions, MoE.

test_family_maps.py has the properties that every family's map has, test_qwen3vl_pixels.py holds this one to pixels.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from transformers import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration

from core_bench.bundled.architectures import qwen3vl as bundled
from core_bench.evidence import omega
from core_bench.heads import HeadPlan
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.prefill import LanguagePrefill
from core_bench.schema import Media, Region, Sample, TokenMap, VisualBlock

Box = tuple[float, float, float, float]
SIDES = st.integers(1, 300)
PICTURES = st.tuples(st.just(0), SIDES, SIDES).filter(lambda size: max(size[1:]) < 200 * min(size[1:]))
CLIPS = st.tuples(st.integers(1, 7), st.integers(1, 60), st.integers(1, 60))


@pytest.fixture(scope="module")
def wrapper(tiny_model: Any, tiny_processor: Any) -> Qwen3VL:
    return Qwen3VL(tiny_model, copy.deepcopy(tiny_processor))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("media")


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)


def medium(folder: Path, name: str, frames: int, width: int, height: int) -> Media:
    """A picture, or a video of `frames` frames, in a lossless file."""
    if not frames:
        Image.fromarray(noise(height, width)).save(folder / f"{name}.ppm")
        return Media(kind="image", path=str(folder / f"{name}.ppm"))
    with av.open(str(folder / f"{name}.mov"), "w") as container:
        stream = container.add_stream("png", rate=10)
        stream.width, stream.height, stream.pix_fmt = width, height, "rgb24"
        for frame in noise(frames, height, width):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return Media(kind="video", path=str(folder / f"{name}.mov"))


def sample_of(*media: Media) -> Sample:
    return Sample(task="t", id="s", cluster="c", media=media, prompt="What?", question="What?", target="x")


def boxes(block: VisualBlock) -> list[Box]:
    """In pixels of the medium, of every cell in raster order."""
    x, y = 1 / block.scale_x, 1 / block.scale_y
    return [(c * x, r * y, (c + 1) * x, (r + 1) * y) for r in range(block.rows) for c in range(block.cols)]


def of_role(token_map: TokenMap, role: str) -> list[int]:
    return [position for position, found in enumerate(token_map.roles()) if found == role]


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(PICTURES | CLIPS, min_size=1, max_size=3), max_pixels=st.none() | st.integers(1, 60_000))
@example(sizes=[(0, 64, 64), (0, 64, 64), (1, 32, 32)], max_pixels=None)
@example(sizes=[(0, 1, 199), (0, 199, 1), (3, 64, 32)], max_pixels=1)
def test_every_visual_token_has_one_place_and_the_places_tile_the_medium(
    wrapper: Qwen3VL, folder: Path, sizes: list[tuple[int, int, int]], max_pixels: int | None
) -> None:
    media = [medium(folder, str(number), *size) for number, size in enumerate(sizes)]
    prepared = wrapper.prepare(sample_of(*media), max_pixels=max_pixels)
    found, ids = prepared.token_map, prepared.inputs["input_ids"][0].tolist()
    processor = wrapper.processor
    visual = (processor.image_token_id, processor.video_token_id)
    assert of_role(found, "cell") == [position for position, token in enumerate(ids) if token in visual]
    ends = (processor.vision_start_token_id, processor.vision_end_token_id)
    assert of_role(found, "marker") == [position for position, token in enumerate(ids) if token in ends]
    assert found.newlines == ()
    assert found.n_visual == len(of_role(found, "cell"))
    for number, (frames, width, height) in enumerate(sizes):
        blocks = [block for block in found.blocks if block.medium == number]
        assert len(blocks) == max(1, -(-frames // 2))
        assert [frame for block in blocks for frame in block.frames] == list(range(frames))
        for block in blocks:
            cells = np.array(boxes(block))
            assert block.view == "whole"
            assert {found.roles()[at] for at in (block.start - 1, block.positions()[-1] + 1)} == {"marker"}
            assert cells[0, :2] == pytest.approx([0, 0])
            assert cells[-1, 2:] == pytest.approx([width, height])
            assert np.prod(cells[:, 2:] - cells[:, :2], axis=1).sum() == pytest.approx(width * height)


def test_a_video_of_one_frame_shows_it_in_both_slots(wrapper: Qwen3VL, folder: Path) -> None:
    prepared = wrapper.prepare(sample_of(medium(folder, "a", 1, 64, 96)))
    (block,) = prepared.token_map.blocks
    assert (block.frames, block.seconds, prepared.frames) == ((0,), 0.0, ((0,),))
    rows_RCTP = prepared.inputs["pixel_values_videos"].unflatten(1, (3, 2, 16 * 16))
    assert torch.equal(rows_RCTP[:, :, 0], rows_RCTP[:, :, 1])
    assert omega([Region(medium=0, frame=0)], prepared.token_map) == tuple(block.positions())
    late = medium(folder, "b", 9, 64, 96)
    (block,) = wrapper.prepare(sample_of(late), frames=1).token_map.blocks
    assert block.frames == wrapper.prepare(sample_of(late), frames=1).frames[0]
    assert len(block.frames) == 1


def test_what_contradicts_the_grid_is_an_error_of_ours(wrapper: Qwen3VL, folder: Path) -> None:
    """Not the sample's: a map that does not fit its prompt must stop the run."""
    from core_bench.media import read_visual

    media = [medium(folder, "a", 0, 96, 64), medium(folder, "b", 4, 64, 64)]
    prepared = wrapper.prepare(sample_of(*media))
    ids, visuals = prepared.inputs["input_ids"][0].tolist(), [read_visual(each) for each in media]
    assert wrapper.token_map(ids, prepared.inputs, visuals, None) == prepared.token_map
    start = prepared.token_map.blocks[0].start
    pad = wrapper.processor.image_token_id
    wrong: list[tuple[list[int], str]] = [
        ([*ids[:start], *ids[start + 1 :]], "visual tokens at position"),
        ([*ids, pad], "belong to no medium"),
        ([*ids[: start - 1], ids[0], *ids[start:]], "no vision start and end tokens"),
        ([token for token in ids if token != wrapper.processor.video_token_id], "temporal groups, but only 0"),
    ]
    for changed, message in wrong:
        with pytest.raises(RuntimeError, match=message):
            wrapper.token_map(changed, prepared.inputs, visuals, None)


def test_the_settings_that_make_tokens_are_told(wrapper: Qwen3VL) -> None:
    """The cap on a frame's pixels is pinned where a checkpoint leaves it open: releases differ in what that means."""
    told = wrapper.processing
    assert told["video_processor.cap_pixels_per_frame"] is False
    assert told["image_processor.size"] == {"shortest_edge": 4096, "longest_edge": 16777216}
    assert told["video_processor.temporal_patch_size"] == 2
    processor = copy.deepcopy(wrapper.processor)
    processor.video_processor.cap_pixels_per_frame = True
    assert Qwen3VL(wrapper.model, processor).processing["video_processor.cap_pixels_per_frame"] is True


def test_a_cap_on_a_frames_pixels_is_followed(wrapper: Qwen3VL, folder: Path) -> None:
    processor = copy.deepcopy(wrapper.processor)
    processor.video_processor.cap_pixels_per_frame = True
    processor.video_processor.max_video_tokens = 6
    sample = sample_of(medium(folder, "a", 4, 160, 128))
    free, capped = (Qwen3VL(wrapper.model, p).prepare(sample).token_map for p in (wrapper.processor, processor))
    assert {(block.rows, block.cols) for block in free.blocks} == {(4, 5)}
    assert all(block.rows * block.cols <= 6 for block in capped.blocks)


def mixture_of_experts() -> Qwen3VLMoeForConditionalGeneration:
    dense = bundled.build_config(bundled.build_tokenizer())
    text = dense.text_config.to_dict() | {
        "model_type": "qwen3_vl_moe_text",
        "num_hidden_layers": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
    }
    vision = dense.vision_config.to_dict() | {"model_type": "qwen3_vl_moe_vision"}
    ids = {name: getattr(dense, name) for name in ("image_token_id", "video_token_id")}
    ids |= {name: getattr(dense, name) for name in ("vision_start_token_id", "vision_end_token_id")}
    torch.manual_seed(0)
    return Qwen3VLMoeForConditionalGeneration(Qwen3VLMoeConfig(text_config=text, vision_config=vision, **ids)).eval()


def test_a_mixture_of_experts_loads_and_runs(wrapper: Qwen3VL, folder: Path, tmp_path: Path) -> None:
    model = mixture_of_experts()
    model.save_pretrained(tmp_path)
    wrapper.processor.save_pretrained(tmp_path)
    loaded = Qwen3VL.load(tmp_path)
    assert type(loaded.model) is Qwen3VLMoeForConditionalGeneration
    assert any("experts" in name for name, _ in loaded.language_model.named_parameters())
    sample = sample_of(medium(folder, "a", 0, 96, 64), medium(folder, "b", 3, 64, 64))
    prepared = loaded.prepare(sample)
    assert prepared.token_map == wrapper.prepare(sample).token_map
    assert isinstance(loaded.generate(prepared, 2), str)
    prefill = LanguagePrefill(loaded.model, loaded.device_inputs(prepared))
    for plan in (HeadPlan.empty(loaded.shape), HeadPlan.hybrid(loaded.shape, full=[(0, 1)], window=4, sink=1)):
        prefill.verify(plan)
