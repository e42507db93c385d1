"""Figure: accuracy, and the share of unparsed answers, against the share of heads that are switched off."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from core_bench.report.arms import changed, changed_cells, changed_numbers, notes_of, percent
from core_bench.report.figure import (
    COLOURS,
    DASHES,
    GREY,
    MARKS,
    Cell,
    Figure,
    Interval,
    Table,
    bounds,
    panels,
    short_task,
    whiskers,
)
from core_bench.report.inputs import JSON, Trial
from core_bench.runfolder import Row
from core_bench.significance import McNemar
from core_bench.stats import ci95
from core_bench.tables import arm_plans, headline_metric, points

KINDS = ("top", "bottom", "random", "file")  # each has its colour and mark
BASE = "none"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One arm of one task; `draws`: scores of the random draws; `unparsed`: share of answers, over scored samples."""

    task: str
    arm: str
    kind: str
    heads: int
    share: float
    metric: str
    value: float
    ci: Interval
    n: int
    clusters: int
    draws: tuple[float, ...]
    unparsed: float
    unparsed_ci: Interval
    delta: JSON | None
    changed: McNemar | None


def points_of(trial: Trial) -> list[Point]:
    """The baseline first in every task, then by kind and share."""
    by_arm: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in trial.rows:
        if row["failure"] is None:
            by_arm[row["task"], row["arm"]].append(row)
    found = [
        _point(trial, task, name, by_arm[task, name])
        for task, body in trial.tasks.items()
        for name, arm in body["arms"].items()
        if by_arm[task, name] and headline_metric(arm) is not None
    ]
    tasks = list(trial.tasks)
    return sorted(found, key=lambda one: (tasks.index(one.task), one.arm != BASE, KINDS.index(one.kind), one.share))


def _point(trial: Trial, task: str, name: str, rows: list[Row]) -> Point:
    arm = trial.tasks[task]["arms"][name]
    plan, (metric, headline) = arm_plans(arm)[0], headline_metric(arm) or ("", {})
    off, full = len(plan.get("off", [])), len(plan.get("full", []))
    unparsed: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        unparsed[row["id"]].append(float(row.get("unparsed", False)))
    of = {row["id"]: row["cluster"] for row in rows}
    means, clusters = [statistics.fmean(draws) for draws in unparsed.values()], [of[i] for i in unparsed]
    return Point(
        task=task,
        arm=name,
        kind=KINDS[0] if name == BASE else name.partition(":")[0],
        heads=off,
        share=off / (off + full) if off else 0.0,
        metric=metric,
        value=headline["value"],
        ci=headline["ci95"],
        n=headline["n"],
        clusters=len(set(clusters)),
        draws=tuple(d["metrics"][metric]["value"] for d in arm.get("draws") or [] if metric in d["metrics"]),
        unparsed=statistics.fmean(means),
        unparsed_ci=ci95(means, clusters),
        delta=arm.get("delta"),
        changed=changed(trial, task, BASE, name, metric),
    )


def ablation(trial: Trial, name: str) -> Figure:
    """Of one run, or of the runs of one sweep."""
    found = points_of(trial)
    settings = trial.record["run"]["settings"]
    how = f"{settings.get('off') or 'off'}, hold {settings.get('hold') or '?'}"
    return Figure(
        name=name,
        title=f"Ablation: {trial.label}",
        caption=(
            f"Heads switched off ({how}): those with the highest RAM (top), the lowest (bottom), or random ones that "
            "match the top by layer. Above, the headline metric; below, the share of answers that cannot be parsed, "
            "which score 0. Bands and bars: 95%, clustered by picture, video or document; small marks: the random "
            "draws. Dotted: chance; dash-dotted: every picture noise."
        ),
        table=Table(
            ("checkpoint", "task", "arm", "heads_off", "share_off", "metric", "value", "low", "high", "n", "clusters",
             "delta", "delta_low", "delta_high", "lost", "gained", "mcnemar_p", "unparsed", "unparsed_low",
             "unparsed_high", "draws"),
            [_row(trial.label, point) for point in found],
        ),
        draw=lambda: _draw(trial, found),
        shown=Table(
            ("task", "off", "metric, %", "difference, points", "lost / gained", "McNemar p", "unparsed, %", "n"),
            [_shown(point) for point in found],
        ),
        notes=notes_of(trial),
    )  # fmt: skip


def _row(label: str, point: Point) -> tuple[Cell, ...]:
    delta = point.delta or {"value": None, "ci95": None}
    return (
        label, point.task, point.arm, point.heads, point.share, point.metric, point.value, *bounds(point.ci), point.n,
        point.clusters, delta["value"], *bounds(delta["ci95"]), *changed_numbers(point.changed), point.unparsed,
        *bounds(point.unparsed_ci), " ".join(f"{value:.6g}" for value in point.draws),
    )  # fmt: skip


def _shown(point: Point) -> tuple[Cell, ...]:
    off = BASE if point.arm == BASE else f"{point.arm} ({point.heads} heads, {point.share:.1%})"
    return (
        short_task(point.task), off, f"{point.metric} {percent(point.value, point.ci)}", points(point.delta),
        *changed_cells(point.changed), percent(point.unparsed, point.unparsed_ci), point.n,
    )  # fmt: skip


def _draw(trial: Trial, points: Sequence[Point]) -> Drawing:
    tasks = list(dict.fromkeys(point.task for point in points))
    drawing, grid = panels(2, len(tasks), 3.7, 2.9, sharex=True, height_ratios=[1.7, 1])
    drawing.suptitle(f"{trial.label}: heads switched off", fontsize=11)
    for column, task in enumerate(tasks):
        own = [point for point in points if point.task == task]
        score, unparsed = grid[0][column], grid[1][column]
        _controls(score, trial.tasks[task].get("controls") or {})
        for kind in KINDS:
            line = [point for point in own if point.arm == BASE or point.kind == kind]
            if len(line) > 1:
                _line(score, kind, line, [(point.value, point.ci) for point in line])
                _draws(score, line)
                _line(unparsed, kind, line, [(point.unparsed, point.unparsed_ci) for point in line])
        n = {point.n for point in own}
        score.set_title(f"{short_task(task)}, n {min(n)}" + (f" to {max(n)}" if len(n) > 1 else ""))
        score.set_ylabel(f"{own[0].metric}, %")
        unparsed.set_ylabel("unparsed, %")
        unparsed.set_xlabel("heads switched off, % of all")
        for axis in (score, unparsed):
            axis.set_ylim(-3, 103)
    handles, labels = grid[0][0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=6)
    return drawing


def _controls(axis: Axes, controls: JSON) -> None:
    blind = controls.get("image_blind")
    if controls.get("chance") is not None:
        axis.axhline(100 * controls["chance"], color=GREY, linestyle=":", linewidth=1.2, label="chance")
    if blind is not None:
        axis.axhline(100 * blind["value"], color=GREY, linestyle="-.", linewidth=1, label="every picture noise")


def _line(axis: Axes, kind: str, line: Sequence[Point], values: list[tuple[float, Interval]]) -> None:
    at = KINDS.index(kind)
    colour, x, y = COLOURS[at], [100 * point.share for point in line], [100 * value for value, _ in values]
    ends = [ci or (value, value) for value, ci in values]
    axis.fill_between(
        x, [100 * low for low, _ in ends], [100 * high for _, high in ends], color=colour, alpha=0.13, linewidth=0
    )
    axis.plot(x, y, color=colour, marker=MARKS[at], linestyle=DASHES[at], markersize=5, label=kind)
    for at_x, (value, ci) in zip(x, values, strict=True):
        down, up = whiskers(value, ci)
        axis.errorbar(at_x, 100 * value, yerr=[[100 * down[0]], [100 * up[0]]], color=colour, capsize=3, elinewidth=1)


def _draws(axis: Axes, line: Sequence[Point]) -> None:
    for point in line:
        x = [100 * point.share] * len(point.draws)
        axis.scatter(x, [100 * value for value in point.draws], s=9, color=COLOURS[KINDS.index("random")], zorder=3)
