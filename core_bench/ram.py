"""RAM, the region attention mass of each head: how much of its attention the question puts on the evidence.

RAM(h) of a sample = mean over query tokens x of the softmax mass of h at x on Omega, over all keys that x sees, in
float32. The RAM of a table is the mean over samples; contracts of the head table: core_bench/heads/scores.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from core_bench.errors import SampleError
from core_bench.heads import HeadPlan, HeadScores
from core_bench.schema import Prepared
from core_bench.stats import clustered_mean

if TYPE_CHECKING:
    from core_bench.attention import MassProbe
    from core_bench.model_wrappers.base import ModelWrapper

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SampleRam:
    """One sample's measurement, [layers, heads] float64: mass on the evidence and the mean mass on its placebo regions.

    `placebo` is None where the prompt has no room for one. `chance` is what evenly spread attention would give, 0..1.
    """

    ram: FloatArray
    placebo: FloatArray | None
    chance: float


def chance_level(omega: Sequence[int], rows: Sequence[int]) -> float:
    """Mean over query rows x of |Omega that x sees| / |keys that x sees|, for a prompt that starts at token 0."""
    omega_S = np.sort(np.asarray(omega, dtype=np.int64))
    rows_R = np.asarray(rows, dtype=np.int64)
    return float(np.mean(np.searchsorted(omega_S, rows_R, side="right") / (rows_R + 1)))


def measure(
    wrapper: ModelWrapper,
    prepared: Prepared,
    omega: Sequence[int],
    placebos: Sequence[Sequence[int]],
    rows: Sequence[int],
    chunk: int | None = None,
) -> SampleRam:
    """Attention mass of every head at the query tokens `rows` on the token positions `omega` and on each placebo set.

    The model runs its own attention once; beside it only the rows asked for are computed, layer by layer, and reduced
    at once: memory O(heads x rows x prompt tokens), never prompt tokens squared. `chunk` reads the prompt so many
    tokens at a time, with the same result to rounding. Nothing is generated. Raises SampleError where there is no query
    token or no evidence token, or a position lies outside the prompt.
    """
    length = prepared.token_map.length
    for name, positions in (("query", rows), ("evidence", omega), *(("placebo", placebo) for placebo in placebos)):
        if not positions:
            raise SampleError(f"RAM: the sample has no {name} token")
        if min(positions) < 0 or max(positions) >= length:
            raise SampleError(f"RAM: a {name} token lies outside the prompt of {length} tokens")

    import torch

    from core_bench.attention import MassProbe, apply

    probe = MassProbe(rows=tuple(rows), sets=(tuple(omega), *(tuple(placebo) for placebo in placebos)))
    with torch.inference_mode(), apply(wrapper.model, HeadPlan.empty(wrapper.shape), probe=probe, chunk=chunk):
        wrapper.model(**wrapper.device_inputs(prepared), use_cache=False, logits_to_keep=1)
    mass_LHS = finite_mass(probe)
    placebo = mass_LHS[..., 1:].mean(axis=-1) if placebos else None
    return SampleRam(ram=mass_LHS[..., 0], placebo=placebo, chance=chance_level(omega, rows))


def finite_mass(probe: MassProbe) -> FloatArray:
    """What the probe collected, float64 [layers, heads, sets]. SampleError, which names the layer, for NaN."""
    mass_LHS: FloatArray = probe.mass.double().numpy()
    broken = np.flatnonzero(~np.isfinite(mass_LHS).all(axis=(1, 2)))
    if len(broken):
        raise SampleError(f"the model's attention is not finite from layer {broken[0]} on")
    return mass_LHS


def accumulate(samples: Sequence[SampleRam], clusters: Sequence[Hashable]) -> HeadScores:
    """Head table of one task: the mean over samples, with standard errors clustered by image, video or document.

    `clusters[i]` names what sample i shares with others; stderr is NaN with fewer than two clusters. `sink_corrected`
    is the mean of RAM minus placebo over the samples that have placebos, and NaN where none has: it is then unknown,
    not zero. Raises SampleError without a sample.
    """
    if not samples:
        raise SampleError("RAM: no sample was measured")
    ram_NLH = np.stack([sample.ram for sample in samples])
    ram_LH, stderr_LH = np.empty(ram_NLH.shape[1:]), np.empty(ram_NLH.shape[1:])
    for head in np.ndindex(*ram_LH.shape):
        ram_LH[head], stderr = clustered_mean(ram_NLH[:, *head].tolist(), clusters)
        stderr_LH[head] = np.nan if stderr is None else stderr
    gains = [sample.ram - sample.placebo for sample in samples if sample.placebo is not None]
    return HeadScores(
        ram=ram_LH,
        stderr=stderr_LH,
        chance=np.full_like(ram_LH, np.mean([sample.chance for sample in samples])),
        sink_corrected=np.mean(gains, axis=0) if gains else np.full_like(ram_LH, np.nan),
        n=len(samples),
    )
