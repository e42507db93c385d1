"""A head plan on a real Qwen3-VL: what changes, what stays, and that nothing is left behind.

test_families.py has what is to hold for every family: empty and all-full plans, padded batches, RAM.

The language model here has norms on queries and keys, M-RoPE and DeepStack, as the large ones do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from core_bench.attention import AttentionTimer, MassProbe, apply, head_shape, language_model, visual_token_ids
from core_bench.heads import HeadPlan, HeadShape

Inputs = dict[str, Any]
QUESTION = "What shape is the object next to"


def picture(seed: int, width: int = 160, height: int = 96) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


def encode(processor: Any, parts: list[list[str]], images: list[Any] | None, videos: list[Any] | None = None) -> Inputs:
    """One row for each list of content parts ("image", "video" or a text), left-padded."""
    texts = []
    for row in parts:
        content = [{"type": p} if p in ("image", "video") else {"type": "text", "text": p} for p in row]
        messages = [{"role": "user", "content": content}]
        texts.append(processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    kwargs: dict[str, Any] = {"images": images} if images else {}
    if videos:
        metadata = [{"fps": 2.0, "frames_indices": list(range(len(v))), "total_num_frames": len(v)} for v in videos]
        kwargs |= {"videos": videos, "video_metadata": metadata, "do_sample_frames": False}
    return dict(processor(text=texts, padding=True, return_tensors="pt", **kwargs))


@pytest.fixture(scope="module")
def prompts(tiny_processor: Any) -> dict[str, Inputs]:
    video = np.random.default_rng(5).integers(0, 255, (6, 3, 64, 96), dtype=np.uint8)
    return {
        "image": encode(tiny_processor, [["image", QUESTION]], [picture(0)]),
        "images": encode(tiny_processor, [["image", "red", "image", QUESTION]], [picture(0), picture(1, 96, 192)]),
        "video": encode(tiny_processor, [["video", QUESTION]], None, [video]),
        "padded": encode(
            tiny_processor,
            [["image", QUESTION], ["image", "image", QUESTION * 8], ["yes"]],
            [picture(2), picture(3), picture(4, 224, 224)],
        ),
    }


@pytest.fixture
def model(tiny_model: Any) -> Iterator[Any]:
    yield tiny_model
    assert language_model(tiny_model).config._attn_implementation == "sdpa"


@pytest.fixture(scope="module")
def shape(tiny_model: Any) -> HeadShape:
    return head_shape(tiny_model)


def logits(model: Any, inputs: Inputs, **kwargs: Any) -> Tensor:
    with torch.no_grad():
        return model(**inputs, **kwargs).logits


def real(inputs: Inputs) -> Tensor:
    return inputs["attention_mask"].bool()


def test_the_padded_batch_is_padded_on_the_left(prompts: dict[str, Inputs]) -> None:
    mask = prompts["padded"]["attention_mask"]
    assert mask.shape[0] == 3
    assert (mask == 0).sum(1).max() > 50
    assert mask[:, -1].all()


def test_losing_the_padding_mask_would_show(model: Any, prompts: dict[str, Inputs], shape: HeadShape) -> None:
    """A row gives the same answer alone and beside longer rows; without its mask it does not."""
    inputs = prompts["padded"]
    plan = HeadPlan.hybrid(shape, full=[(0, 1), (3, 4)], window=8, sink=2, hold="always")
    with apply(model, plan):
        together = logits(model, inputs)[2, -1]
        row = inputs["input_ids"][2:, real(inputs)[2]]
        alone = logits(model, {"input_ids": row, "attention_mask": torch.ones_like(row)})[0, -1]
        text_only = {k: inputs[k][2:] for k in ("input_ids", "attention_mask")}
        unmasked = logits(model, {"input_ids": text_only["input_ids"]})[0, -1]
    torch.testing.assert_close(together, alone, rtol=0, atol=2e-5)
    assert (unmasked - alone).abs().max() > 1e-2


def test_streaming_plan_equals_the_reference_and_differs_from_dense(
    model: Any, prompts: dict[str, Inputs], shape: HeadShape
) -> None:
    inputs, keep = prompts["padded"], real(prompts["padded"])
    plan = HeadPlan.hybrid(shape, full=[(1, 2), (4, 0)], window=6, sink=1)
    with apply(model, plan, impl="sdpa"):
        fast = logits(model, inputs)
    with apply(model, plan, impl="reference"):
        slow = logits(model, inputs)
    torch.testing.assert_close(fast[keep], slow[keep], rtol=0, atol=2e-5)
    assert (fast - logits(model, inputs))[keep].abs().max() > 1e-2


def test_a_silenced_head_contributes_exactly_zero(model: Any, prompts: dict[str, Inputs], shape: HeadShape) -> None:
    """The input of o_proj is zero in that head's slice and untouched in the first layer's other slices."""
    seen: list[Tensor] = []
    layer = language_model(model).layers[0].self_attn
    handle = layer.o_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        logits(model, prompts["image"])
        with apply(model, HeadPlan.ablation(shape, [(0, 3)])):
            logits(model, prompts["image"])
    finally:
        handle.remove()
    before, after = (x.unflatten(-1, (shape.n_heads, -1)) for x in seen)
    assert not after[:, :, 3].any()
    assert before[:, :, 3].any()
    others = [h for h in range(shape.n_heads) if h != 3]
    torch.testing.assert_close(after[:, :, others], before[:, :, others], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["images", "video", "padded"])
def test_blind_heads_ignore_every_visual_key(
    model: Any, prompts: dict[str, Inputs], shape: HeadShape, kind: str
) -> None:
    """With all heads blind, no text position can know the pixels; the dense model can."""
    inputs = dict(prompts[kind])
    pixels = "pixel_values_videos" if kind == "video" else "pixel_values"
    other = inputs | {pixels: inputs[pixels].flip(0) + 0.5}
    text = real(inputs) & ~torch.isin(inputs["input_ids"], torch.tensor(visual_token_ids(model)))
    plan = HeadPlan.ablation(shape, shape.all_heads(), kind="blind")
    with apply(model, plan):
        one, two = logits(model, inputs), logits(model, other)
    assert torch.equal(one[text], two[text])
    assert (logits(model, inputs)[text] - logits(model, other)[text]).abs().max() > 1e-3
    with apply(model, plan, impl="reference"):
        torch.testing.assert_close(logits(model, inputs)[text], one[text], rtol=0, atol=2e-5)


def token_by_token(model: Any, inputs: Inputs, steps: int) -> tuple[Tensor, Tensor]:
    """Greedy cached generation: the new ids [B, steps] and the logits that chose them [B, steps, vocabulary]."""
    out = model.generate(
        **inputs, max_new_tokens=steps, min_new_tokens=steps, output_logits=True, return_dict_in_generate=True
    )
    return out.sequences[:, -steps:], torch.stack(out.logits, dim=1)


def longer(inputs: Inputs, new: Tensor) -> Inputs:
    """The prompt with all but the last generated token behind it."""
    more = new[:, :-1]
    grown = dict(inputs)
    grown["input_ids"] = torch.cat([inputs["input_ids"], more], 1)
    grown["attention_mask"] = torch.cat([inputs["attention_mask"], torch.ones_like(more)], 1)
    grown["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(more)], 1)
    return grown


@pytest.mark.parametrize("kind", ["image", "padded"])
@pytest.mark.parametrize("case", ["off", "blind", "stream"])
def test_cached_generation_equals_the_full_forward_under_hold_always(
    model: Any, prompts: dict[str, Inputs], shape: HeadShape, kind: str, case: str
) -> None:
    heads = [(0, 0), (0, 5), (2, 3), (5, 7)]
    plan = {
        "off": HeadPlan.ablation(shape, heads),
        "blind": HeadPlan.ablation(shape, heads, kind="blind"),
        "stream": HeadPlan.hybrid(shape, full=heads, window=8, sink=2, hold="always"),
    }[case]
    with apply(model, plan):
        new, chosen = token_by_token(model, prompts[kind], 5)
        full = logits(model, longer(prompts[kind], new), logits_to_keep=5)
    torch.testing.assert_close(chosen, full, rtol=0, atol=3e-5)


def test_hold_prefill_decodes_with_stock_attention(model: Any, prompts: dict[str, Inputs], shape: HeadShape) -> None:
    """First token as under hold always; later ones from full attention over the keys that the prefill left."""
    inputs = prompts["padded"]
    common: dict[str, Any] = {"full": [(0, 0)], "window": 4, "sink": 1}
    with apply(model, HeadPlan.hybrid(shape, **common, hold="always")):
        _, always = token_by_token(model, inputs, 3)
    with apply(model, HeadPlan.hybrid(shape, **common, hold="prefill")):
        new, prefill = token_by_token(model, inputs, 3)
        out = model(**inputs, use_cache=True)
    mask = longer(inputs, new[:, :2])["attention_mask"]
    positions = (mask.sum(1, keepdim=True) - 1 + model.model.rope_deltas).expand(3, -1, -1)
    name = "cache" if "cache" in out else "past_key_values"
    with torch.no_grad():
        step = model(input_ids=new[:, :1], attention_mask=mask, position_ids=positions, **{name: out[name]})
    assert torch.equal(always[:, 0], prefill[:, 0])
    torch.testing.assert_close(prefill[:, 1], step.logits[:, -1], rtol=0, atol=1e-5)
    assert (always[:, 1] - prefill[:, 1]).abs().max() > 1e-3


def test_no_future_token_leaks_through_the_model(model: Any, prompts: dict[str, Inputs], shape: HeadShape) -> None:
    inputs = prompts["image"]
    changed = dict(inputs)
    changed["input_ids"] = inputs["input_ids"].clone()
    changed["input_ids"][0, -3] += 1
    plan = HeadPlan.hybrid(shape, full=[(0, 0)], window=16, sink=4)
    with apply(model, plan):
        one, two = logits(model, inputs), logits(model, changed)
    assert torch.equal(one[:, :-3], two[:, :-3])
    assert not torch.equal(one[:, -3:], two[:, -3:])


@pytest.mark.parametrize("kind", ["images", "video"])
def test_probe_equals_eager_attention_summed_by_hand(
    model: Any, prompts: dict[str, Inputs], shape: HeadShape, kind: str
) -> None:
    inputs = prompts[kind]
    n = inputs["input_ids"].shape[1]
    rows, sets = [n - 1, 40, n - 4], [[3, 4, 5, 9], list(range(10, 30)), [], [n - 1]]
    probe = MassProbe(rows, sets)
    stock = logits(model, inputs)
    with apply(model, HeadPlan.empty(shape), probe=probe):
        assert torch.equal(logits(model, inputs), stock)
    config = language_model(model).config
    config._attn_implementation = "eager"
    try:
        with torch.no_grad():
            weights = model(**inputs, output_attentions=True).attentions
    finally:
        config._attn_implementation = "sdpa"
    assert probe.mass.shape == (shape.n_layers, shape.n_heads, len(sets))
    assert probe.mass.dtype == torch.float32
    for layer in range(shape.n_layers):
        for head in range(shape.n_heads):
            for s, keys in enumerate(sets):
                by_hand = sum(float(weights[layer][0, head, r, j]) for r in rows for j in keys) / len(rows)
                assert float(probe.mass[layer, head, s]) == pytest.approx(by_hand, abs=1e-5)


def test_probe_measures_the_prompt_only_and_generation_is_unchanged(
    model: Any, prompts: dict[str, Inputs], shape: HeadShape
) -> None:
    inputs = prompts["image"]
    probe, again = MassProbe([20], [[1, 2]]), MassProbe([20], [[1, 2]])
    stock, _ = token_by_token(model, inputs, 4)
    with apply(model, HeadPlan.empty(shape), probe=probe):
        probed, _ = token_by_token(model, inputs, 4)
    with apply(model, HeadPlan.empty(shape), probe=again):
        logits(model, inputs)
    assert torch.equal(stock, probed)
    torch.testing.assert_close(probe.mass, again.mass, rtol=0, atol=1e-7)


def test_probe_does_not_count_padding(model: Any, prompts: dict[str, Inputs], shape: HeadShape) -> None:
    ids = prompts["image"]["input_ids"][:, -20:]
    alone = MassProbe([19, 7], [[0, 1, 2], [6, 19]])
    padded = MassProbe([24, 12], [[5, 6, 7], [11, 24]])
    left = {"input_ids": torch.cat([ids[:, :5], ids], 1), "attention_mask": (torch.arange(25)[None] >= 5).long()}
    with apply(model, HeadPlan.empty(shape), probe=alone):
        logits(model, {"input_ids": ids})
    with apply(model, HeadPlan.empty(shape), probe=padded):
        logits(model, left)
    torch.testing.assert_close(padded.mass, alone.mass, rtol=0, atol=1e-5)


def test_eager_models_are_delegated_to_eager(model: Any, prompts: dict[str, Inputs], shape: HeadShape) -> None:
    config = language_model(model).config
    config._attn_implementation = "eager"
    try:
        stock = logits(model, prompts["padded"])
        with apply(model, HeadPlan.empty(shape), probe=AttentionTimer()):
            assert torch.equal(logits(model, prompts["padded"]), stock)
        assert config._attn_implementation == "eager"
    finally:
        config._attn_implementation = "sdpa"


def test_the_vision_tower_keeps_its_own_attention(model: Any, shape: HeadShape) -> None:
    tower = model.get_encoder(modality="image").config
    before = tower._attn_implementation
    with apply(model, HeadPlan.ablation(shape, [(0, 0)])):
        assert tower._attn_implementation == before
        assert model.config._attn_implementation == "sdpa"


def test_apply_restores_after_an_exception(model: Any, prompts: dict[str, Inputs], shape: HeadShape) -> None:
    stock = logits(model, prompts["image"])
    with pytest.raises(KeyError), apply(model, HeadPlan.ablation(shape, [(0, 0)], kind="blind")):
        raise KeyError("stop")
    assert torch.equal(logits(model, prompts["image"]), stock)
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("outer", ["empty", "ablation"])
@pytest.mark.parametrize("inner", ["empty", "ablation"])
def test_nested_apply_is_refused_and_the_outer_goes_on(model: Any, shape: HeadShape, outer: str, inner: str) -> None:
    plans = {"empty": HeadPlan.empty(shape), "ablation": HeadPlan.ablation(shape, [(0, 0)])}
    with apply(model, plans[outer]):
        before = language_model(model).config._attn_implementation
        with pytest.raises(ValueError, match="inside another apply"), apply(model, plans[inner]):
            pass
        assert language_model(model).config._attn_implementation == before


def test_bad_requests_are_named(model: Any, prompts: dict[str, Inputs], shape: HeadShape) -> None:
    plan = HeadPlan.hybrid(shape, full=[(0, 0)], window=8, sink=2)
    with pytest.raises(ValueError, match=r"impl: expected one of .*got 'flash'"), apply(model, plan, impl="flash"):
        pass
    with pytest.raises(ValueError, match="MassProbe"), apply(model, plan, probe=MassProbe([0], [[0]])):
        pass
    other = HeadPlan.empty(HeadShape(2, 4, 2))
    with pytest.raises(ValueError, match="made for 2 layers x 4 heads"), apply(model, other):
        pass
    ids = prompts["image"]["input_ids"][:, -9:]
    holes = {"input_ids": ids, "attention_mask": torch.arange(9)[None] != 5}
    with apply(model, plan), pytest.raises(ValueError, match="mask with holes"):
        logits(model, holes)
    with (
        apply(model, HeadPlan.empty(shape), probe=MassProbe([9999], [[0]])),
        pytest.raises(ValueError, match="9999 lies outside"),
    ):
        logits(model, prompts["image"])
    with (
        apply(model, HeadPlan.empty(shape), probe=MassProbe([1], [[0]])),
        pytest.raises(ValueError, match="batch of one"),
    ):
        logits(model, prompts["padded"])
    embeds = model.get_input_embeddings()(prompts["image"]["input_ids"])
    blind = HeadPlan.ablation(shape, [(0, 0)], kind="blind")
    with apply(model, blind), pytest.raises(ValueError, match="blind heads need input_ids"):
        logits(model, {"inputs_embeds": embeds})


def test_right_padding_leaves_real_tokens_alone(model: Any, prompts: dict[str, Inputs], shape: HeadShape) -> None:
    ids = prompts["image"]["input_ids"][:, -12:]
    padded = torch.cat([ids, ids[:, :5]], 1)
    mask = torch.cat([torch.ones_like(ids), torch.zeros_like(ids[:, :5])], 1)
    with apply(model, HeadPlan.hybrid(shape, full=[(0, 0)], window=4, sink=1)):
        alone = logits(model, {"input_ids": ids})
        right = logits(model, {"input_ids": padded, "attention_mask": mask})
    torch.testing.assert_close(right[:, :12], alone, rtol=0, atol=2e-5)
    assert torch.isfinite(right).all()


def test_a_probe_without_a_forward_says_so() -> None:
    with pytest.raises(RuntimeError, match="no whole prompt"):
        _ = MassProbe([0], [[0]]).mass
    with pytest.raises(ValueError, match="rows"):
        MassProbe([], [[0]])
    with pytest.raises(ValueError, match="sets"):
        MassProbe([0], [])
