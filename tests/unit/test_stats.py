"""Statistics against brute force, scipy and simulation."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as oracle

from core_bench.stats import ci95, clustered_mean, median_iqr, paired_delta, ratio_ci, spearman

NUMBERS = st.floats(-100, 100, allow_nan=False).map(lambda x: round(x, 3))
SAMPLES = st.lists(st.tuples(NUMBERS, st.integers(0, 5)), min_size=1, max_size=40)


def clustered_by_hand(values: list[float], clusters: list[int]) -> tuple[float, float | None]:
    mean = sum(values) / len(values)
    groups = defaultdict(list)
    for value, cluster in zip(values, clusters, strict=True):
        groups[cluster].append(value - mean)
    if len(groups) < 2:
        return mean, None
    total = sum(a * b for group in groups.values() for a in group for b in group)
    g = len(groups)
    return mean, math.sqrt(max(0.0, total) * g / (g - 1)) / len(values)


@settings(max_examples=60, deadline=None)
@given(SAMPLES)
def test_clustered_mean_equals_the_double_sum(samples: list[tuple[float, int]]) -> None:
    values, clusters = [v for v, _ in samples], [c for _, c in samples]
    mean, stderr = clustered_mean(values, clusters)
    mean_oracle, stderr_oracle = clustered_by_hand(values, clusters)
    assert mean == pytest.approx(mean_oracle, abs=1e-9)
    assert (stderr is None) == (stderr_oracle is None)
    if stderr is not None:
        assert stderr == pytest.approx(stderr_oracle, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.lists(NUMBERS, min_size=2, max_size=40))
def test_singleton_clusters_give_the_usual_standard_error(values: list[float]) -> None:
    _mean, stderr = clustered_mean(values, range(len(values)))
    assert stderr == pytest.approx(statistics.stdev(values) / math.sqrt(len(values)), abs=1e-9)


def test_repeating_every_sample_leaves_the_clustered_error_alone() -> None:
    values = [0.0, 1.0, 1.0, 0.5, 0.2]
    once = clustered_mean(values, range(5))
    thrice = clustered_mean(values * 3, list(range(5)) * 3)
    assert thrice == pytest.approx(once)
    naive = clustered_mean(values * 3, range(15))[1]
    assert naive is not None
    assert once[1] is not None
    assert naive < once[1] / 1.5


@pytest.mark.parametrize(("values", "clusters"), [([], []), ([1.0], []), ([float("nan"), 1.0], [0, 1])])
def test_bad_input_is_refused(values: list[float], clusters: list[int]) -> None:
    with pytest.raises(ValueError, match=r"must be|expected"):
        clustered_mean(values, clusters)


def test_equal_values_have_a_standard_error_of_exactly_zero() -> None:
    assert clustered_mean([0.1] * 7, range(7)) == (0.1, 0.0)


def test_interval_of_continuous_values_is_students_t() -> None:
    values = [2.0, 3.5, 1.0, 9.0, 4.0]
    expected = oracle.t.interval(0.95, 4, loc=statistics.mean(values), scale=oracle.sem(values))
    assert ci95(values, range(5)) == pytest.approx(expected)


def test_all_right_is_not_certain() -> None:
    low, high = ci95([1.0] * 50, range(50)) or (math.nan, math.nan)
    assert high == 1.0
    assert 0.90 < low < 0.95
    clustered, _ = ci95([1.0] * 50, [i // 10 for i in range(50)]) or (math.nan, math.nan)
    t = oracle.t.ppf(0.975, 4)
    assert clustered == pytest.approx(5 / (5 + t * t))  # as five samples: a cluster may answer as one
    assert ci95([0.0] * 50, range(50)) == pytest.approx((1 - high, 1 - low))
    assert ci95([1.0] * 50, [0] * 50) is None


def test_wilson_equals_scipy_but_for_t_in_place_of_z() -> None:
    low, high = ci95([1.0] * 4000 + [0.0] * 1000, range(5000)) or (math.nan, math.nan)
    expected = oracle.binomtest(4000, 5000).proportion_ci(0.95, method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 0.5]), st.integers(0, 8)), min_size=1, max_size=40))
def test_interval_holds_the_mean_and_stays_in_range(samples: list[tuple[float, int]]) -> None:
    values, clusters = [v for v, _ in samples], [c for _, c in samples]
    interval = ci95(values, clusters)
    if interval is None:
        assert len(set(clusters)) == 1
    else:
        assert 0 <= interval[0] <= np.mean(values) + 1e-12
        assert np.mean(values) - 1e-12 <= interval[1] <= 1


@pytest.mark.parametrize("p", [0.5, 0.9, 0.98])
@pytest.mark.parametrize("size", [1, 3])
def test_coverage_of_proportions_by_simulation(p: float, size: int) -> None:
    rng = np.random.default_rng(7)
    clusters = np.repeat(np.arange(60), size)
    held = 0
    for _ in range(600):
        shared = rng.random(60) < 0.5  # half the clusters answer as one
        each = rng.random((60, size)) < p
        values = np.where(shared[:, None], each[:, :1], each).astype(float).ravel()
        interval = ci95(values.tolist(), clusters.tolist())
        held += interval is not None and interval[0] <= p <= interval[1]
    assert held / 600 >= 0.92


@pytest.mark.parametrize("flips", [0.01, 0.1])
def test_coverage_of_paired_differences_by_simulation(flips: float) -> None:
    rng = np.random.default_rng(3)
    ids = [str(i) for i in range(80)]
    held = 0
    for _ in range(600):
        a = rng.random(80) < 0.7
        lost = a & (rng.random(80) < flips)
        found = paired_delta(
            dict(zip(ids, a - lost * 1.0, strict=True)), dict(zip(ids, a * 1.0, strict=True)), {i: i for i in ids}
        )
        assert found is not None
        assert found.ci95 is not None
        held += found.ci95[0] <= -0.7 * flips <= found.ci95[1]
    assert held / 600 >= 0.92


def test_paired_difference_uses_only_shared_samples() -> None:
    a, b = {"1": 1.0, "2": 0.0, "3": 1.0, "only a": 0.0}, {"1": 0.0, "2": 0.0, "3": 0.25, "only b": 1.0}
    clusters = dict.fromkeys([*a, *b], "shared") | {"1": "x", "2": "y", "3": "z"}
    delta = paired_delta(a, b, clusters)
    assert delta is not None
    assert delta.n == 3
    assert delta.value == pytest.approx(1.75 / 3)
    assert delta.stderr == pytest.approx(oracle.sem([1.0, 0.0, 0.75]))
    assert delta.ci95 == pytest.approx(oracle.t.interval(0.95, 2, loc=delta.value, scale=delta.stderr))
    assert paired_delta({"1": 1.0}, {"2": 1.0}, {}) is None


def test_pairing_removes_what_both_arms_share() -> None:
    rng = np.random.default_rng(0)
    b = {str(i): float(x) for i, x in enumerate(rng.normal(0, 10, 50))}
    a = {i: x + 1 + 0.01 * (int(i) % 3) for i, x in b.items()}
    delta = paired_delta(a, b, {i: i for i in b})
    assert delta is not None
    assert delta.stderr is not None
    assert delta.stderr < 0.01


def test_arms_that_always_agree_get_an_interval_with_width() -> None:
    right = {str(i): 1.0 for i in range(50)}
    delta = paired_delta(right, right, {i: i for i in right})
    assert delta is not None
    assert delta.value == 0
    assert delta.stderr == 0
    assert delta.ci95 is not None
    assert delta.ci95[0] == pytest.approx(-delta.ci95[1])
    assert 0.02 < delta.ci95[1] < 0.08


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 6)), min_size=1, max_size=30))
def test_paired_interval_holds_the_value_and_swaps_sign(rows: list[tuple[bool, bool, int]]) -> None:
    a = {str(i): float(x) for i, (x, _, _) in enumerate(rows)}
    b = {str(i): float(y) for i, (_, y, _) in enumerate(rows)}
    clusters = {str(i): c for i, (_, _, c) in enumerate(rows)}
    there, back = paired_delta(a, b, clusters), paired_delta(b, a, clusters)
    assert there is not None
    assert back is not None
    assert there.value == -back.value
    if there.ci95 is not None and back.ci95 is not None:
        assert -1 <= there.ci95[0] <= there.value <= there.ci95[1] <= 1
        assert there.ci95 == pytest.approx((-back.ci95[1], -back.ci95[0]))


def test_speedup_is_the_ratio_of_medians_with_a_seeded_interval() -> None:
    rng = np.random.default_rng(1)
    other = rng.lognormal(3, 0.1, 40)
    dense = other * 2.5 * rng.lognormal(0, 0.05, 40)
    value, interval = ratio_ci(dense.tolist(), other.tolist(), range(40))
    assert value == pytest.approx(np.median(dense) / np.median(other))
    assert interval is not None
    assert 2.2 < interval[0] < 2.5 < interval[1] < 2.8
    assert ratio_ci(dense.tolist(), other.tolist(), range(40)) == (value, interval)
    assert ratio_ci(dense.tolist(), other.tolist(), range(40), seed=1) != (value, interval)
    assert ratio_ci([4.0], [2.0], ["a"]) == (2.0, None)
    assert ratio_ci([4.0, 4.0, 6.0], [2.0, 2.0, 2.0], ["a"] * 3) == (2.0, None)


@pytest.mark.parametrize("size", [2, 7, 8])
def test_one_sample_a_cluster_resamples_the_samples(size: int) -> None:
    """The plain bootstrap, to the last bit: records whose clusters are single samples keep their intervals."""
    rng = np.random.default_rng(size)
    dense, other = rng.lognormal(3, 0.2, size), rng.lognormal(2, 0.2, size)
    rows = np.random.default_rng(0).integers(0, size, size=(2000, size))
    plain = np.percentile(np.median(dense[rows], axis=1) / np.median(other[rows], axis=1), [2.5, 97.5])
    _, interval = ratio_ci(dense.tolist(), other.tolist(), [f"c{i}" for i in range(size)])
    assert interval == tuple(plain.tolist())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 4)), min_size=2, max_size=15))
def test_clusters_are_resampled_whole(rows: list[tuple[int, int, int]]) -> None:
    members: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for a, b, cluster in rows:
        members[cluster].append((a, b))
    groups = list(members.values())
    _, interval = ratio_ci([a for a, _, _ in rows], [b for _, b, _ in rows], [c for _, _, c in rows], draws=40)
    if len(groups) < 2:
        assert interval is None
        return
    ratios = []
    for picks in np.random.default_rng(0).integers(0, len(groups), size=(40, len(groups))):
        drawn = [pair for pick in picks for pair in groups[pick]]
        ratios.append(statistics.median(a for a, _ in drawn) / statistics.median(b for _, b in drawn))
    assert interval == pytest.approx(tuple(np.percentile(ratios, [2.5, 97.5])))


def test_coverage_of_speedups_of_clustered_samples_by_simulation() -> None:
    """20 clusters of 5 samples that mostly move together. Resampling samples would cover the truth 2 times in 3."""
    rng = np.random.default_rng(5)
    clusters = np.repeat(np.arange(20), 5).tolist()
    held = 0
    for _ in range(400):
        shared = np.repeat(rng.normal(0, 0.2, 20), 5)  # of the speed-up: some documents gain more than others
        dense = 20 * np.exp(shared + rng.normal(0, 0.05, 100))
        _, interval = ratio_ci(dense.tolist(), np.exp(rng.normal(0, 0.02, 100)).tolist(), clusters, draws=400)
        held += interval is not None and interval[0] <= 20 <= interval[1]
    assert 0.90 <= held / 400 <= 0.98


@pytest.mark.parametrize(
    ("dense", "other", "n_clusters"),
    [([], [], 0), ([1.0], [1.0, 2.0], 1), ([1.0, 0.0], [1.0, 1.0], 2), ([1.0, 1.0], [1.0, 1.0], 1)],
)
def test_bad_times_are_refused(dense: list[float], other: list[float], n_clusters: int) -> None:
    with pytest.raises(ValueError, match=r"must be|expected"):
        ratio_ci(dense, other, range(n_clusters))


def test_median_and_interquartile_range() -> None:
    assert median_iqr([1.0, 2.0, 3.0, 4.0, 100.0]) == (3.0, 2.0)
    assert median_iqr([5.0]) == (5.0, 0.0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=3, max_size=30))
def test_spearman_equals_scipy(pairs: list[tuple[int, int]]) -> None:
    a, b = [float(x) for x, _ in pairs], [float(y) for _, y in pairs]
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert spearman(a, b) is None
    else:
        assert spearman(a, b) == pytest.approx(oracle.spearmanr(a, b).statistic, abs=1e-9)
