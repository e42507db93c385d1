"""The numbers of a detection: which heads are above chance, and how unevenly the mass is spread, with intervals."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core_bench.heads import HeadScores, pool_scores
from core_bench.report.inputs import Detection
from core_bench.significance import bootstrap_ci95, false_discovery, few_clusters, p_above_zero, p_of_t, redrawn_means
from core_bench.sparsity import gini, heads_holding, layers, lorenz
from core_bench.stats import Floats, Interval

Q = 0.05  # bound of the false-discovery rate
POOLED = "all tasks, unweighted"


@dataclass(frozen=True, kw_only=True)
class TaskHeads:
    """One task's table. Adjusted p-values (layers, heads), None where they cannot be had: of RAM above chance, by
    Benjamini-Yekutieli and, beside it, Benjamini-Hochberg, and of RAM above the placebo regions. `redrawn` and
    `redrawn_gains`: RAM and sink-corrected RAM in bootstrap samples (draws, heads). `clusters`: None where unknown."""

    task: str
    table: HeadScores
    clusters: int | None
    above_by: Floats | None
    above_bh: Floats | None
    placebo_by: Floats | None
    redrawn: Floats | None
    redrawn_gains: Floats | None
    note: str | None


def task_heads(detection: Detection) -> list[TaskHeads]:
    """One for each task, and of several tasks their mean, whose heads are above chance if they are in every task."""
    found = [_of_task(detection, task) for task in sorted(detection.tables)]
    return found if len(found) == 1 else [*found, _pooled(found)]


def _of_task(detection: Detection, task: str) -> TaskHeads:
    table, rows, clusters = detection.tables[task], detection.rows.get(task), detection.clusters.get(task)
    p_chance = p_placebo = redrawn = gains = None
    note, seed = None, zlib.crc32(f"report/{task}".encode())
    if rows:
        names = [row["cluster"] for row in rows]
        ram_NH = np.array([row["ram"] for row in rows], dtype=np.float64).reshape(len(rows), -1)
        chance_N1 = np.array([[row["chance"]] for row in rows])
        p_chance = p_above_zero(ram_NH - chance_N1, names)
        with_placebo = [n for n, row in enumerate(rows) if row["placebo"] is not None]
        if with_placebo:
            placebo_NH = np.array([rows[n]["placebo"] for n in with_placebo]).reshape(len(with_placebo), -1)
            gains_NH, of = ram_NH[with_placebo] - placebo_NH, [names[n] for n in with_placebo]
            p_placebo = p_above_zero(gains_NH, of)
            gains = None if p_placebo is None else redrawn_means(gains_NH, of, seed=seed)
        if p_chance is not None:
            redrawn = redrawn_means(ram_NH, names, seed=seed)
        note = few_clusters(names)
    elif bool(np.all(np.isfinite(table.stderr))):
        count = clusters or table.n
        p_chance = p_of_t((table.ram - table.chance).ravel(), table.stderr.ravel(), count - 1) if count > 1 else None
        note = "its head table alone is known, no samples: chance is taken as exact, and there are no intervals"
        if clusters is None:
            note += "; samples are taken as independent"
    return TaskHeads(
        task=task,
        table=table,
        clusters=clusters,
        above_by=_adjusted(p_chance, table, "by"),
        above_bh=_adjusted(p_chance, table, "bh"),
        placebo_by=_adjusted(p_placebo, table, "by"),
        redrawn=redrawn,
        redrawn_gains=gains,
        note=note,
    )


def _adjusted(p_H: Floats | None, table: HeadScores, method: str) -> Floats | None:
    return None if p_H is None else false_discovery(p_H, method).reshape(table.ram.shape)


def _pooled(tasks: list[TaskHeads]) -> TaskHeads:
    """A head's adjusted p-value is the largest of its tasks': above chance in all (Berger 1982)."""
    counts = [one.clusters for one in tasks if one.clusters is not None]
    return TaskHeads(
        task=POOLED,
        table=pool_scores([one.table for one in tasks]),
        clusters=min(counts) if len(counts) == len(tasks) else None,
        above_by=_largest([one.above_by for one in tasks]),
        above_bh=_largest([one.above_bh for one in tasks]),
        placebo_by=_largest([one.placebo_by for one in tasks]),
        redrawn=_mean([one.redrawn for one in tasks]),
        redrawn_gains=_mean([one.redrawn_gains for one in tasks]),
        note=None,
    )


def _mean(tables: list[Floats | None]) -> Floats | None:
    known = [table for table in tables if table is not None]
    return np.mean(known, axis=0) if len(known) == len(tables) else None


def _largest(p_values: list[Floats | None]) -> Floats | None:
    known = [p for p in p_values if p is not None]
    return np.max(known, axis=0) if len(known) == len(p_values) else None


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How unevenly one table's RAM is spread; intervals from the bootstrap. `holding`: heads that hold half of it;
    `top`: share of it that the leading 5% and 10% of the heads hold."""

    gini: float
    gini_ci: Interval | None
    holding: int
    top: dict[str, float]
    corrected_gini: float | None
    corrected_ci: Interval | None
    centroid: float
    centroid_ci: Interval | None
    depth_sd: float
    depth_sd_ci: Interval | None
    layer_share: Floats
    layer_ci: list[Interval | None]


def spread_of(one: TaskHeads, top: dict[str, int]) -> Spread | None:
    """None where no head has any RAM. `top`: name -> number of leading heads."""
    ram_LH = one.table.ram
    if ram_LH.sum() <= 0:
        return None
    depth, (_, held) = layers(ram_LH), lorenz(ram_LH)
    gains = np.clip(np.nan_to_num(one.table.sink_corrected), 0, None)
    drawn = [] if one.redrawn is None else [table_H.reshape(ram_LH.shape) for table_H in one.redrawn]
    ginis, depths = np.array([gini(table) for table in drawn]), [layers(table) for table in drawn]

    def interval(value: float, redrawn: Sequence[float] | Floats) -> Interval | None:
        return bootstrap_ci95(value, np.array(redrawn), one.clusters or 0) if drawn else None

    return Spread(
        gini=gini(ram_LH),
        gini_ci=interval(gini(ram_LH), ginis),
        holding=heads_holding(ram_LH, 0.5),
        top={name: float(held[k]) for name, k in top.items()},
        corrected_gini=gini(gains) if gains.sum() > 0 else None,
        corrected_ci=_gains_ci(one, gains),
        centroid=depth.centroid,
        centroid_ci=interval(depth.centroid, [found.centroid for found in depths]),
        depth_sd=depth.spread,
        depth_sd_ci=interval(depth.spread, [found.spread for found in depths]),
        layer_share=depth.share,
        layer_ci=[
            interval(float(share), [float(found.share[layer]) for found in depths])
            for layer, share in enumerate(depth.share)
        ],
    )


def _gains_ci(one: TaskHeads, gains: Floats) -> Interval | None:
    """Of the Gini coefficient of sink-corrected RAM, heads below zero counted as zero."""
    if one.redrawn_gains is None or gains.sum() <= 0:
        return None
    drawn = [np.clip(gains_H, 0, None) for gains_H in one.redrawn_gains]
    return bootstrap_ci95(gini(gains), np.array([gini(table) for table in drawn if table.sum() > 0]), one.clusters or 0)
