"""What holds for every family, on small untrained models: plans in a forward, in prefill, in a padded batch; RAM.

Rounding is judged by the same model in float64: a result may be off by what the stock float32 result is off, times 4.
test_attention.py has what one family is enough for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from core_bench.attention import AttentionTimer, apply, language_model
from core_bench.evidence import omega, placebos
from core_bench.heads import Head, HeadPlan, HeadShape
from core_bench.kernels.hybrid_attention import hybrid_attention
from core_bench.model_wrappers.base import ModelWrapper
from core_bench.prefill import LanguagePrefill
from core_bench.ram import measure
from core_bench.schema import Media, Prepared, Region, Sample

Inputs = dict[str, Any]
MediaFile = Callable[[NDArray[np.uint8]], Media]
QUESTION = "What shape is the object next to"
KINDS = ("picture", "pictures", "video", "padded")
EVIDENCE = {
    "picture": Region(medium=0, box=(20, 10, 60, 60)),
    "pictures": Region(medium=1, box=(0, 64, 48, 128)),
    "video": Region(medium=0, frame=3, box=(10, 10, 60, 40)),
}


def noise(seed: int, *shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)


PICTURES = [noise(0, 96, 160), noise(1, 192, 96), noise(2, 224, 224)]


def batch(wrapper: ModelWrapper, rows: list[tuple[list[NDArray[np.uint8]], str]]) -> Inputs:
    """One row for each list of pictures and question, padded on the left."""
    texts = []
    for pictures, question in rows:
        content = [*({"type": "image"} for _ in pictures), {"type": "text", "text": question}]
        messages = [{"role": "user", "content": content}]
        texts.append(wrapper.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    images = [[Image.fromarray(pixels) for pixels in pictures] for pictures, _ in rows]
    given: Inputs = {"images": images} if any(images) else {}
    return dict(wrapper.processor(text=texts, padding=True, return_tensors="pt", **given))


ROWS = [([PICTURES[0]], QUESTION), (PICTURES[1:], QUESTION * 8), ([], "yes")]


@pytest.fixture(scope="module")
def prepared(untrained: ModelWrapper, media_file: MediaFile) -> dict[str, Prepared]:
    contents = {"picture": PICTURES[:1], "pictures": PICTURES[:2], "video": [noise(3, 6, 64, 96)]}
    return {
        kind: untrained.prepare(
            Sample(task="t", id=kind, cluster="c", media=tuple(map(media_file, pixels)), prompt=f"Say: {QUESTION}?",
                   question=QUESTION, target="x")
        )
        for kind, pixels in contents.items()
    }  # fmt: skip


@pytest.fixture(scope="module")
def prompts(untrained: ModelWrapper, prepared: dict[str, Prepared]) -> dict[str, Inputs]:
    alone = {kind: untrained.device_inputs(each) for kind, each in prepared.items()}
    return alone | {"padded": batch(untrained, ROWS)}


@pytest.fixture(scope="module")
def exact(untrained: ModelWrapper) -> Any:
    """The same model in float64."""
    return copy.deepcopy(untrained.model).double()


@pytest.fixture
def model(untrained: ModelWrapper) -> Iterator[Any]:
    yield untrained.model
    assert language_model(untrained.model).config._attn_implementation == "sdpa"


def logits(model: Any, inputs: Inputs, **options: Any) -> Tensor:
    given = {k: v.to(model.dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    with torch.inference_mode():
        found: Tensor = model(**given, **options).logits
    return found


def mixed(shape: HeadShape) -> HeadPlan:
    """Four layers of one mode each, the others of all four."""
    by_mode: list[set[Head]] = [set(), set(), set(), set()]
    for layer, head in shape.all_heads():
        by_mode[layer if layer < 4 else head % 4].add((layer, head))
    full, stream, off, blind = map(frozenset, by_mode)
    return HeadPlan(shape, full=full, stream=stream, off=off, blind=blind, window=8, sink=2, hold="always")


def plans(shape: HeadShape) -> dict[str, HeadPlan]:
    return {
        "empty": HeadPlan.empty(shape),
        "hybrid": HeadPlan.hybrid(shape, full=[(0, 0), (3, 5)], window=8, sink=2),
        "off": HeadPlan.ablation(shape, [(1, 1), (4, 7)]),
        "mixed": mixed(shape),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_plan_is_the_stock_model_to_the_bit(
    model: Any, prompts: dict[str, Inputs], untrained: ModelWrapper, kind: str
) -> None:
    inputs, empty = prompts[kind], HeadPlan.empty(untrained.shape)
    stock = logits(model, inputs)
    with apply(model, empty):
        assert torch.equal(logits(model, inputs), stock)
    timer = AttentionTimer()
    with apply(model, empty, probe=timer):  # through the registered function, every layer delegated
        assert language_model(model).config._attn_implementation == "core_bench"
        assert torch.equal(logits(model, inputs), stock)
    assert timer.seconds > 0
    assert torch.equal(logits(model, inputs), stock)


@pytest.mark.parametrize("arm", ["empty", "hybrid", "off", "mixed"])
@pytest.mark.parametrize("kind", KINDS)
def test_language_prefill_is_the_full_forward(
    model: Any, prompts: dict[str, Inputs], untrained: ModelWrapper, kind: str, arm: str
) -> None:
    prefill = LanguagePrefill(model, prompts[kind])
    plan = plans(untrained.shape)[arm]
    prefill.verify(plan)
    stock = logits(model, prompts[kind], logits_to_keep=1)[:, -1]
    assert torch.equal(prefill.logits(plan), stock) == (arm == "empty")
    assert prefill.vision_ms > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("impl", ["sdpa", "reference"])
def test_an_all_full_plan_through_our_path_is_stock_to_rounding(
    model: Any,
    exact: Any,
    prompts: dict[str, Inputs],
    untrained: ModelWrapper,
    kind: str,
    impl: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs, shape = prompts[kind], untrained.shape
    keep = inputs["attention_mask"].bool()
    calls: list[str] = []

    def noted(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(kwargs["impl"])
        return hybrid_attention(*args, **kwargs)

    monkeypatch.setattr("core_bench.attention.hybrid_attention", noted)
    with apply(model, HeadPlan.hybrid(shape, full=shape.all_heads(), window=1, sink=0), impl=impl):
        ours = logits(model, inputs)
    assert calls == [impl] * shape.n_layers
    assert torch.isfinite(ours).all()
    truth = logits(exact, inputs)
    assert off_by(ours[keep], truth[keep]) <= 4 * off_by(logits(model, inputs)[keep], truth[keep])


def off_by(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).abs().max())


def test_the_batch_is_padded_on_the_left_by_much(prompts: dict[str, Inputs]) -> None:
    mask = prompts["padded"]["attention_mask"]
    assert mask[:, -1].all()
    assert (mask == 0).sum(1).max() > 50


@pytest.mark.parametrize("hold", ["prefill", "always"])
def test_a_row_of_a_padded_batch_reads_as_it_does_alone(
    model: Any, exact: Any, prompts: dict[str, Inputs], untrained: ModelWrapper, hold: Any
) -> None:
    """Full, streaming, silenced and blind heads: the last token's logits, against the row alone in float64."""
    plan = replace(mixed(untrained.shape), hold=hold)
    stock = logits(model, prompts["padded"])[:, -1]
    with apply(model, plan):
        together = logits(model, prompts["padded"])[:, -1]
    for number, row in enumerate(ROWS):
        alone = batch(untrained, [row])
        truth = logits(exact, alone)[0, -1]
        allowed = 4 * off_by(stock[number], truth)
        with apply(exact, plan):
            expected = logits(exact, alone)[0, -1]
        assert off_by(together[number], expected) <= allowed
        assert off_by(expected, truth) > 100 * allowed, "the plan changes what is read"


@contextmanager
def eager(model: Any) -> Iterator[None]:
    config = language_model(model).config
    config._attn_implementation = "eager"
    try:
        yield
    finally:
        config._attn_implementation = "sdpa"


def weights_by_hand(model: Any, inputs: Inputs, rows: list[int]) -> NDArray[np.float64]:
    """[layers, heads, rows, keys]: what eager attention returns."""
    given = {k: v.to(model.dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    with eager(model), torch.inference_mode():
        weights = model(**given, output_attentions=True).attentions
    return np.stack([layer[0][:, rows].double().numpy() for layer in weights])


@pytest.mark.parametrize("query", ["question", "last"])
@pytest.mark.parametrize("kind", EVIDENCE)
def test_ram_is_eager_attention_summed_by_hand(
    model: Any,
    exact: Any,
    untrained: ModelWrapper,
    prepared: dict[str, Prepared],
    prompts: dict[str, Inputs],
    kind: str,
    query: str,
) -> None:
    rows = list(prepared[kind].spans[query])
    keys = list(omega([EVIDENCE[kind]], prepared[kind].token_map))
    elsewhere = placebos(keys, prepared[kind].token_map, n=2)
    found = measure(untrained, prepared[kind], keys, elsewhere, rows)
    exactly, rounded = (weights_by_hand(each, prompts[kind], rows) for each in (exact, model))
    truth = exactly[..., keys].sum(3).mean(2)
    rounding = np.abs(rounded[..., keys].sum(3).mean(2) - truth).max()
    assert np.abs(found.ram - truth).max() <= 4 * rounding
    assert truth.std() > 100 * rounding, "heads differ"
    assert found.placebo is not None
    by_hand = np.mean([exactly[..., list(each)].sum(3).mean(2) for each in elsewhere], axis=0)
    assert np.abs(found.placebo - by_hand).max() <= 4 * rounding
