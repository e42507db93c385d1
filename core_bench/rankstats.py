"""Rank correlations of head tables: of many tables at once, their intervals, and what chance would give."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from core_bench.stats import Floats, Interval


def centred_ranks(a_DN: Floats) -> Floats:
    """Rank of each value within its row, ties given their mean rank, minus the mean of all ranks."""
    from scipy.stats import rankdata

    ranks: Floats = rankdata(a_DN, axis=1) - (a_DN.shape[1] + 1) / 2
    return ranks


def spearman_rows(a_DN: Floats, b_DN: Floats) -> Floats:
    """`spearman` of every row with the same row of the other, both as `centred_ranks`; NaN where one is constant."""
    scale = np.sqrt((a_DN**2).sum(axis=1) * (b_DN**2).sum(axis=1))
    found = np.full(len(a_DN), np.nan)
    np.divide((a_DN * b_DN).sum(axis=1), scale, out=found, where=scale > 0)
    clipped: Floats = np.clip(found, -1.0, 1.0)
    return clipped


def correlation_ci95(value: float, resampled: Floats, n: int) -> Interval | None:
    """95% interval of a rank correlation over `n` items from its bootstrap values: `value` +- 1.96 of their standard
    deviations on Fisher's z scale (z = atanh r), back on the scale of r.

    Percentiles of the bootstrap values would lie too low: resampling adds noise to both lists, and noise weakens a
    correlation. A correlation of 1 has no z, so |r| is capped half a step below it: exchanging two neighbours,
    the smallest change, costs 12 / (n^3 - n). None with fewer than three items or two finite values.
    """
    values = resampled[np.isfinite(resampled)]
    if n < 3 or len(values) < 2:
        return None
    most = 1 - 6 / (n**3 - n)
    z = math.atanh(max(-most, min(most, value)))
    half = 1.96 * float(np.std(np.arctanh(np.clip(values, -most, most)), ddof=1))
    return min(value, math.tanh(z - half)), max(value, math.tanh(z + half))


def spearman_brown(half: float) -> float | None:
    """Reliability of the whole from the correlation of its halves: 2 r / (1 + r); None for r = -1. Source: Spearman
    (1910) and Brown (1910), for twice the length."""
    return None if half <= -1 else 2 * half / (1 + half)


def shared_by_chance(n: int, k: int, sets: int, least: int) -> tuple[float, float]:
    """Of `sets` independent, uniformly drawn sets of k out of n items each: the expected number of items in all of
    them, n (k / n)^sets, and the probability of at least `least`.

    Exact: the number shared with one more set is hypergeometric given the number shared so far.
    """
    from scipy.stats import hypergeom

    if not 1 <= k <= n or sets < 1:
        raise ValueError(f"shared_by_chance: expected 1 <= k <= n and a set, got k {k}, n {n}, {sets} sets")
    counts = np.arange(k + 1)
    mass = np.zeros(k + 1)
    mass[k] = 1.0
    for _ in range(sets - 1):
        mass = sum((mass[m] * hypergeom.pmf(counts, n, m, k) for m in counts if mass[m] > 0), np.zeros(k + 1))
    return n * (k / n) ** sets, float(min(1.0, mass[least:].sum()))


def cluster_halves(clusters: Sequence[Hashable], *, splits: int, seed: int | Sequence[int] = 0) -> NDArray[np.bool_]:
    """Which values lie in the first half, (splits, n), when clusters are parted at random into halves that differ by at
    most one cluster. Raises ValueError with fewer than two clusters."""
    names = {cluster: code for code, cluster in enumerate(dict.fromkeys(clusters))}
    codes_N, n_clusters = np.array([names[cluster] for cluster in clusters]), len(names)
    if n_clusters < 2:
        raise ValueError(f"cluster_halves: expected at least two clusters, got {n_clusters}")
    order_SG = np.random.default_rng(seed).permuted(np.tile(np.arange(n_clusters), (splits, 1)), axis=1)
    return (order_SG < n_clusters // 2)[:, codes_N]
