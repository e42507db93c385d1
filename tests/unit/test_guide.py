"""Guided attention against the attention that the eager model computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from core_bench.bundled import guide
from core_bench.bundled.architectures import FAMILIES, architecture
from core_bench.bundled.batches import Turns, make_batch
from core_bench.bundled.feeds import Plan, make_feed

PLANS = {
    "picture": Plan("picture", 3, 1, 4, 4, (4, 6), choice=0.5),
    "clip": Plan("clip", 3, 4, 3, 3, (4, 9), choice=0.5, moment=0.4),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("family", FAMILIES)
def test_log_weights_are_those_of_the_eager_model(family: str, name: str) -> None:
    processor, model = architecture(family).build_processor(), architecture(family).build_model()
    feed = make_feed(family, processor)
    batch = make_batch(Turns(processor.tokenizer), feed, np.random.default_rng(0), feed.fit(PLANS[name]))
    rows, columns = batch.idle.unbind(1)
    model.set_attn_implementation("eager")
    with torch.no_grad(), guide.watched(model.model.language_model.layers) as calls:
        out = model.model(**batch.inputs, use_cache=False, output_attentions=True)
    visual_MN = torch.isin(batch.inputs["input_ids"], torch.tensor(feed.visual_ids))[rows]
    for call, weights_BHNN in zip(calls, out.attentions, strict=True):
        eager_MHN = weights_BHNN[rows, :, columns]
        with torch.no_grad():
            torch.testing.assert_close(call.log_weights(rows, columns).exp(), eager_MHN, atol=1e-6, rtol=0)
            resting_MH = (eager_MHN * ~visual_MN[:, None]).sum(-1)
            torch.testing.assert_close(guide.idle_loss([call], batch), -resting_MH.log().mean())
            looks = guide.look_losses(call, batch)
        assert looks.keys() == {f"look {look}" for look in batch.looks}
        for look, sights in batch.looks.items():
            at = seen(weights_BHNN, sights)[:, guide.HEADS[look]]
            torch.testing.assert_close(looks[f"look {look}"], -at.log().mean())
        with torch.no_grad():
            mean_H = seen(weights_BHNN, batch.finds).mean(0)
            torch.testing.assert_close(guide.retrieval([call], batch)[0], mean_H)


def seen(weights_BHNN: torch.Tensor, sights: Any) -> torch.Tensor:
    """What each query pays to its columns, by plain sums: [M, H]."""
    pairs = zip(sights.queries.tolist(), sights.columns.tolist(), strict=True)
    return torch.stack(
        [weights_BHNN[row, :, column, [c for c in wanted if c >= 0]].sum(-1) for (row, column), wanted in pairs]
    )


def test_watching_leaves_no_hook_behind(tiny_model: Any) -> None:
    layers = tiny_model.model.language_model.layers
    with guide.watched(layers):
        pass
    assert not any(layer.self_attn._forward_pre_hooks for layer in layers)
