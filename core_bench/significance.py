"""Tests beside the intervals of `stats`: of paired answers, and of many heads at once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core_bench.stats import Floats, Interval, cluster_resamples

FEW_CLUSTERS = 20
BOOTSTRAP_DRAWS = 1000


@dataclass(frozen=True, kw_only=True)
class McNemar:
    """Samples that only the first answers rightly, that only the second does, and the exact two-sided p-value."""

    only_first: int
    only_second: int
    p: float


def mcnemar(first: Mapping[str, float], second: Mapping[str, float]) -> McNemar | None:
    """Exact McNemar test on the ids that both hold: given how many differ, each is a fair coin (McNemar 1947).

    None where they share no id or a value is neither 0 nor 1. The samples are taken as independent: where several share
    a picture, the interval of `paired_delta`, which is clustered, is the one to trust.
    """
    from scipy.stats import binomtest

    ids = first.keys() & second.keys()
    if not ids or any(by_id[i] not in (0, 1) for i in ids for by_id in (first, second)):
        return None
    gained, lost = sum(first[i] > second[i] for i in ids), sum(first[i] < second[i] for i in ids)
    p = float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return McNemar(only_first=gained, only_second=lost, p=p)


def p_above_zero(values_NH: Floats, clusters: Sequence[Hashable]) -> Floats | None:
    """One-sided p-value (heads,) that the mean of each column is above zero: Student's t on the clustered standard
    error of `stats.clustered_mean`, with G - 1 degrees. None with fewer than two clusters.

    A column without any spread has p 0 above zero and 1 elsewhere.
    """
    n, mean_H = len(values_NH), values_NH.mean(axis=0)
    names = {name: code for code, name in enumerate(dict.fromkeys(clusters))}
    n_clusters = len(names)
    if n_clusters < 2:
        return None
    sums_GH = np.zeros((n_clusters, values_NH.shape[1]))
    np.add.at(sums_GH, [names[name] for name in clusters], values_NH - mean_H)
    stderr_H = np.sqrt((sums_GH**2).sum(axis=0) * n_clusters / (n_clusters - 1)) / n
    return p_of_t(mean_H, stderr_H, n_clusters - 1)


def p_of_t(mean_H: Floats, stderr_H: Floats, degrees: int) -> Floats:
    """One-sided p-values of means above zero."""
    from scipy.special import stdtr

    p_H = np.where(mean_H > 0, 0.0, 1.0)
    spread = stderr_H > 0
    p_H[spread] = stdtr(degrees, -mean_H[spread] / stderr_H[spread])
    return p_H


def false_discovery(p_H: Floats, method: str = "by") -> Floats:
    """Adjusted p-values: the heads with at most q of them hold in expectation at most a share q of false ones.

    "by" (Benjamini and Yekutieli 2001) is valid whatever the dependence between the tests. Heads are measured on the
    same samples, and heads of one layer may share out the same attention, so that they may be negatively dependent:
    "bh" (Benjamini and Hochberg 1995) promises nothing then.
    """
    from scipy.stats import false_discovery_control

    adjusted: Floats = false_discovery_control(p_H, method=method)
    return adjusted


def redrawn_means(
    values_NH: Floats, clusters: Sequence[Hashable], *, seed: int, draws: int = BOOTSTRAP_DRAWS
) -> Floats:
    """Column means (draws, heads) of a seeded bootstrap that draws whole clusters with replacement."""
    weights_DN = cluster_resamples(clusters, draws=draws, seed=seed).astype(np.float64)
    means: Floats = weights_DN @ values_NH / weights_DN.sum(axis=1, keepdims=True)
    return means


def bootstrap_ci95(value: float, redrawn: NDArray[np.float64], n_clusters: int) -> Interval | None:
    """`value` +- t standard deviations of its bootstrap values, t with G - 1 degrees; None with less than two clusters.

    Not percentiles: what measures inequality, such as Gini, is larger in every redrawn table than in the one it was
    drawn from, because resampling adds noise. The standard deviation does not suffer from that shift.
    """
    from scipy.special import stdtrit

    if n_clusters < 2:
        return None
    half = float(stdtrit(n_clusters - 1, 0.975)) * float(np.std(redrawn, ddof=1))
    return value - half, value + half


def few_clusters(clusters: Sequence[Hashable]) -> str | None:
    """A warning where an interval rests on fewer than 20 clusters; standard errors are then too small, however the
    degrees of freedom are counted (Cameron, Gelbach and Miller 2008)."""
    count = len(set(clusters))
    if count >= FEW_CLUSTERS:
        return None
    return f"only {count} cluster{'' if count == 1 else 's'}: intervals from fewer than {FEW_CLUSTERS} are rough"
