"""A prompt read in chunks is the prompt read at once: logits, attention mass and answers, for every family and plan."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image

from core_bench.attention import MassProbe, apply, head_shape, language_model
from core_bench.bundled.architectures import FAMILIES, architecture
from core_bench.heads import HeadPlan
from core_bench.prefill import LanguagePrefill

SIZES = [pytest.param(1, marks=pytest.mark.slow), 7, pytest.param(64, marks=pytest.mark.slow), 1000]
QUESTIONS = ("What shape is it?", "Which color does the ring on the last of the pictures have, and where is it?")
# float64 all through but for the attention mass (float32): what is left is the order of sums.
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-10}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Any]]:
    """An untrained model in float64, and a left-padded batch of two prompts with two pictures each."""
    built = architecture(request.param)
    tokenizer = built.build_tokenizer()
    processor = built.build_processor(tokenizer)
    tokenizer.padding_side = "left"
    rng = np.random.default_rng(3)
    pictures = [Image.fromarray(rng.integers(0, 255, (128, 96, 3), dtype=np.uint8)) for _ in range(4)]
    texts = []
    for question in QUESTIONS:
        content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": question}]
        messages = [{"role": "user", "content": content}]
        texts.append(processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    pairs = [pictures[:2], pictures[2:]]
    inputs = dict(processor(text=texts, images=pairs, padding=True, return_tensors="pt"))
    floats = {name: value.double() for name, value in inputs.items() if value.is_floating_point()}
    return built.build_model(seed=1, tokenizer=tokenizer).double(), inputs | floats


def plan(model: Any, name: str) -> HeadPlan:
    shape = head_shape(model)
    if name == "hybrid":
        return HeadPlan.hybrid(shape, full=[(0, 0), (2, 3), (4, 1)], window=9, sink=3)
    if name == "blind":
        return HeadPlan.ablation(shape, [(0, 1), (3, 2)], kind="blind")
    return HeadPlan.empty(shape)


def logits(model: Any, inputs: dict[str, Any], name: str, size: int | None) -> torch.Tensor:
    with torch.inference_mode(), apply(model, plan(model, name), chunk=size):
        return model(**inputs, logits_to_keep=1).logits


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["dense", "hybrid", "blind"])
def test_logits(family: tuple[Any, dict[str, Any]], name: str, size: int) -> None:
    model, inputs = family
    assert int(inputs["attention_mask"].sum()) < inputs["attention_mask"].numel(), "the batch is padded"
    at_once = logits(model, inputs, name, None)
    torch.testing.assert_close(logits(model, inputs, name, size), at_once, **CLOSE)
    if name != "dense":
        assert not torch.allclose(at_once, logits(model, inputs, "dense", None), **CLOSE)


@pytest.mark.parametrize("size", SIZES)
def test_attention_mass(family: tuple[Any, dict[str, Any]], size: int) -> None:
    model, inputs = family
    real = inputs["attention_mask"][1].bool()  # the longer prompt, which is not padded
    assert bool(real.all())
    length = len(real)
    row = _row(inputs, 1)
    rows, sets = (length // 2, length - 9, length - 1), (range(5, 40), range(length // 2 - 3, length // 2 + 3))
    found = []
    for chunk in (None, size):
        probe = MassProbe(rows, [list(keys) for keys in sets])
        with torch.inference_mode(), apply(model, plan(model, "dense"), probe=probe, chunk=chunk):
            model(**row, use_cache=False, logits_to_keep=1)
        found.append(probe.mass)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [-1, pytest.param(7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("hold", ["prefill", "always"])
def test_generation(family: tuple[Any, dict[str, Any]], hold: Literal["prefill", "always"], size: int) -> None:
    """Also where the last chunk is one token: that is no decode step, so the plan holds for it under hold "prefill"."""
    model, inputs = family
    hybrid = HeadPlan.hybrid(head_shape(model), full=[(0, 0)], window=4, sink=1, hold=hold)
    if size < 0:  # all but the last token in one chunk
        size += inputs["input_ids"].shape[1]
    said = []
    for chunk in (None, size):
        asked: dict[str, Any] = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True}
        with torch.inference_mode(), apply(model, hybrid, chunk=chunk):
            said.append(torch.stack(model.generate(**inputs, max_new_tokens=4, **asked).logits))
    torch.testing.assert_close(said[1], said[0], **CLOSE)


def test_the_timed_prefill_reads_in_chunks_too(family: tuple[Any, dict[str, Any]]) -> None:
    model, inputs = family
    lengths: list[int] = []
    note = language_model(model).layers[0].register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    try:
        prefill = LanguagePrefill(model, inputs, chunk=50)
        lengths.clear()
        prefill.verify(plan(model, "hybrid"))
    finally:
        note.remove()
    total = inputs["input_ids"].shape[1]
    pieces = [50] * (total // 50) + [total % 50] * (total % 50 > 0)
    assert lengths == pieces * 2


def test_the_model_is_as_before(tiny_model: Any) -> None:
    forward = language_model(tiny_model).forward
    dense = HeadPlan.empty(head_shape(tiny_model))
    refused = pytest.raises(ValueError, match="chunk: expected at least 1 token, got 0")
    with refused, apply(tiny_model, dense, chunk=0):
        pass
    with apply(tiny_model, dense, chunk=5):
        assert language_model(tiny_model).forward != forward
    assert language_model(tiny_model).forward == forward
    assert "forward" not in vars(language_model(tiny_model))


def test_a_hook_of_accelerate_stays(tiny_model: Any) -> None:
    """A model spread over devices has its language model's forward replaced already."""
    from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module

    ids = torch.arange(12)[None] + 300
    dense = HeadPlan.empty(head_shape(tiny_model))
    language = language_model(tiny_model)
    with torch.inference_mode():
        before = tiny_model(input_ids=ids).logits
        add_hook_to_module(language, ModelHook())
        hooked = language.forward
        try:
            with apply(tiny_model, dense, chunk=5):
                torch.testing.assert_close(tiny_model(input_ids=ids).logits, before)
            assert language.forward is hooked
        finally:
            remove_hook_from_module(language)


def test_what_cannot_be_cut_is_refused(tiny_model: Any) -> None:
    ids = torch.arange(12)[None] + 300
    dense = HeadPlan.empty(head_shape(tiny_model))
    refused = pytest.raises(ValueError, match="output_hidden_states")
    with torch.inference_mode(), apply(tiny_model, dense, chunk=5), refused:
        tiny_model(input_ids=ids, output_hidden_states=True)


def _row(inputs: dict[str, Any], number: int) -> dict[str, Any]:
    """One prompt of the batch, with its half of the pictures."""
    cut = {}
    for name, value in inputs.items():
        each = len(value) // 2
        cut[name] = value[number * each : (number + 1) * each]
    return cut
