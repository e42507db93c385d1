"""Stability of head rankings: against scipy, simulations with a known truth, and plain counting."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from scipy import stats as scipy_stats

from core_bench.board.ramtables import ram_of_rows, ram_record
from core_bench.board.schema import Ram
from core_bench.heads import HeadScores
from core_bench.rankstats import (
    centred_ranks,
    cluster_halves,
    correlation_ci95,
    shared_by_chance,
    spearman_brown,
    spearman_rows,
)
from core_bench.stability import DRAWS, stability
from core_bench.stats import cluster_resamples
from core_bench.tables import stability_lines

SHAPE = (5, 8)


def rows_of(task: str, truth_LH: np.ndarray, n: int, noise: float, seed: int, per_cluster: int = 1) -> list[dict]:
    rng = np.random.default_rng(seed)
    return [
        {
            "task": task,
            "id": f"{task}-{i}",
            "cluster": f"picture{i // per_cluster}",
            "arm": "detect",
            "draw": None,
            "failure": None,
            "ram": (truth_LH + noise * rng.normal(size=truth_LH.shape)).tolist(),
            "placebo": None,
            "chance": 0.1,
        }
        for i in range(n)
    ]


def table_of(rows: list[dict]) -> HeadScores:
    mean = np.mean([row["ram"] for row in rows], axis=0)
    nothing = np.full_like(mean, np.nan)
    return HeadScores(ram=mean, stderr=nothing, chance=np.zeros_like(mean), sink_corrected=nothing, n=len(rows))


def found(*tasks: list[dict]) -> dict:
    rows = {task[0]["task"]: task for task in tasks}
    result = stability({name: table_of(many) for name, many in rows.items()}, rows)
    assert result is not None
    return result


@pytest.fixture(scope="module")
def truths() -> tuple[np.ndarray, np.ndarray]:
    """Two tables of heads that agree in part."""
    rng = np.random.default_rng(5)
    one = rng.normal(size=SHAPE)
    return one, one + 0.5 * rng.normal(size=SHAPE)


# --- the pieces -------------------------------------------------------------------------------------------------------


def test_rank_correlation_of_rows_is_scipys() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 6, (20, 9)).astype(float), rng.integers(0, 6, (20, 9)).astype(float)  # many ties
    expected = [scipy_stats.spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(spearman_rows(centred_ranks(a), centred_ranks(b)), expected, atol=1e-12)
    a[3] = 2.0
    assert np.isnan(spearman_rows(centred_ranks(a), centred_ranks(b))[3])


def test_resamples_draw_whole_clusters() -> None:
    clusters = ["a", "b", "a", "c", "b"]
    counts = cluster_resamples(clusters, draws=200, seed=1)
    assert np.array_equal(counts[:, 0], counts[:, 2])
    assert np.array_equal(counts[:, 1], counts[:, 4])
    assert set((counts[:, 0] + counts[:, 1] + counts[:, 3]).tolist()) == {3}, "as many clusters as there are"
    assert len(np.unique(counts, axis=0)) > 5


@pytest.mark.parametrize("n_clusters", [2, 3, 7, 10])
def test_halves_part_whole_clusters_evenly(n_clusters: int) -> None:
    clusters = [i % n_clusters for i in range(3 * n_clusters)]
    first = cluster_halves(clusters, splits=50, seed=0)
    for mask in first:
        inside = {c for c, yes in zip(clusters, mask, strict=True) if yes}
        outside = {c for c, yes in zip(clusters, mask, strict=True) if not yes}
        assert not inside & outside
        assert abs(len(inside) - len(outside)) <= 1
    assert len(np.unique(first, axis=0)) > 1
    with pytest.raises(ValueError, match="two clusters"):
        cluster_halves(["a", "a"], splits=1)


def test_spearman_brown() -> None:
    assert spearman_brown(0.5) == pytest.approx(2 / 3)
    assert spearman_brown(1.0) == 1.0
    assert spearman_brown(-1.0) is None


@pytest.mark.parametrize(("n", "k", "sets"), [(5, 2, 2), (5, 2, 3), (6, 3, 3), (4, 4, 3), (5, 1, 1)])
def test_heads_shared_by_chance_by_counting_every_case(n: int, k: int, sets: int) -> None:
    every = [set(chosen) for chosen in itertools.combinations(range(n), k)]
    sizes = [len(set.intersection(*case)) for case in itertools.product(every, repeat=sets)]
    for least in range(k + 1):
        expected, p = shared_by_chance(n, k, sets, least)
        assert expected == pytest.approx(np.mean(sizes))
        assert p == pytest.approx(np.mean([size >= least for size in sizes]))


def test_interval_holds_its_value_and_stays_within_one() -> None:
    rng = np.random.default_rng(2)
    for value in (-1.0, -0.3, 0.0, 0.97, 1.0):
        low, high = correlation_ci95(value, np.clip(value + 0.1 * rng.normal(size=300), -1, 1), 30) or (9.0, -9.0)
        assert -1 <= low <= value <= high <= 1
        assert low < high
    assert correlation_ci95(1.0, np.ones(10), 2) is None
    assert correlation_ci95(1.0, np.full(10, np.nan), 30) is None


def test_interval_covers_the_truth(truths: tuple[np.ndarray, np.ndarray]) -> None:
    """Samples drawn around two known tables: the interval must hold the tables' own correlation about 95 times in 100.
    An interval of the bootstrap's percentiles lies below it much more often."""
    one, other = truths
    truth = scipy_stats.spearmanr(one.ravel(), other.ravel()).statistic
    rounds, inside = 60, 0
    for seed in range(rounds):
        a, b = rows_of("a", one, 24, 0.5, 2 * seed), rows_of("b", other, 24, 0.5, 2 * seed + 1)
        tables = [np.array([row["ram"] for row in rows]).reshape(24, -1) for rows in (a, b)]
        draws = [centred_ranks(cluster_resamples(range(24), draws=200, seed=[seed, i]) @ tables[i]) for i in range(2)]
        value = scipy_stats.spearmanr(tables[0].mean(axis=0), tables[1].mean(axis=0)).statistic
        low, high = correlation_ci95(value, spearman_rows(*draws), one.size) or (9.0, -9.0)
        inside += low <= truth <= high
    assert inside >= 0.85 * rounds


# --- the whole --------------------------------------------------------------------------------------------------------


def test_one_task_has_none(truths: tuple[np.ndarray, np.ndarray]) -> None:
    rows = rows_of("a", truths[0], 4, 0.1, 0)
    assert stability({"a": table_of(rows)}, {"a": rows}) is None


def test_against_scipy_and_by_hand(truths: tuple[np.ndarray, np.ndarray]) -> None:
    one, other = truths
    tasks = [rows_of("a", one, 20, 0.3, 0), rows_of("b", other, 20, 0.3, 1), rows_of("c", -one, 20, 0.3, 2)]
    result = found(*tasks)
    means = {rows[0]["task"]: np.mean([row["ram"] for row in rows], axis=0).ravel() for rows in tasks}
    assert [pair["tasks"] for pair in result["pairs"]] == [["a", "b"], ["a", "c"], ["b", "c"]]
    for pair in result["pairs"]:
        a, b = (means[name] for name in pair["tasks"])
        assert pair["value"] == pytest.approx(scipy_stats.spearmanr(a, b).statistic)
        low, high = pair["ci95"]
        assert low < pair["value"] < high
        assert high - low < 0.3
    tops = [set(np.argsort(-mean)[:4]) for mean in means.values()]  # 10% of 40
    assert len(result["shared"]["heads"]) == len(set.intersection(*tops)) == 0
    assert (result["shared"]["k"], result["shared"]["n_heads"]) == (4, 40)
    assert result["shared"]["p_by_chance"] == 1.0, "none or more is certain"
    two = found(*tasks[:2])["shared"]
    assert {8 * layer + head for layer, head in two["heads"]} == tops[0] & tops[1]
    assert two["p_by_chance"] == pytest.approx(scipy_stats.hypergeom.sf(len(two["heads"]) - 1, 40, 4, 4))


def test_halves_tell_a_table_from_noise(truths: tuple[np.ndarray, np.ndarray]) -> None:
    """Signal and noise variances s and e give halves of n / 2 samples that correlate by about s / (s + 2 e / n)."""
    one = truths[0]
    result = found(rows_of("a", one, 40, 4.0, 0), rows_of("b", 0 * one, 40, 1.0, 1))["halves"]
    expected = one.var() / (one.var() + 2 * 16 / 40)
    assert result["a"]["value"] == pytest.approx(expected, abs=0.15)
    assert result["a"]["spearman_brown"] == pytest.approx(2 * result["a"]["value"] / (1 + result["a"]["value"]))
    low, high = result["a"]["central95"]
    assert low < result["a"]["value"] < high
    assert abs(result["b"]["value"]) < 0.2


def test_copies_of_a_picture_do_not_count_as_agreement() -> None:
    """Two clusters of identical rows: by cluster the halves do not agree, by row they would."""
    rng = np.random.default_rng(3)
    rows = rows_of("a", np.zeros(SHAPE), 20, 0.0, 0, per_cluster=10)
    tables = [rng.normal(size=SHAPE).tolist() for _ in range(2)]
    for i, row in enumerate(rows):
        row["ram"] = tables[i // 10]
    assert found(rows, rows_of("b", np.ones(SHAPE), 4, 1.0, 1))["halves"]["a"]["value"] < 0.5


def test_one_cluster_and_equal_heads_are_unknown() -> None:
    alone = rows_of("a", np.ones(SHAPE), 4, 1.0, 0, per_cluster=4)
    equal = rows_of("b", np.ones(SHAPE), 4, 0.0, 0)
    result = found(alone, equal)
    assert result["halves"] == {"a": None, "b": None}
    assert result["pairs"] == [{"tasks": ["a", "b"], "value": None, "ci95": None}]
    assert "-" in stability_lines(result)[0]


def test_order_of_rows_and_tasks_does_not_count(truths: tuple[np.ndarray, np.ndarray]) -> None:
    rows = rows_of("a", truths[0], 12, 0.5, 0, per_cluster=2) + rows_of("b", truths[1], 12, 0.5, 1)
    first = ram_of_rows(rows)
    assert first is not None
    Ram.model_validate(first)
    for seed in range(3):
        random.Random(seed).shuffle(rows)
        again = ram_of_rows(rows)
        assert again is not None
        assert again["stability"] == first["stability"]
    assert "stability" not in ram_record({"a": table_of(rows)}, table_of(rows), rows)


def test_lines_say_what_was_found(truths: tuple[np.ndarray, np.ndarray]) -> None:
    result = found(*(rows_of(name, truths[0], 10, 0.01, i) for i, name in enumerate("abcd")))
    assert result["shared"]["expected_by_chance"] == pytest.approx(40 * 0.1**4)
    text = "\n".join(stability_lines(result))
    assert "in the top 10% (4 of 40 heads) of all 4 tasks: 4 heads; by chance 0.004, " in text
    assert text.splitlines()[-1].count("(") == 1 + 4
    assert text.count(" - ") == 6
    assert "1.00 [" in text
    assert max(map(len, text.splitlines())) <= 120
    assert DRAWS >= 1000
