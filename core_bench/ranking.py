"""Ranking parts of a prompt by where its question looks: the attention that given heads put on each of them.

A candidate's score is the sum over the heads of their RAM on it, from one forward pass that generates nothing. So a
generative model is scored as a retriever. L layers, H heads, S candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from core_bench.errors import SampleError
from core_bench.evidence import omega
from core_bench.heads import HeadPlan
from core_bench.ram import finite_mass
from core_bench.schema import Prepared, Region

if TYPE_CHECKING:
    from core_bench.model_wrappers.base import ModelWrapper

SHARE = "10%"  # of the heads, the first of the head table


def rank(
    wrapper: ModelWrapper,
    prepared: Prepared,
    candidates: Mapping[str, Sequence[tuple[Any, Region]]],
    heads: Sequence[tuple[int, int]],
    chunk: int | None = None,
) -> dict[str, list[Any]]:
    """The labels of each kind of candidates, most attention first, ties in the order given; one that has no token in
    the prompt comes last. SampleError for a prompt without a question or without any candidate."""
    import torch

    from core_bench.attention import MassProbe, apply

    flat = [(kind, label, _tokens(region, prepared)) for kind, pairs in candidates.items() for label, region in pairs]
    seen = [index for index, (_, _, tokens) in enumerate(flat) if tokens]
    rows = prepared.spans.get("question")
    if not rows or not seen:
        raise SampleError("ranking: the prompt has no question, or shows none of the candidates")
    probe = MassProbe(rows=rows, sets=[flat[index][2] for index in seen])
    inputs = wrapper.device_inputs(prepared)
    with torch.inference_mode(), apply(wrapper.model, HeadPlan.empty(wrapper.shape), probe=probe, chunk=chunk):
        wrapper.model(**inputs, logits_to_keep=1, use_cache=False)
    mass_LHS = finite_mass(probe)
    mass_S = sum(mass_LHS[layer, head] for layer, head in heads)
    scores = dict(zip(seen, mass_S.tolist(), strict=True))
    order = sorted(range(len(flat)), key=lambda index: (-scores.get(index, -1.0), index))
    return {kind: [flat[index][1] for index in order if flat[index][0] == kind] for kind in candidates}


def _tokens(region: Region, prepared: Prepared) -> tuple[int, ...]:
    try:
        return omega([region], prepared.token_map)
    except SampleError:
        return ()
