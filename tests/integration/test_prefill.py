"""Language-only prefill is the full forward, to the bit; and the counted work is what a loop counts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from core_bench.attention import head_shape, language_model
from core_bench.heads import HeadPlan, HeadShape
from core_bench.prefill import LanguagePrefill, amdahl_bound, ideal_speedup, time_interleaved, visible_pairs

SHAPE = HeadShape(2, 4, 2)


def encode(processor: Any, n_pictures: int, side: int, question: str = "What shape is it?") -> dict[str, Any]:
    rng = np.random.default_rng(side)
    pictures = [Image.fromarray(rng.integers(0, 255, (side, side, 3), dtype=np.uint8)) for _ in range(n_pictures)]
    content = [{"type": "image"}] * n_pictures + [{"type": "text", "text": question}]
    messages = [{"role": "user", "content": content}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return dict(processor(text=[text], images=pictures or None, return_tensors="pt"))


def plans(shape: HeadShape) -> dict[str, HeadPlan]:
    return {
        "dense": HeadPlan.empty(shape),
        "hybrid": HeadPlan.hybrid(shape, full=[(0, 0), (3, 5)], window=8, sink=2),
        "blind": HeadPlan.ablation(shape, shape.all_heads(), kind="blind"),
        "off": HeadPlan.ablation(shape, [(1, 1)]),
    }


@pytest.mark.parametrize("arm", ["dense", "hybrid", "blind", "off"])
def test_logits_are_bit_identical_to_the_full_forward(tiny_model: Any, tiny_processor: Any, arm: str) -> None:
    inputs = encode(tiny_processor, 2, 128)
    prefill = LanguagePrefill(tiny_model, inputs)
    plan = plans(head_shape(tiny_model))[arm]
    prefill.verify(plan)
    if arm == "dense":
        with torch.no_grad():
            stock = tiny_model(**inputs, logits_to_keep=1).logits[:, -1]
        assert torch.equal(prefill.logits(plan), stock)
    else:
        assert not torch.equal(prefill.logits(plan), prefill.logits(HeadPlan.empty(plan.shape)))


def test_stale_rope_deltas_of_another_call_change_nothing(tiny_model: Any, tiny_processor: Any) -> None:
    dense = HeadPlan.empty(head_shape(tiny_model))
    prefill = LanguagePrefill(tiny_model, encode(tiny_processor, 1, 256))
    before = prefill.logits(dense)
    with torch.no_grad():
        tiny_model(**encode(tiny_processor, 3, 64))
    assert torch.equal(prefill.logits(dense), before)
    prefill.verify(dense)


def test_verify_notices_a_forgotten_argument(tiny_model: Any, tiny_processor: Any) -> None:
    dense = HeadPlan.empty(head_shape(tiny_model))
    for name in ("deepstack_visual_embeds", "position_ids"):
        prefill = LanguagePrefill(tiny_model, encode(tiny_processor, 1, 128))
        assert prefill._call[1][name] is not None
        prefill._call[1][name] = None
        with pytest.raises(RuntimeError, match="differ from the full forward"):
            prefill.verify(dense)


def test_a_padded_batch_and_a_prompt_without_pictures(tiny_model: Any, tiny_processor: Any) -> None:
    messages = [[{"role": "user", "content": text}] for text in ("red", "What shape is the object next to it?")]
    texts = [tiny_processor.apply_chat_template(m, add_generation_prompt=True, tokenize=False) for m in messages]
    prefill = LanguagePrefill(tiny_model, dict(tiny_processor(text=texts, padding=True, return_tensors="pt")))
    for arm, plan in plans(head_shape(tiny_model)).items():
        prefill.verify(plan)
        assert prefill.logits(plan).shape[0] == 2, arm
    assert prefill.vision_ms == 0.0


def test_times_are_positive_and_attention_is_a_part(tiny_model: Any, tiny_processor: Any) -> None:
    prefill = LanguagePrefill(tiny_model, encode(tiny_processor, 1, 256))
    dense = HeadPlan.empty(head_shape(tiny_model))
    assert prefill.time_ms(dense) > 0
    assert 0 < prefill.attention_share(dense) < 1
    assert prefill.vision_ms > 0
    assert language_model(tiny_model).config._attn_implementation == "sdpa"
    assert not language_model(tiny_model)._forward_pre_hooks
    assert not tiny_model.model.visual._forward_pre_hooks


def test_arms_are_interleaved(monkeypatch: pytest.MonkeyPatch, tiny_model: Any, tiny_processor: Any) -> None:
    prefill = LanguagePrefill(tiny_model, encode(tiny_processor, 1, 64))
    by_arm = plans(head_shape(tiny_model))
    order: list[str] = []

    def time_ms(plan: HeadPlan) -> float:
        order.append(next(arm for arm, known in by_arm.items() if known is plan))
        return float(len(order))

    monkeypatch.setattr(prefill, "time_ms", time_ms)
    two = {arm: by_arm[arm] for arm in ("dense", "hybrid")}
    times = time_interleaved(prefill, two, 3)
    assert order == ["dense", "hybrid", "hybrid", "dense", "dense", "hybrid"]
    assert times == {"dense": [1.0, 4.0, 5.0], "hybrid": [2.0, 3.0, 6.0]}


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 40), window=st.integers(1, 45), sink=st.integers(0, 9), data=st.data())
def test_visible_pairs_equal_a_count_by_hand(n: int, window: int, sink: int, data: st.DataObject) -> None:
    heads = sorted(SHAPE.all_heads())
    modes = data.draw(st.lists(st.sampled_from(["full", "stream", "off", "blind"]), min_size=8, max_size=8))
    visual = data.draw(st.sets(st.integers(0, n - 1)))
    of: dict[str, Any] = {"full": frozenset()}
    of |= {mode: frozenset(h for h, m in zip(heads, modes, strict=True) if m == mode) for mode in set(modes)}
    plan = HeadPlan(SHAPE, **of, window=window, sink=sink)
    pairs = [(i, j) for i in range(n) for j in range(i + 1)]
    see = {
        "full": len(pairs),
        "stream": sum(i - j < window or j < sink for i, j in pairs),
        "off": 0,
        "blind": sum(j not in visual for _, j in pairs),
    }
    assert visible_pairs(plan, n, visual) == (8 * len(pairs), sum(see[mode] for mode in modes))


def test_ideal_speedup_and_amdahl() -> None:
    assert ideal_speedup(HeadPlan.empty(SHAPE), 100) == 1.0
    assert ideal_speedup(HeadPlan.ablation(SHAPE, SHAPE.all_heads()), 100) == math.inf
    assert ideal_speedup(HeadPlan.hybrid(SHAPE, full=[], window=1, sink=0), 99) == 50.0
    assert amdahl_bound(0.8, 4.0) == pytest.approx(2.5)
    assert amdahl_bound(1.0, math.inf) == math.inf
    assert amdahl_bound(0.0, 9.0) == 1.0
    with pytest.raises(ValueError, match="attention_share"):
        amdahl_bound(1.2, 2.0)
    with pytest.raises(ValueError, match="visual"):
        visible_pairs(HeadPlan.ablation(SHAPE, [(0, 0)], kind="blind"), 10)
