"""How far the head rankings of several tasks agree, and how far each agrees with itself.

Everything here follows from the rows of a detection alone, whatever their order, and every random draw is seeded: a
resumed run gives what an uninterrupted one gives, and a record can be checked against its samples.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core_bench.heads import HeadScores, k_for
from core_bench.rankstats import (
    centred_ranks,
    cluster_halves,
    correlation_ci95,
    shared_by_chance,
    spearman_brown,
    spearman_rows,
)
from core_bench.stats import cluster_resamples, spearman

JSON = dict[str, Any]
Floats = NDArray[np.float64]
DRAWS, SPLITS = 1000, 200  # bootstrap draws; random partings into halves
SHARE = "10%"
_DIGITS = 12  # heads that differ by less are tied: their order would be that of rounding, which machines differ in


def stability(per_task: Mapping[str, HeadScores], rows: Mapping[str, Sequence[JSON]]) -> JSON | None:
    """The stability of rankings as `ram.stability` of a record holds it; None with fewer than two tasks.

    per_task: the tasks' head tables. rows: task -> the measured rows that its table is the mean of, with "ram"
    ([layers][heads]) and "cluster".

    pairs: Spearman's correlation of RAM over heads for every two tasks. Its interval is about the samples (the heads
    are all heads there are): clusters are drawn anew in both tasks, see `correlation_ci95`.
    shared: the heads in the top 10% of every task, and what equally large random sets would share.
    halves: Spearman's correlation of the tables of two random halves of a task's clusters: mean and central 95% over
    partings; `spearman_brown` is that mean corrected to the whole number of samples.
    """
    if len(per_task) < 2:
        return None
    names = sorted(per_task)
    found = {name: _samples(rows[name]) for name in names}
    redrawn = {name: _redrawn(name, *found[name]) for name in names}
    return {
        "pairs": [
            {"tasks": [a, b], **_pair(per_task[a], per_task[b], redrawn[a], redrawn[b])}
            for a, b in combinations(names, 2)
        ],
        "shared": _shared([per_task[name] for name in names]),
        "halves": {name: _halves(name, *found[name]) for name in names},
    }


def _samples(rows: Sequence[JSON]) -> tuple[Floats, list[str]]:
    """RAM of every sample, (samples, heads), and the samples' clusters, in the order of ids."""
    ordered = sorted(rows, key=lambda row: str(row["id"]))
    return np.stack([np.array(row["ram"]).ravel() for row in ordered]), [row["cluster"] for row in ordered]


def _seed(*words: str) -> int:
    return zlib.crc32("/".join(words).encode())


def _ranks(weights_DN: NDArray[Any], ram_NH: Floats) -> Floats:
    """Centred ranks of the heads by weighted mean RAM, (draws, heads), for every row of weights."""
    weights = weights_DN.astype(np.float64)
    return centred_ranks(np.round(weights @ ram_NH / weights.sum(axis=1, keepdims=True), _DIGITS))


def _redrawn(name: str, ram_NH: Floats, clusters: Sequence[str]) -> Floats | None:
    """The heads' ranks in bootstrap samples, (draws, heads); None with one cluster. Tasks are drawn independently."""
    if len(set(clusters)) < 2:
        return None
    return _ranks(cluster_resamples(clusters, draws=DRAWS, seed=_seed("draws", name)), ram_NH)


def _pair(a: HeadScores, b: HeadScores, a_DH: Floats | None, b_DH: Floats | None) -> JSON:
    value = spearman(*(np.round(table.ram.ravel(), _DIGITS).tolist() for table in (a, b)))
    interval = None
    if value is not None and a_DH is not None and b_DH is not None:
        interval = correlation_ci95(value, spearman_rows(a_DH, b_DH), a.ram.size)
    return {"value": value, "ci95": None if interval is None else list(interval)}


def _shared(tables: Sequence[HeadScores]) -> JSON:
    n_heads = tables[0].ram.size
    k = k_for(SHARE, n_heads)
    heads = sorted(set.intersection(*(set(table.top(k)) for table in tables)))
    expected, probability = shared_by_chance(n_heads, k, len(tables), len(heads))
    return {
        "share": SHARE,
        "k": k,
        "n_heads": n_heads,
        "heads": [list(head) for head in heads],
        "expected_by_chance": expected,
        "p_by_chance": probability,
    }


def _halves(name: str, ram_NH: Floats, clusters: Sequence[str]) -> JSON | None:
    """None where a task has one cluster, or RAM that does not differ between heads."""
    if len(set(clusters)) < 2:
        return None
    first = cluster_halves(clusters, splits=SPLITS, seed=_seed("halves", name))
    values = spearman_rows(_ranks(first, ram_NH), _ranks(~first, ram_NH))
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    mean = float(values.mean())
    return {
        "value": mean,
        "central95": [float(bound) for bound in np.percentile(values, [2.5, 97.5])],
        "spearman_brown": spearman_brown(mean),
        "splits": len(values),
    }
