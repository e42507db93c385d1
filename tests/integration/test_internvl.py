"""InternVL's token map, spans and refusals; `test_internvl_pixels.py` holds the map against pixels."""

from __future__ import annotations

from collections.abc import Callable
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

from core_bench.bundled.architectures import internvl as bundled
from core_bench.errors import SampleError
from core_bench.evidence import omega
from core_bench.heads import HeadShape
from core_bench.model_wrappers.internvl import InternVL
from core_bench.registry import model_class
from core_bench.schema import Media, Prepared, Region, Sample, TokenMap, VisualBlock

Pixels = NDArray[np.uint8]
MCQ = "What does the cat hold?\nA. a book\nB. the cat\nAnswer with the letter."


@pytest.fixture(scope="module")
def wrapper() -> InternVL:
    return InternVL(bundled.build_model(), bundled.build_processor())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("media")


def noise(*shape: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)


def picture(folder: Path, width: int, height: int, name: str = "a") -> Media:
    Image.fromarray(noise(height, width)).save(folder / f"{name}.ppm")
    return Media(kind="image", path=str(folder / f"{name}.ppm"))


def video(folder: Path, n_frames: int, width: int = 64, height: int = 48, name: str = "a", rate: int = 10) -> Media:
    with av.open(str(folder / f"{name}.mov"), "w") as container:
        stream = container.add_stream("png", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "rgb24"
        for frame in noise(n_frames, height, width):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return Media(kind="video", path=str(folder / f"{name}.mov"))


def sample_of(*media: Media, prompt: str = "What is this?", question: str | None = None, **more: Any) -> Sample:
    asked = prompt if question is None else question
    return Sample(task="t", id="s1", cluster="c", media=media, prompt=prompt, question=asked, target="x", **more)


def text_of(wrapper: InternVL, prepared: Prepared, rule: str) -> str:
    ids = prepared.inputs["input_ids"][0].tolist()
    return str(wrapper.processor.tokenizer.decode([ids[position] for position in prepared.spans[rule]]))


def boxes(block: VisualBlock) -> NDArray[np.float64]:
    """(x0, y0, x1, y1) in pixels of every cell, raster order."""
    rows, cols = np.divmod(np.arange(block.rows * block.cols), block.cols)
    x, y = (np.stack([edge, edge + 1]) for edge in (cols - block.offset_x, rows - block.offset_y))
    return np.stack([x[0] / block.scale_x, y[0] / block.scale_y, x[1] / block.scale_x, y[1] / block.scale_y], axis=1)


SIDES = st.integers(1, 700)


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=3), max_pixels=st.none() | st.integers(1, 300_000))
@example(sizes=[(128, 128), (128, 128)], max_pixels=None)
@example(sizes=[(1, 700), (700, 1), (512, 512)], max_pixels=None)
@example(sizes=[(224, 192), (264, 154)], max_pixels=None)
def test_every_token_has_one_place_and_the_places_tile_every_view(
    wrapper: InternVL, folder: Path, sizes: list[tuple[int, int]], max_pixels: int | None
) -> None:
    media = [picture(folder, *size, name=f"{n}") for n, size in enumerate(sizes)]
    prepared = wrapper.prepare(sample_of(*media), max_pixels=max_pixels)
    found, ids = prepared.token_map, prepared.inputs["input_ids"][0]
    named = {"cell": "<IMG_CONTEXT>", "marker": ["<img>", "</img>"]}
    for role, tokens in named.items():
        expected = torch.isin(
            ids, torch.tensor(wrapper.processor.tokenizer.convert_tokens_to_ids([*np.atleast_1d(tokens)]))
        )
        assert [each == role for each in found.roles()] == expected.tolist()
    assert len(found.markers) == 2 * len(sizes)
    assert found.newlines == ()
    for medium, (width, height) in enumerate(sizes):
        blocks = [block for block in found.blocks if block.medium == medium]
        views = [block.view for block in blocks]
        assert views in (["whole"], ["tiles"] * (len(blocks) - 1) + ["thumbnail"])
        assert len(views) != 2
        if max_pixels is not None:
            assert max(1, len(blocks) - 1) <= max(1, max_pixels // bundled.TILE**2)
        for view in set(views):
            cells = np.concatenate([boxes(block) for block in blocks if block.view == view])
            assert cells.min() >= -1e-6
            assert (cells[:, 2:].max(axis=0) <= np.array([width, height]) * (1 + 1e-9)).all()
            areas = (cells[:, 2] - cells[:, 0]) * (cells[:, 3] - cells[:, 1])
            assert areas.sum() == pytest.approx(width * height)
            assert len({tuple(corner) for corner in cells[:, :2].round(6)}) == len(cells), "no two cells in one place"


def test_places_and_tokens_are_each_others_inverse(wrapper: InternVL, folder: Path) -> None:
    found = wrapper.prepare(sample_of(picture(folder, 450, 300))).token_map
    assert [block.view for block in found.blocks] == ["tiles"] * 6 + ["thumbnail"]
    for block in found.blocks[:6]:
        for token, (x0, y0, x1, y1) in zip(block.positions(), boxes(block), strict=True):
            inside = (x0 + 0.1 * (x1 - x0), y0 + 0.1 * (y1 - y0), x1 - 0.1 * (x1 - x0), y1 - 0.1 * (y1 - y0))
            tokens = omega([Region(medium=0, box=inside)], found)
            assert tokens[0] == token
            assert [position in found.blocks[6].positions() for position in tokens] == [False, True]


@pytest.mark.parametrize(
    ("max_pixels", "tiles"), [(None, 12), (10**9, 12), (12 * 128**2 - 1, 6), (2 * 128**2, 1), (1, 1)]
)
def test_a_budget_leaves_whole_tiles(wrapper: InternVL, folder: Path, max_pixels: int | None, tiles: int) -> None:
    prepared = wrapper.prepare(sample_of(picture(folder, 640, 480)), max_pixels=max_pixels)
    shown = [block.view for block in prepared.token_map.blocks]
    assert len(shown) == tiles + (tiles > 1)
    assert len(prepared.inputs["pixel_values"]) == len(shown)


def test_a_budget_does_not_touch_videos(wrapper: InternVL, folder: Path) -> None:
    media = video(folder, 3)
    free, capped = (wrapper.prepare(sample_of(media), max_pixels=pixels) for pixels in (None, 1))
    assert free.token_map == capped.token_map
    assert torch.equal(free.inputs["pixel_values"], capped.inputs["pixel_values"])


def test_frames_are_numbered_and_timed(wrapper: InternVL, folder: Path) -> None:
    media = video(folder, 41)
    prepared = wrapper.prepare(sample_of(Media(kind="video", path=media.path, span=(10, 40))), fps=2)
    assert prepared.frames == ((10, 16, 22, 27, 33, 39),)
    ids, tokenizer = prepared.inputs["input_ids"][0].tolist(), wrapper.processor.tokenizer
    for number, block in enumerate(prepared.token_map.blocks):
        frame = prepared.frames[0][number]
        assert (block.frames, block.view) == ((frame,), "whole")
        assert block.seconds == pytest.approx(frame / 10)
        assert tokenizer.decode(ids[: block.start]).endswith(f"Frame{number + 1}: <img>")
    with pytest.raises(SampleError, match="none of the 1 frames"):
        omega([Region(medium=0, frame=11)], prepared.token_map)


def test_default_is_up_to_32_frames(wrapper: InternVL, folder: Path) -> None:
    assert len(wrapper.prepare(sample_of(video(folder, 50))).frames[0]) == 32
    assert wrapper.prepare(sample_of(video(folder, 7))).frames == (tuple(range(7)),)


def test_videos_of_unequal_lengths_are_named(wrapper: InternVL, folder: Path) -> None:
    media = video(folder, 4, name="long"), video(folder, 3, name="short")
    with pytest.raises(
        SampleError, match=r"long\.mov \(4 frames\), .*short\.mov \(3 frames\): InternVL's processor needs"
    ):
        wrapper.prepare(sample_of(*media))
    assert len(wrapper.prepare(sample_of(*media), frames=3).token_map.blocks) == 6


def test_noise_keeps_the_map_and_hides_the_media(wrapper: InternVL, folder: Path) -> None:
    media = picture(folder, 300, 200), video(folder, 4)
    seen = wrapper.prepare(sample_of(*media))
    blind, again, other = (wrapper.prepare(sample_of(*media), noise_seed=seed) for seed in (1, 1, 2))
    assert blind.token_map == seen.token_map
    pixels = [prepared.inputs["pixel_values"] for prepared in (seen, blind, again, other)]
    assert torch.equal(pixels[1], pixels[2])
    for tile in range(len(pixels[0])):
        assert not torch.equal(pixels[1][tile], pixels[0][tile])
        assert not torch.equal(pixels[1][tile], pixels[3][tile])


def test_spans_decode_to_their_texts(wrapper: InternVL, folder: Path) -> None:
    media = picture(folder, 300, 200), video(folder, 2), picture(folder, 64, 64, "b")
    prepared = wrapper.prepare(sample_of(*media, prompt=MCQ, question="What does the cat hold?", phrase="the cat"))
    assert text_of(wrapper, prepared, "question") == "What does the cat hold?"
    assert text_of(wrapper, prepared, "phrase").strip() == "the cat"
    assert set(prepared.spans["phrase"]) < set(prepared.spans["question"])
    assert prepared.spans["last"] == (prepared.token_map.length - 1,)


def test_a_template_with_line_breaks_after_media_as_the_released_one(wrapper: InternVL, folder: Path) -> None:
    processor = bundled.build_processor()
    for token in ("<IMG_CONTEXT>", "<video>"):
        processor.chat_template = processor.chat_template.replace(f"-%}}{token}", f"-%}}{{{{ '{token}\\n' }}}}")
    broken = InternVL(wrapper.model, processor)
    media = picture(folder, 300, 200), video(folder, 2)
    prepared = broken.prepare(sample_of(*media, prompt=MCQ, question="What does the cat hold?"))
    text = processor.tokenizer.decode(prepared.inputs["input_ids"][0])
    assert text.count("</img>\n") == 3
    assert f"</img>\n{MCQ}<|im_end|>" in text
    assert text_of(broken, prepared, "question") == "What does the cat hold?"
    assert prepared.token_map.n_visual == wrapper.prepare(sample_of(*media)).token_map.n_visual


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(max_examples=30, deadline=None)
@given(before=TEXT, question=TEXT.filter(bool), after=TEXT, clip=st.booleans())
@example(before="\n", question="Frame1: ", after=" ", clip=True)
@example(before="é", question="日本語?", after="🙂", clip=False)
def test_any_text_keeps_its_span(
    wrapper: InternVL, folder: Path, before: str, question: str, after: str, clip: bool
) -> None:
    media = (
        Media(kind="video", path=str(folder / "span.mov"))
        if clip
        else Media(kind="image", path=str(folder / "span.ppm"))
    )
    if not Path(media.path).exists():
        media = video(folder, 2, name="span") if clip else picture(folder, 32, 32, "span")
    prompt = before + question + after
    prepared = wrapper.prepare(sample_of(media, prompt=prompt, question=question))
    text = wrapper.processor.tokenizer.decode(prepared.inputs["input_ids"][0])
    assert text.endswith(f"</img>{prompt}<|im_end|>\n<|im_start|>assistant\n")
    assert question in text_of(wrapper, prepared, "question")


@pytest.mark.parametrize("where", ["prompt", "system", "prime"])
@pytest.mark.parametrize("token", ["<IMG_CONTEXT>", "<video>", "<img>", "</img>", "<|im_end|>"])
def test_control_tokens_in_user_text_are_refused(wrapper: InternVL, where: str, token: str) -> None:
    texts = {"prompt": "Why?", where: f"Why? {token}"}
    with pytest.raises(SampleError, match=rf"sample s1: its {where} contains the control token"):
        wrapper.prepare(sample_of(question="Why?", **texts))


def test_look_alikes_are_plain_text(wrapper: InternVL, folder: Path) -> None:
    prompt = "<image> <img > <IMG_CONTEXT >"
    prepared = wrapper.prepare(sample_of(picture(folder, 64, 64), prompt=prompt))
    assert text_of(wrapper, prepared, "question") == prompt
    assert len(prepared.token_map.markers) == 2


def test_the_bundled_processor_and_model_agree(wrapper: InternVL) -> None:
    tokenizer, config = wrapper.processor.tokenizer, wrapper.model.config
    for token in bundled.SPECIAL_TOKENS:
        assert tokenizer.encode(token, add_special_tokens=False) == [tokenizer.convert_tokens_to_ids(token)]
    assert wrapper.processor.image_token_id == config.image_token_id
    assert config.text_config.vocab_size == len(tokenizer)
    assert config.text_config.eos_token_id == tokenizer.eos_token_id
    assert wrapper.shape == HeadShape(6, 8, 4)


def test_a_prompt_without_media(wrapper: InternVL) -> None:
    prepared = wrapper.prepare(sample_of(prompt=MCQ, question="What does the cat hold?"))
    assert prepared.token_map == TokenMap(blocks=(), length=prepared.token_map.length)
    assert isinstance(wrapper.generate(prepared, 1), str)


def test_generate_equals_the_greedy_loop(wrapper: InternVL, folder: Path) -> None:
    prepared = wrapper.prepare(sample_of(picture(folder, 256, 128), video(folder, 2), prime="It is"))
    inputs = wrapper.device_inputs(prepared)
    chosen: list[int] = []
    with torch.inference_mode():
        while len(chosen) < 4 and wrapper.processor.tokenizer.eos_token_id not in chosen:
            chosen.append(int(wrapper.model(**inputs, use_cache=False).logits[0, -1].argmax()))
            inputs["input_ids"] = torch.cat([inputs["input_ids"], torch.tensor([[chosen[-1]]])], dim=1)
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    assert wrapper.generate(prepared, 4) == wrapper.processor.tokenizer.decode(chosen, skip_special_tokens=True)


class Tampered:
    """A processor whose output is changed before anyone sees it."""

    def __init__(self, processor: Any, change: Callable[[dict[str, Any]], None]) -> None:
        self.processor, self.change = processor, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self.processor, name)

    def __call__(self, **options: Any) -> dict[str, Any]:
        inputs = dict(self.processor(**options))
        self.change(inputs)
        return inputs


def without(position: int) -> Callable[[dict[str, Any]], None]:
    """Takes one token out of the ids."""

    def change(inputs: dict[str, Any]) -> None:
        ids = inputs["input_ids"]
        inputs["input_ids"] = torch.cat([ids[:, :position], ids[:, position + 1 :]], dim=1)

    return change


def fewer_tiles(inputs: dict[str, Any]) -> None:
    inputs["pixel_values"] = inputs["pixel_values"][:-1]


def larger_tiles(inputs: dict[str, Any]) -> None:
    inputs["pixel_values"] = inputs["pixel_values"].repeat(1, 1, 2, 2)


def other_grid(inputs: dict[str, Any]) -> None:
    """One tile of 16 tokens less, in ids and pixels."""
    for _ in range(16):
        without(4)(inputs)
    fewer_tiles(inputs)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (fewer_tiles, "112 visual tokens for 6 tiles of 4 x 4"),
        (without(20), "111 visual tokens for 7 tiles"),
        (without(3), "1 runs of visual tokens, but markers at"),
        (larger_tiles, "a tile of 256 x 256 pixels is 8 x 8 tokens to the model, 16 to the processor"),
        (other_grid, "6 tiles came, expected 3 x 2 and a thumbnail"),
    ],
)
def test_contradictions_are_never_mapped(
    wrapper: InternVL, folder: Path, change: Callable[[dict[str, Any]], None], says: str
) -> None:
    tampered = InternVL(wrapper.model, Tampered(wrapper.processor, change))
    with pytest.raises(RuntimeError, match=says):
        tampered.prepare(sample_of(picture(folder, 450, 300)))


def test_a_saved_checkpoint_loads_and_prepares_the_same(wrapper: InternVL, folder: Path, tmp_path: Path) -> None:
    wrapper.model.save_pretrained(tmp_path)
    wrapper.processor.save_pretrained(tmp_path)
    loaded = model_class("internvl").load(tmp_path)
    assert isinstance(loaded, InternVL)
    sample = sample_of(picture(folder, 450, 300), video(folder, 3))
    one, two = wrapper.prepare(sample), loaded.prepare(sample)
    assert (one.token_map, one.spans) == (two.token_map, two.spans)
    assert torch.equal(one.inputs["pixel_values"], two.inputs["pixel_values"])
    assert wrapper.generate(one, 3) == loaded.generate(two, 3)
    assert loaded.shape == wrapper.shape


def test_genuine_media_prepare_and_generate(wrapper: InternVL, genuine_data: Path) -> None:
    names = ["img_chelsea.png", "img_exif_orientation6.jpg", "img_cmyk.jpg", "vid_1x1.mp4", "vid_one_frame.webm"]
    names += ["vid_vfr_rotated180.mp4", "vid_av1.mkv", "doc_malformed.pdf", "doc_table_nics.pdf"]
    for name in names:
        kind = "page" if name.endswith(".pdf") else "image" if name.startswith("img") else "video"
        media = Media(kind=kind, path=str(genuine_data / "media" / name), page=0)  # type: ignore[arg-type]
        prepared = wrapper.prepare(sample_of(media), frames=4)
        visual = (prepared.inputs["input_ids"][0] == wrapper.processor.image_token_id).nonzero()[:, 0]
        assert omega([Region(medium=0)], prepared.token_map) == tuple(visual.tolist())
        assert isinstance(wrapper.generate(prepared, 2), str)
