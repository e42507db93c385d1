"""The family that docs/families.md shows: its code, its token map against pixels, and its way into the suite.

The model is untrained, and its patches do not mix: the output projections of vision attention are zero.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import (
    CLIPImageProcessor,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

import core_bench
from core_bench import HeadPlan, registry
from core_bench.bundled.architectures import tokenizer as bundled_tokenizer
from core_bench.errors import SampleError, UserError
from core_bench.evidence import omega
from core_bench.model_wrappers.base import ModelWrapper
from core_bench.prefill import LanguagePrefill
from core_bench.schema import Media, Prepared, Region, Sample

MediaFile = Callable[[NDArray[np.uint8]], Media]
Bench = Callable[..., Any]
PATCH, SIDE = 14, 4  # a picture is 4 x 4 tokens of 14 x 14 pixels
CROP = PATCH * SIDE
TEMPLATE = (
    "{% for message in messages %}{% for part in message.content %}{% if part.type == 'image' %}<image>\n"
    "{% else %}USER: {{ part.text }}{% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %} ASSISTANT:{% endif %}"
)


@pytest.fixture(scope="module")
def code(repo_root: Path) -> str:
    """The code block of the page, which is the file beside it."""
    page = (repo_root / "docs" / "families.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert block == (repo_root / "docs" / "llava15.py").read_text(encoding="utf-8")
    assert len(block.splitlines()) < 80
    return str(block)


@pytest.fixture(scope="module")
def folder(code: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a user keeps the module, on the path."""
    folder = tmp_path_factory.mktemp("family")
    (folder / "llava15.py").write_text(code, encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("llava15", None)


def build_processor() -> LlavaProcessor:
    special = ("<|endoftext|>", "</s>", "<image>")
    return LlavaProcessor(
        image_processor=CLIPImageProcessor(
            size={"shortest_edge": CROP}, crop_size={"height": CROP, "width": CROP}, image_mean=[0.5] * 3
        ),
        tokenizer=bundled_tokenizer.build_tokenizer(special, eos="</s>", pad="<|endoftext|>"),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    )


def build_model(processor: LlavaProcessor) -> LlavaForConditionalGeneration:
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 96}
    tokenizer = processor.tokenizer
    text = sizes | {"model_type": "llama", "vocab_size": len(tokenizer), "num_key_value_heads": 2}
    text |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    vision = sizes | {"model_type": "clip_vision_model", "image_size": CROP, "patch_size": PATCH}
    config = LlavaConfig(text_config=text, vision_config=vision, image_token_id=processor.image_token_id)
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config).eval()
    projections = [module for name, module in model.named_modules() if name.endswith("self_attn.out_proj")]
    assert len(projections) == sizes["num_hidden_layers"]
    for projection in projections:
        torch.nn.init.zeros_(projection.weight)
        torch.nn.init.zeros_(projection.bias)
    return model


@pytest.fixture(scope="module")
def wrapper(folder: Path) -> ModelWrapper:
    processor = build_processor()
    made: ModelWrapper = importlib.import_module("llava15").Llava15(build_model(processor), processor)
    return made


@pytest.fixture(scope="module")
def saved(wrapper: ModelWrapper, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llava-1.5")
    wrapper.model.save_pretrained(folder)
    wrapper.processor.save_pretrained(folder)
    return folder


def prepared(wrapper: ModelWrapper, *media: Media) -> Prepared:
    sample = Sample(task="t", id="s", cluster="c", media=media, prompt="What?", question="What?", target="x")
    return wrapper.prepare(sample)


def embedded(wrapper: ModelWrapper, prompt: Prepared) -> torch.Tensor:
    """What the language model is given: float32 [prompt, hidden]."""
    _, kwargs = LanguagePrefill(wrapper.model, wrapper.device_inputs(prompt))._call
    found: torch.Tensor = kwargs["inputs_embeds"][0]
    return found


def middles(width: int, height: int) -> dict[tuple[int, int], tuple[float, float]]:
    """(row, column) -> the middle of this token's cell, in pixels of the picture, by hand: the shorter side becomes 56
    pixels, of the longer the middle is kept. Cells beside the kept ones are those that a larger grid would have."""
    scale = CROP / min(width, height)
    cut_x, cut_y = ((int(extent * scale) - CROP) // 2 for extent in (width, height))
    return {
        (row, col): (((col + 0.5) * PATCH + cut_x) / scale, ((row + 0.5) * PATCH + cut_y) / scale)
        for row in range(-SIDE, 2 * SIDE)
        for col in range(-SIDE, 2 * SIDE)
    }


@pytest.mark.parametrize(("width", "height"), [(56, 56), (91, 56), (56, 131), (112, 224), (280, 168)])
@pytest.mark.parametrize("number", [0, 1])
def test_the_map_against_pixels(
    wrapper: ModelWrapper, media_file: MediaFile, width: int, height: int, number: int
) -> None:
    """Small patches in the middle of cells, also of cells that are cut off; alone, or after another picture."""
    others = [media_file(np.full((60, 80, 3), 7, dtype=np.uint8))] * number
    pixels = np.random.default_rng(0).integers(0, 100, (height, width, 3), dtype=np.uint8)
    before = prepared(wrapper, *others, media_file(pixels))
    base, ids = embedded(wrapper, before), before.inputs["input_ids"][0].tolist()
    visual = [position for position, token in enumerate(ids) if token == wrapper.processor.image_token_id]
    assert len(visual) == (number + 1) * SIDE**2
    seen, cut_off = 0, 0
    for (row, col), (x, y) in middles(width, height).items():
        x0, y0, x1, y1 = box = round(x) - 2, round(y) - 2, round(x) + 2, round(y) + 2
        if min(x0, y0) < 0 or x1 > width or y1 > height:
            continue
        after = pixels.copy()
        after[y0:y1, x0:x1] += 100
        moved = embedded(wrapper, prepared(wrapper, *others, media_file(after))) - base
        tokens = tuple((moved.abs().amax(1) > 1e-6).nonzero()[:, 0].tolist())
        region = Region(medium=number, box=box)
        if 0 <= row < SIDE and 0 <= col < SIDE:
            seen += 1
            assert tokens == (visual[number * SIDE**2 + row * SIDE + col],)
            assert omega([region], before.token_map) == tokens
        else:
            cut_off += 1
            assert tokens == ()
            with pytest.raises(SampleError, match="no cell is covered"):
                omega([region], before.token_map)
    assert seen == SIDE**2
    assert bool(cut_off) == (width != height)


def test_pictures_side_by_side_and_none(wrapper: ModelWrapper, media_file: MediaFile, folder: Path) -> None:
    """A template may leave nothing between them; a prompt may have none."""
    media = [media_file(np.full((60, 80, 3), 7, dtype=np.uint8))] * 3
    tight = build_processor()
    tight.chat_template = TEMPLATE.replace("<image>\n", "<image>")
    close = prepared(type(wrapper)(wrapper.model, tight), *media).token_map
    apart = prepared(wrapper, *media).token_map
    assert [block.start - close.blocks[0].start for block in close.blocks] == [0, 16, 32]
    assert [block.start - apart.blocks[0].start for block in apart.blocks] == [0, 17, 34]
    assert prepared(wrapper).token_map.blocks == ()


def test_videos_are_refused(wrapper: ModelWrapper, media_file: MediaFile) -> None:
    with pytest.raises(SampleError, match=r"\.mov: LLaVA-1.5 reads no videos"):
        prepared(wrapper, media_file(np.zeros((2, 64, 64, 3), dtype=np.uint8)))


def test_a_contradiction_is_never_mapped(wrapper: ModelWrapper, media_file: MediaFile) -> None:
    from core_bench.media import read_visual

    medium = media_file(np.full((60, 80, 3), 7, dtype=np.uint8))
    found = prepared(wrapper, medium)
    ids = found.inputs["input_ids"][0].tolist()
    del ids[found.token_map.blocks[0].start]
    with pytest.raises(RuntimeError, match="1 pictures of 4 x 4 tokens, but runs of"):
        wrapper.token_map(ids, found.inputs, [read_visual(medium)], None)


@pytest.fixture
def no_families_left_over() -> Iterator[None]:
    known = dict(registry.MODELS)
    yield
    registry.MODELS.clear()
    registry.MODELS.update(known)


def test_a_registered_family_in_python(folder: Path, saved: Path, task: Path, no_families_left_over: None) -> None:
    with pytest.raises(UserError, match=r"model: expected one of .*, got 'llava15'"):
        core_bench.load("llava15", str(saved), device="cpu")
    registry.register_model("llava15", "llava15:Llava15")
    registry.register_model("llava15", "llava15:Llava15")
    with pytest.raises(ValueError, match="'llava15' is taken by llava15:Llava15, got other:Class"):
        registry.register_model("llava15", "other:Class")
    loaded = core_bench.load("llava15", str(saved), device="cpu")
    scores = core_bench.find_heads(loaded, tasks=[str(task)])
    assert scores.ram.shape == (3, 4)
    assert scores.n == 3
    with core_bench.apply(loaded.model, HeadPlan.hybrid(loaded.shape, full=scores.top(2), window=8, sink=2)):
        assert isinstance(loaded.generate(prepared(loaded), 2), str)


@pytest.fixture
def installed(folder: Path) -> Iterator[None]:
    """The module as an installed package would bring it: with an entry point."""
    about = folder / "llava15-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: llava15\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[core_bench.models]\nllava15 = llava15:Llava15\n")
    importlib.invalidate_caches()
    yield
    for path in about.iterdir():
        path.unlink()
    about.rmdir()
    importlib.invalidate_caches()


@pytest.mark.parametrize("mode", ["detect", "ablate", "hybrid"])
def test_an_installed_family_on_the_command_line(
    bench: Bench, task: Path, saved: Path, installed: None, mode: str
) -> None:
    given: dict[str, Any] = {"model_folder": saved, "family": "llava15"}
    flags = ("--tasks", task, "--window", "8", "--sink", "2", "--keep", "2", "--ablate", "top:2")
    if mode != "detect":
        assert bench("detect", *flags[:2], out="found", **given).code == 0
    ran = bench(mode, *flags, **given)
    assert ran.code == 0, ran.said
    assert ran.record["run"]["model"] == "llava15"
    assert {row["failure"] for row in ran.rows} == {None}
    assert {row["arm"] for row in ran.rows} == {
        "detect": {"detect"}, "ablate": {"none", "top:2"}, "hybrid": {"dense", "hybrid:2"},
    }[mode]  # fmt: skip


def test_what_is_wrong_with_a_family_is_one_line(
    bench: Bench, task: Path, saved: Path, folder: Path, no_families_left_over: None
) -> None:
    for name, target, said in (
        ("gone", "no_such_module:Family", "model gone: no_such_module:Family cannot be imported"),
        (
            "other",
            "llava15:Llava15",
            "model other: expected a class of that family, llava15:Llava15 says it is 'llava15'",
        ),
        ("absent", "llava15:Absent", "model absent: llava15:Absent cannot be imported"),
    ):
        registry.register_model(name, target)
        ran = bench("dense", "--tasks", task, model_folder=saved, family=name)
        assert said in ran.refusal
