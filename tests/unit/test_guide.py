"""Guided attention against the attention that the eager model computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from core_bench.bundled import guide
from core_bench.bundled.batches import Plan, Turns, make_batch

PLANS = {
    "picture": Plan("picture", 3, 1, 4, 4, (4, 6), choice=0.5),
    "clip": Plan("clip", 3, 4, 3, 3, (4, 9), choice=0.5, moment=0.4),
}


@pytest.mark.parametrize("name", PLANS)
def test_log_weights_are_those_of_the_eager_model(tiny_processor: Any, tiny_model: Any, name: str) -> None:
    batch = make_batch(Turns(tiny_processor.tokenizer), np.random.default_rng(0), PLANS[name])
    rows, columns = batch.idle.unbind(1)
    before = tiny_model.config._attn_implementation
    tiny_model.set_attn_implementation("eager")
    try:
        with torch.no_grad(), guide.watched(tiny_model.model.language_model.layers) as calls:
            out = tiny_model.model(**batch.inputs, use_cache=False, output_attentions=True)
    finally:
        tiny_model.set_attn_implementation(before)
    visual_MN = batch.inputs["mm_token_type_ids"][rows] > 0
    for call, weights_BHNN in zip(calls, out.attentions, strict=True):
        eager_MHN = weights_BHNN[rows, :, columns]
        with torch.no_grad():
            torch.testing.assert_close(call.log_weights(rows, columns).exp(), eager_MHN, atol=1e-6, rtol=0)
            resting_MH = (eager_MHN * ~visual_MN[:, None]).sum(-1)
            torch.testing.assert_close(guide.idle_loss([call], batch), -resting_MH.log().mean())
            looks = guide.look_losses(call, batch)
        assert looks.keys() == {f"look {look}" for look in batch.looks}
        for look, marks in batch.looks.items():
            at = weights_BHNN[marks[:, 0], guide.HEADS[look], marks[:, 1], marks[:, 2]]
            torch.testing.assert_close(looks[f"look {look}"], -at.log().mean())


def test_watching_leaves_no_hook_behind(tiny_model: Any) -> None:
    layers = tiny_model.model.language_model.layers
    with guide.watched(layers):
        pass
    assert not any(layer.self_attn._forward_pre_hooks for layer in layers)
