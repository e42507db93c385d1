"""Means, intervals and paired differences over samples that share an image, a video or a document.

Every function returns plain Python numbers; None stands for what cannot be estimated (never NaN, which JSON cannot
hold). With G clusters, intervals use Student's t with G - 1 degrees of freedom.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]
Floats = NDArray[np.float64]

BOOTSTRAP_DRAWS = 2000


@dataclass(frozen=True, kw_only=True)
class Delta:
    """A mean paired difference: `value` in the metric's units, over `n` samples that both arms scored."""

    value: float
    stderr: float | None
    ci95: Interval | None
    n: int


def clustered_mean(
    values: Sequence[float], clusters: Sequence[Hashable], strata: Sequence[Hashable] | None = None
) -> tuple[float, float | None]:
    """Mean of `values` (n,) and its cluster-robust standard error; None for the latter with fewer than two clusters.

    stderr = sqrt(G / (G - 1) * sum over clusters g of (sum over i in g of (x_i - mean))^2) / n.
    Source: Miller, "Adding Error Bars to Evals" (2024), eq. 4, with the small-sample factor G / (G - 1) as inspect_ai
    applies it. With one sample a cluster this is the usual sd / sqrt(n).

    `strata` (n,): the mean is the unweighted mean of the H strata's means, and x_i - mean becomes
    n / (H n_h) * (x_i - mean of its stratum h), with the factor G / (G - H); None for the error unless G > H. Which
    samples there are of each stratum is taken as given (Cochran, "Sampling Techniques", 5.6).
    Raises ValueError on empty, non-finite or unequally long input.
    """
    x = _checked(values, clusters)
    mean = _mean(x)
    codes, n_clusters = _codes(clusters)
    residuals, n_strata = x - mean, 1
    if strata is not None:
        weights, means, n_strata = _stratified(x, strata)
        mean = _mean(x) if bool(np.all(x == x[0])) else float(weights @ x)
        residuals = len(x) * weights * (x - means)
    if n_clusters <= n_strata:
        return mean, None
    sums = np.bincount(codes, weights=residuals, minlength=n_clusters)
    variance = float(np.sum(sums**2)) * n_clusters / (n_clusters - n_strata)
    return mean, math.sqrt(variance) / len(x)


def ci95(
    values: Sequence[float], clusters: Sequence[Hashable], strata: Sequence[Hashable] | None = None
) -> Interval | None:
    """95% interval of the mean of `values` (n,), None with fewer than two clusters; `strata` as in `clustered_mean`.

    Values that are all 0 or 1 get a Wilson score interval (Wilson 1927) with n replaced by the effective sample size
    p (1 - p) / stderr^2, never above n, and by the number of clusters where p is 0 or 1. So 50 right out of 50 is not
    [1, 1]. Other values get mean +- t * stderr, cut to [0, 1] if all of them lie there.
    """
    x = _checked(values, clusters)
    mean, stderr = clustered_mean(values, clusters, strata)
    _, n_clusters = _codes(clusters)
    if stderr is None:
        return None
    t = _t975(n_clusters - (1 if strata is None else len(set(strata))))
    if bool(np.all((x == 0) | (x == 1))):
        return _wilson(mean, _effective_n(mean * (1 - mean), stderr, len(x), n_clusters), t)
    low, high = mean - t * stderr, mean + t * stderr
    if bool(np.all((x >= 0) & (x <= 1))):
        low, high = max(low, 0.0), min(high, 1.0)
    return low, high


def paired_delta(
    a_by_id: Mapping[str, float],
    b_by_id: Mapping[str, float],
    clusters: Mapping[str, Hashable],
    strata: Mapping[str, Hashable] | None = None,
) -> Delta | None:
    """Mean of a - b over the ids that both hold, with a clustered standard error; None if they share no id.

    `strata`: id -> stratum; the mean is then that of the strata's means, see `clustered_mean`.

    Differences that are all -1, 0 or 1 (both arms right or wrong) get the interval of Agresti and Min (2005, "Wald+2"):
    half a sample is added to each cell of the 2x2 table, at the effective sample size (see `ci95`), so that two arms
    which agree on every sample do not get an interval of width zero. Other differences get value +- t * stderr.
    """
    ids = sorted(a_by_id.keys() & b_by_id.keys())
    if not ids:
        return None
    differences = [a_by_id[i] - b_by_id[i] for i in ids]
    groups = [clusters[i] for i in ids]
    parts = None if strata is None else [strata[i] for i in ids]
    value, stderr = clustered_mean(differences, groups, parts)
    interval = None
    if stderr is not None:
        d = np.asarray(differences, dtype=np.float64)
        _, n_clusters = _codes(groups)
        weights, n_strata = np.full(len(d), 1 / len(d)), 1
        if parts is not None:
            weights, _, n_strata = _stratified(d, parts)
        t = _t975(n_clusters - n_strata)
        if bool(np.all((d == -1) | (d == 0) | (d == 1))):
            n_effective = _effective_n(float(weights @ (d - value) ** 2), stderr, len(d), n_clusters)
            interval = _wald_plus_2(float(weights @ (d == 1)), float(weights @ (d == -1)), n_effective, t)
        else:
            interval = (value - t * stderr, value + t * stderr)
    return Delta(value=value, stderr=stderr, ci95=interval, n=len(ids))


def f1(
    recall_by_id: Mapping[str, float], precision_by_id: Mapping[str, float], clusters: Mapping[str, Hashable]
) -> Delta | None:
    """F1 of two means over overlapping samples; None where neither has one.

    With S the sum of the scores, that both maps share, recall is S / n_r and precision S / n_p, so that F1 =
    2 S / (n_r + n_p) (the F1 of `eval_acc_and_f1` in MMLongBench-Doc's eval/eval_score.py). It is a ratio of means:
    its standard error is that of the mean of (2 s_i - F1 d_i) / mean(d), d_i being in how many of the maps i is
    (Cochran, "Sampling Techniques", 6.4), clustered.
    """
    ids = sorted(recall_by_id.keys() | precision_by_id.keys())
    if not ids:
        return None
    twice = np.array([2 * recall_by_id.get(i, 0.0) for i in ids])
    weight = np.array([float(i in recall_by_id) + float(i in precision_by_id) for i in ids])
    value = float(twice.sum() / weight.sum())
    groups = [clusters[i] for i in ids]
    _, stderr = clustered_mean(((twice - value * weight) / weight.mean()).tolist(), groups)
    if stderr is None:
        return Delta(value=value, stderr=None, ci95=None, n=len(ids))
    half = _t975(_codes(groups)[1] - 1) * stderr
    return Delta(value=value, stderr=stderr, ci95=(max(value - half, 0.0), min(value + half, 1.0)), n=len(ids))


def break_even(speedups: Iterable[tuple[int, float]]) -> int | None:
    """From pairs (length, speed-up): the shortest length from which on every one is faster; None if the longest is
    not."""
    longest_first = sorted(speedups, reverse=True)
    faster = list(itertools.takewhile(lambda pair: pair[1] > 1, longest_first))
    return faster[-1][0] if faster else None


def median_iqr(values: Sequence[float]) -> tuple[float, float]:
    """Median of `values` and the width of the range from their 25th to their 75th percentile, in the same units."""
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0:
        raise ValueError("median_iqr: no values")
    low, middle, high = np.percentile(x, [25, 50, 75])
    return float(middle), float(high - low)


def ratio_ci(
    dense_ms: Sequence[float],
    other_ms: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    seed: int = 0,
    draws: int = BOOTSTRAP_DRAWS,
) -> tuple[float, Interval | None]:
    """Speed-up median(dense_ms) / median(other_ms), and a 95% percentile interval of the cluster bootstrap: clusters
    are drawn with replacement, each with all of its pairs.

    `dense_ms[i]` and `other_ms[i]` are times of the same sample, which belongs to `clusters[i]`. The interval is None
    with fewer than two clusters. Seeded: the same times in the same order give the same interval. Raises ValueError on
    unequal lengths, no pair, or a time <= 0.
    """
    dense, other = np.asarray(dense_ms, dtype=np.float64), np.asarray(other_ms, dtype=np.float64)
    if dense.shape != other.shape or dense.ndim != 1 or dense.size == 0 or dense.size != len(clusters):
        sizes = f"{dense.size} and {other.size}, and {len(clusters)} clusters"
        raise ValueError(f"ratio_ci: expected two equally long lists of times, got {sizes}")
    if not bool(np.all(np.isfinite(dense) & np.isfinite(other) & (dense > 0) & (other > 0))):
        raise ValueError("ratio_ci: times must be finite and above zero")
    value = float(np.median(dense) / np.median(other))
    if len(set(clusters)) < 2:
        return value, None
    counts_DN = cluster_resamples(clusters, draws=draws, seed=seed)
    ratios = _repeated_median(dense, counts_DN) / _repeated_median(other, counts_DN)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return value, (float(low), float(high))


def cluster_resamples(clusters: Sequence[Hashable], *, draws: int, seed: int | Sequence[int] = 0) -> NDArray[np.int64]:
    """How often each value is drawn, (draws, n), by a seeded bootstrap that draws whole clusters with replacement."""
    codes_N, n_clusters = _codes(clusters)
    picks_DG = np.random.default_rng(seed).integers(0, n_clusters, size=(draws, n_clusters))
    offsets_D1 = n_clusters * np.arange(draws)[:, None]
    times_DG = np.bincount((picks_DG + offsets_D1).ravel(), minlength=draws * n_clusters).reshape(draws, n_clusters)
    return times_DG[:, codes_N]


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's rank correlation of two equally long lists, ties given their mean rank; None if either is constant."""
    x, y = np.asarray(a, dtype=np.float64).ravel(), np.asarray(b, dtype=np.float64).ravel()
    if x.shape != y.shape:
        raise ValueError(f"spearman: expected equally long lists, got {x.size} and {y.size}")
    if x.size < 2 or bool(np.all(x == x[0])) or bool(np.all(y == y[0])):
        return None
    return float(np.clip(np.corrcoef(_ranks(x), _ranks(y))[0, 1], -1.0, 1.0))


def _checked(values: Sequence[float], clusters: Sequence[Hashable]) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0 or x.size != len(clusters):
        raise ValueError(f"expected as many clusters as values and at least one, got {x.size} and {len(clusters)}")
    if not bool(np.all(np.isfinite(x))):
        raise ValueError("values must be finite")
    return x


def _mean(x: Floats) -> float:
    # Equal values must have exactly that mean: rounding would turn a standard error of zero into 1e-17.
    return float(x[0]) if bool(np.all(x == x[0])) else float(np.mean(x))


def _stratified(x: Floats, strata: Sequence[Hashable]) -> tuple[Floats, Floats, int]:
    """Weights (n,) that sum to 1 and to the same in every stratum, each value's stratum mean (n,), and how many."""
    if len(strata) != len(x):
        raise ValueError(f"expected as many strata as values, got {len(strata)} and {len(x)}")
    codes, n_strata = _codes(strata)
    counts = np.bincount(codes, minlength=n_strata)
    means = np.bincount(codes, weights=x, minlength=n_strata) / counts
    return 1 / (n_strata * counts[codes]), means[codes], n_strata


def _codes(clusters: Sequence[Hashable]) -> tuple[NDArray[np.int64], int]:
    seen: dict[Hashable, int] = {}
    codes = np.array([seen.setdefault(cluster, len(seen)) for cluster in clusters], dtype=np.int64)
    return codes, len(seen)


def _repeated_median(values_N: Floats, counts_DN: NDArray[np.int64]) -> Floats:
    """For each row of counts the median of the values, value i repeated counts[i] times."""
    order = np.argsort(values_N)
    upto_DN = np.cumsum(counts_DN[:, order], axis=1)
    total_D1 = upto_DN[:, -1:]
    middle = [values_N[order][(upto_DN > at_D1).argmax(axis=1)] for at_D1 in ((total_D1 - 1) // 2, total_D1 // 2)]
    return (middle[0] + middle[1]) / 2


def _effective_n(variance: float, stderr: float, n: int, n_clusters: int) -> float:
    """Size of an unclustered sample with this standard error, at most n; the number of clusters if nothing varies."""
    if variance <= 0:
        return float(n_clusters)
    return float(n) if stderr <= 0 else min(float(n), variance / stderr**2)


def _wilson(p: float, n: float, t: float) -> Interval:
    centre = (p + t * t / (2 * n)) / (1 + t * t / n)
    half = t / (1 + t * t / n) * math.sqrt(p * (1 - p) / n + t * t / (4 * n * n))
    # The score interval holds p itself; rounding must not put p = 1 a hair outside.
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))


def _wald_plus_2(plus: float, minus: float, n: float, t: float) -> Interval:
    up, down = (plus * n + 0.5) / (n + 2), (minus * n + 0.5) / (n + 2)
    half = t * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    value = plus - minus  # the shrunk centre may lie so far from a large difference that the estimate falls outside
    return max(-1.0, min(value, up - down - half)), min(1.0, max(value, up - down + half))


def _t975(degrees: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))


def _ranks(x: Floats) -> Floats:
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts).astype(np.float64)
    return (last - (counts - 1) / 2)[inverse]
