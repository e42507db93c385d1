"""Statistics of the report: against scipy, closed forms, simulations, and head tables with planted values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as oracle

from core_bench.heads import HeadScores
from core_bench.reliability import agreements, predicted, samples_needed, sizes_up_to
from core_bench.significance import (
    bootstrap_ci95,
    false_discovery,
    few_clusters,
    mcnemar,
    p_above_zero,
    redrawn_means,
)
from core_bench.sparsity import gini, heads_holding, layers, lorenz
from core_bench.stability import stability
from core_bench.stats import ci95, clustered_mean, paired_delta

RUNS = 4000  # of a simulation: 95% is then known to 0.35 points


def clusters_of(n_clusters: int) -> np.ndarray:
    """One to five samples each."""
    return np.repeat(np.arange(n_clusters), 1 + np.arange(n_clusters) % 5)


# --- intervals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_clusters", [30, 60])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_clustered_intervals_cover_the_mean_95_times_in_100(n_clusters: int, share: float) -> None:
    """`share`: of the variance that a cluster's samples have in common."""
    rng = np.random.default_rng(11)
    clusters = clusters_of(n_clusters)
    held = 0
    for _ in range(RUNS):
        common = rng.normal(size=n_clusters)[clusters]
        values = 3 + math.sqrt(share) * common + math.sqrt(1 - share) * rng.normal(size=len(clusters))
        low, high = ci95(values.tolist(), clusters.tolist()) or (math.nan, math.nan)
        held += low <= 3 <= high
    assert 0.93 <= held / RUNS <= 0.97


@pytest.mark.parametrize("p", [0.5, 0.8])
def test_clustered_intervals_of_accuracy_cover_it_95_times_in_100(p: float) -> None:
    rng = np.random.default_rng(12)
    clusters = clusters_of(40)
    held = 0
    for _ in range(RUNS):
        alike = (rng.random(40) < 0.5)[clusters]  # half of the clusters answer as one
        values = np.where(alike, (rng.random(40) < p)[clusters], rng.random(len(clusters)) < p).astype(float)
        low, high = ci95(values.tolist(), clusters.tolist()) or (math.nan, math.nan)
        held += low <= p <= high
    assert 0.93 <= held / RUNS <= 0.97


def test_paired_intervals_cover_the_difference_95_times_in_100() -> None:
    rng = np.random.default_rng(13)
    clusters = clusters_of(30)
    ids = [str(i) for i in range(len(clusters))]
    of = dict(zip(ids, clusters.tolist(), strict=True))
    held = 0
    for _ in range(RUNS):
        base = rng.normal(size=len(ids))
        change = -0.3 + 0.5 * rng.normal(size=30)[clusters] + 0.5 * rng.normal(size=len(ids))
        found = paired_delta(dict(zip(ids, base + change, strict=True)), dict(zip(ids, base, strict=True)), of)
        assert found is not None
        assert found.ci95 is not None
        held += found.ci95[0] <= -0.3 <= found.ci95[1]
    assert 0.93 <= held / RUNS <= 0.97


def test_intervals_that_ignore_the_clusters_would_not() -> None:
    """The simulation above can tell right from wrong."""
    rng = np.random.default_rng(11)
    clusters = clusters_of(30)
    held = 0
    for _ in range(500):
        values = rng.normal(size=30)[clusters] + 0.3 * rng.normal(size=len(clusters))
        low, high = ci95(values.tolist(), range(len(values))) or (math.nan, math.nan)
        held += low <= 0 <= high
    assert held / 500 < 0.85


def test_bootstrap_interval_of_a_mean_is_the_clustered_one() -> None:
    rng = np.random.default_rng(2)
    clusters = clusters_of(40).tolist()
    values = rng.normal(size=(len(clusters), 1))
    redrawn = redrawn_means(values, clusters, seed=3, draws=20000)
    mean, stderr = clustered_mean(values[:, 0].tolist(), clusters)
    assert stderr is not None
    low, high = bootstrap_ci95(mean, redrawn[:, 0], 40) or (math.nan, math.nan)
    half = oracle.t.ppf(0.975, 39) * stderr
    assert (mean - low, high - mean) == pytest.approx((half, half), rel=0.05)
    np.testing.assert_array_equal(redrawn, redrawn_means(values, clusters, seed=3, draws=20000))
    assert not np.array_equal(redrawn, redrawn_means(values, clusters, seed=4, draws=20000))
    assert bootstrap_ci95(mean, redrawn[:, 0], 1) is None


def test_a_warning_below_20_clusters() -> None:
    assert few_clusters([str(i) for i in range(20)]) is None
    assert few_clusters(["a", "b", "a"]) == "only 2 clusters: intervals from fewer than 20 are rough"
    assert (few_clusters(["a"] * 99) or "").startswith("only 1 cluster:")


# --- tests ------------------------------------------------------------------------------------------------------------


def test_mcnemar_is_the_sign_test_on_samples_that_differ() -> None:
    first = {str(i): float(i < 60) for i in range(100)}
    second = {str(i): float(5 <= i < 52 or i >= 97) for i in range(100)}
    found = mcnemar(first, second)
    assert found is not None
    assert (found.only_first, found.only_second) == (5 + 8, 3)
    assert found.p == pytest.approx(2 * sum(math.comb(16, k) for k in range(4)) / 2**16)
    assert mcnemar(first, first) is not None
    assert mcnemar(first, first).p == 1.0  # type: ignore[union-attr]
    assert mcnemar({"1": 0.5}, {"1": 1.0}) is None
    assert mcnemar({"1": 1.0}, {"2": 1.0}) is None
    shared = mcnemar({"1": 1.0, "x": 0.0}, {"1": 0.0, "y": 0.0})
    assert shared is not None
    assert (shared.only_first, shared.p) == (1, 1.0)


def test_p_values_of_single_sample_clusters_are_scipys() -> None:
    values = np.random.default_rng(4).normal(0.2, 1, size=(25, 7))
    expected = oracle.ttest_1samp(values, 0, alternative="greater").pvalue
    thrice = np.repeat(values, 3, axis=0), np.repeat(np.arange(25), 3).tolist()
    assert p_above_zero(values, range(25)) == pytest.approx(expected)
    assert p_above_zero(*thrice) == pytest.approx(expected)
    assert p_above_zero(values, [0] * 25) is None
    assert p_above_zero(np.array([[1.0, -1.0, 0.0]] * 3), range(3)) == pytest.approx([0, 1, 1])


def test_heads_at_chance_pass_as_often_as_the_test_says() -> None:
    """Samples of one picture are alike: 5% of 4000 null heads must have p <= 0.05, and one test a sample would not."""
    rng = np.random.default_rng(21)
    clusters = clusters_of(30)
    values = rng.normal(size=(30, RUNS))[clusters] + 0.5 * rng.normal(size=(len(clusters), RUNS))
    clustered, alone = p_above_zero(values, clusters.tolist()), p_above_zero(values, range(len(values)))
    assert clustered is not None
    assert alone is not None
    assert 0.04 <= np.mean(clustered <= 0.05) <= 0.06
    assert np.mean(alone <= 0.05) > 0.1


def test_mcnemar_finds_a_planted_loss_and_nothing_where_there_is_none() -> None:
    """Of 128 answers 20% are lost and 5% gained; or 10% each."""
    rng = np.random.default_rng(22)
    found = {}
    for lost, gained in ((0.2, 0.05), (0.1, 0.1)):
        p = []
        for _ in range(200):
            draw = rng.random(128)
            first = {str(i): float(not lost <= one < lost + gained) for i, one in enumerate(draw)}
            second = {str(i): float(one >= lost) for i, one in enumerate(draw)}
            result = mcnemar(first, second)
            assert result is not None
            assert result.only_first == (draw < lost).sum()
            assert result.only_second == ((draw >= lost) & (draw < lost + gained)).sum()
            p.append(result.p)
        found[lost] = np.mean(np.array(p) <= 0.05)
    assert found[0.2] > 0.8
    assert found[0.1] <= 0.07


def test_false_discovery_bounds_are_the_published_ones() -> None:
    p = np.array([0.001, 0.008, 0.039, 0.041, 0.042, 0.06, 0.074, 0.205, 0.212, 0.216])
    by_hand = np.minimum.accumulate((p * 10 / np.arange(1, 11))[::-1])[::-1]
    np.testing.assert_allclose(false_discovery(p, "bh"), by_hand)
    harmonic = sum(1 / k for k in range(1, 11))
    np.testing.assert_allclose(false_discovery(p), np.minimum(by_hand * harmonic, 1))


def test_few_false_heads_are_found_among_planted_ones() -> None:
    """50 of 500 heads lie above chance; neighbours among the others are negatively dependent."""
    rng = np.random.default_rng(6)
    false, hit = [], []
    for _ in range(60):
        values = rng.normal(size=(30, 500))
        values[:, 51::2] = -0.8 * values[:, 50::2] + 0.6 * values[:, 51::2]
        values[:, :50] += 1.2
        p = p_above_zero(values, range(30))
        assert p is not None
        found = false_discovery(p) <= 0.05
        false.append(found[50:].sum() / max(1, found.sum()))
        hit.append(found[:50].mean())
    assert np.mean(false) <= 0.05
    assert np.mean(hit) > 0.9


# --- sparsity and depth -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mass", "expected"),
    [([2.0] * 8, 0.0), ([0.0] * 9 + [3.0], 0.9), ([1.0, 3.0], 0.25), ([0.0] * 75 + [1.0] * 25, 0.75)],
)
def test_gini_of_known_distributions(mass: list[float], expected: float) -> None:
    assert gini(np.array(mass)) == pytest.approx(expected)


def test_gini_is_half_the_relative_mean_difference_and_twice_the_area() -> None:
    mass = np.random.default_rng(0).lognormal(size=200)
    assert gini(mass) == pytest.approx(np.abs(mass[:, None] - mass).mean() / (2 * mass.mean()))
    heads, held = lorenz(mass)
    assert gini(mass) == pytest.approx(2 * np.trapezoid(held, heads) - 1)
    assert gini(mass * 7) == pytest.approx(gini(mass))


def test_planted_concentration_is_recovered() -> None:
    """4% of the heads hold 50% of the mass."""
    mass = np.full(500, 0.5 / 480)
    mass[np.random.default_rng(1).choice(500, 20, replace=False)] = 0.5 / 20
    heads, held = lorenz(mass)
    assert held[20] == pytest.approx(0.5)
    assert heads[20] == pytest.approx(0.04)
    assert (heads_holding(mass, 0.5), heads_holding(mass, 1.0), heads_holding(mass, 0.01)) == (20, 500, 1)
    assert gini(mass) == pytest.approx(0.5 - 0.04)


@pytest.mark.parametrize("bad", [[], [0.0, 0.0], [1.0, -1.0], [math.nan, 1.0]])
def test_no_mass_is_no_distribution(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="mass"):
        gini(np.array(bad))


def test_depth_of_planted_layers() -> None:
    even = layers(np.ones((1000, 3)))
    assert even.centroid == pytest.approx(0.5)
    assert even.spread == pytest.approx(1 / math.sqrt(12), abs=1e-6)
    one = np.zeros((64, 8))
    one[44:57] = 1.0  # a bottleneck in layers 44 to 56 of 64
    found = layers(one)
    assert found.centroid == pytest.approx(50.5 / 64)
    assert found.spread == pytest.approx(math.sqrt((13**2 - 1) / 12) / 64)
    assert found.share.sum() == pytest.approx(1)


def test_bootstrap_interval_of_gini_covers_the_planted_one() -> None:
    rng = np.random.default_rng(8)
    truth = rng.exponential(size=200)
    held = 0
    for run in range(200):
        samples = np.maximum(truth * (1 + 0.5 * rng.normal(size=(60, 1)) + 0.3 * rng.normal(size=(60, 200))), 0)
        redrawn = redrawn_means(samples, range(60), seed=run, draws=200)
        spread = np.array([gini(table) for table in redrawn])
        low, high = bootstrap_ci95(gini(samples.mean(axis=0)), spread, 60) or (math.nan, math.nan)
        held += low <= gini(truth) + 0.01 and high >= gini(truth) - 0.01
    assert held / 200 >= 0.9


# --- agreement of rankings --------------------------------------------------------------------------------------------


def planted(rho: float, heads: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Two normal tables with this Pearson correlation; Spearman's is then 6 / pi asin(rho / 2)."""
    rng = np.random.default_rng(3)
    one, other = rng.normal(size=(2, heads))
    return one, rho * one + math.sqrt(1 - rho * rho) * other


def measured(truth: np.ndarray, n: int, noise: float, seed: int, layers_: int = 30) -> list[dict]:
    rng = np.random.default_rng(seed)
    grid = truth.reshape(layers_, -1)
    return [
        {"id": str(i), "cluster": str(i), "ram": (grid + noise * rng.normal(size=grid.shape)).tolist()}
        for i in range(n)
    ]


def table_of(rows: list[dict]) -> HeadScores:
    mean = np.mean([row["ram"] for row in rows], axis=0)
    nothing = np.full_like(mean, np.nan)
    return HeadScores(ram=mean, stderr=nothing, chance=np.zeros_like(mean), sink_corrected=nothing, n=len(rows))


@pytest.mark.parametrize("rho", [0.3, 0.9])
def test_planted_rank_correlation_is_recovered(rho: float) -> None:
    rows = {
        name: measured(truth, 12, 0.01, seed) for seed, (name, truth) in enumerate(zip("ab", planted(rho), strict=True))
    }
    found = stability({name: table_of(many) for name, many in rows.items()}, rows)
    assert found is not None
    [pair] = found["pairs"]
    assert pair["value"] == pytest.approx(6 / math.pi * math.asin(rho / 2), abs=0.03)


def test_planted_overlap_is_recovered() -> None:
    """Of the 30 leading heads of either task 12 are the same."""
    one, other = np.random.default_rng(9).random((2, 300)) * 0.1
    one[:30] += 1
    other[18:48] += 1
    rows = {"a": measured(one, 6, 0.01, 1), "b": measured(other, 6, 0.01, 2)}
    found = stability({name: table_of(many) for name, many in rows.items()}, rows)
    assert found is not None
    assert found["shared"]["k"] == 30
    assert [tuple(head) for head in found["shared"]["heads"]] == [divmod(i, 10) for i in range(18, 30)]


def test_reliability_follows_the_planted_noise() -> None:
    """Means of m samples with unit variance between heads and noise s agree to r = 1 / (1 + s^2 / m)."""
    truth, _ = planted(0.5)
    ram = truth + 4.0 * np.random.default_rng(5).normal(size=(64, len(truth)))
    curve = agreements(ram, range(64), 300)
    assert [found.clusters for found in curve] == [1, 2, 4, 8, 16, 32] == sizes_up_to(32)
    for found in curve:
        r = 1 / (1 + 16 / found.clusters)
        assert found.spearman == pytest.approx(6 / math.pi * math.asin(r / 2), abs=0.03)
        assert found.samples == found.clusters
        assert found.spearman95[0] <= found.spearman <= found.spearman95[1]
        assert 0 < found.overlap < 1
    assert [found.overlap for found in curve] == sorted(found.overlap for found in curve)


def test_samples_needed_are_those_of_the_planted_noise() -> None:
    truth, _ = planted(0.5)
    ram = truth + 4.0 * np.random.default_rng(5).normal(size=(64, len(truth)))
    curve = agreements(ram, range(64), 300)
    assert samples_needed(curve, 0.45) == (16, True)  # r(8) = 0.32, r(16) = 0.48
    needed, was_measured = samples_needed(curve, 0.9) or (0, True)
    assert not was_measured
    rank = 2 * math.sin(math.pi / 6 * 0.9)  # Pearson's correlation for a Spearman correlation of 0.9
    assert needed == pytest.approx(16 * rank / (1 - rank), rel=0.15)
    assert predicted(0.5, 2) == pytest.approx(2 / 3)
    assert samples_needed([], 0.9) is None


def test_half_of_the_samples_share_their_planted_top_heads() -> None:
    truth = np.zeros(100)
    truth[[3, 50, 97]] = 5.0
    ram = truth + 0.1 * np.random.default_rng(0).normal(size=(20, 100))
    assert [found.overlap for found in agreements(ram, range(20), 3)] == [1.0] * 5


def test_clusters_are_parted_whole() -> None:
    """Two samples a cluster, one of them the other's copy: a half that took copies would agree perfectly."""
    ram = np.repeat(np.random.default_rng(0).normal(size=(16, 50)), 2, axis=0)
    curve = agreements(ram, np.repeat(np.arange(16), 2).tolist(), 5)
    assert [found.samples for found in curve] == [2, 4, 8, 16]
    assert max(abs(found.spearman) for found in curve) < 0.3
    assert agreements(ram, [0] * 32, 5) == []
    assert agreements(np.ones((8, 5)), range(8), 1) == []
