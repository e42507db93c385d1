"""How many samples a stable ranking of heads needs: how far two rankings from m clusters each agree, for growing m."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core_bench.rankstats import centred_ranks, spearman_rows
from core_bench.stats import Floats, Interval

SPLITS = 200
DIGITS = 12  # heads that differ by less are tied, see core_bench/stability.py


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Of two head tables from `clusters` other clusters each, over random partings: mean and central 95% of Spearman's
    correlation, and of the share of the top k heads that both have. `samples`: mean number in each."""

    clusters: int
    samples: float
    spearman: float
    spearman95: Interval
    overlap: float
    overlap95: Interval


def sizes_up_to(half: int) -> list[int]:
    """Numbers of clusters to try: powers of two and half of all there are."""
    powers = [2**power for power in range(half.bit_length()) if 2**power < half]
    return [*powers, half] if half >= 1 else []


def agreements(ram_NH: Floats, clusters: Sequence[Hashable], k: int, *, seed: int = 0) -> list[Agreement]:
    """One for each size up to half of the clusters; none with fewer than two, or where RAM never differs by head."""
    names = {name: code for code, name in enumerate(dict.fromkeys(clusters))}
    codes_N = np.array([names[name] for name in clusters])
    place_SG = np.random.default_rng(seed).permuted(np.tile(np.arange(len(names)), (SPLITS, 1)), axis=1)
    place_SN = place_SG[:, codes_N]
    found = []
    for m in sizes_up_to(len(names) // 2):
        one_SN, other_SN = place_SN < m, (place_SN >= m) & (place_SN < 2 * m)
        one_SH, other_SH = _means(one_SN, ram_NH), _means(other_SN, ram_NH)
        correlation_S = spearman_rows(centred_ranks(one_SH), centred_ranks(other_SH))
        if not bool(np.all(np.isfinite(correlation_S))):
            return []
        overlap_S = (_top(one_SH, k) & _top(other_SH, k)).sum(axis=1) / k
        found.append(
            Agreement(
                clusters=m,
                samples=float((one_SN.sum() + other_SN.sum()) / (2 * SPLITS)),
                spearman=float(correlation_S.mean()),
                spearman95=_central95(correlation_S),
                overlap=float(overlap_S.mean()),
                overlap95=_central95(overlap_S),
            )
        )
    return found


def predicted(half: float, factor: float) -> float:
    """Reliability of `factor` times as many samples: f r / (1 + (f - 1) r). Source: Spearman (1910), Brown (1910).

    It is exact for Pearson's correlation of means of independent samples; of ranks it is an approximation.
    """
    return factor * half / (1 + (factor - 1) * half)


def samples_needed(curve: Sequence[Agreement], target: float) -> tuple[float, bool] | None:
    """Samples from which on two rankings agree to a Spearman correlation of `target`, and whether that was measured.

    Measured: the smallest size from which on every mean reaches it. Else extrapolated from the largest size by
    `predicted` solved for the factor. None where that is impossible, for its correlation is not above 0.
    """
    reached = None
    for agreement in reversed(curve):
        if agreement.spearman < target:
            break
        reached = agreement.samples
    if reached is not None:
        return reached, True
    if not curve or curve[-1].spearman <= 0:
        return None
    r = curve[-1].spearman
    return curve[-1].samples * target * (1 - r) / (r * (1 - target)), False


def _means(chosen_SN: NDArray[np.bool_], ram_NH: Floats) -> Floats:
    weights = chosen_SN.astype(np.float64)
    means: Floats = np.round(weights @ ram_NH / weights.sum(axis=1, keepdims=True), DIGITS)
    return means


def _top(ram_SH: Floats, k: int) -> NDArray[np.bool_]:
    """Which heads are the k leading ones, ties by (layer, head)."""
    order_SH = np.argsort(-ram_SH, axis=1, kind="stable")
    chosen = np.zeros(ram_SH.shape, dtype=bool)
    np.put_along_axis(chosen, order_SH[:, :k], True, axis=1)
    return chosen


def _central95(values: Floats) -> Interval:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
