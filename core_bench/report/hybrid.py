"""Figure: accuracy against prefill speed for a sweep of kept heads, with dense and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from core_bench.board.rows import hardware
from core_bench.report.arms import changed, changed_cells, changed_numbers, notes_of, percent
from core_bench.report.figure import (
    COLOURS,
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
    with_interval,
)
from core_bench.report.inputs import JSON, Trial
from core_bench.significance import McNemar
from core_bench.tables import arm_plans, headline_metric, points

BASE = "dense"
KINDS = ("top", "bottom", "random", "file", BASE)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One arm of one task. `kept`: heads kept full, None for dense."""

    task: str
    arm: str
    kind: str
    kept: int | None
    density: float | None
    kv_density: float | None
    metric: str
    value: float
    ci: Interval
    n: int
    delta: JSON | None
    speedup: float
    speedup_ci: Interval
    language_ms: float
    changed: McNemar | None
    front: bool = False

    @property
    def name(self) -> str:
        return BASE if self.arm == BASE else self.arm.removeprefix("hybrid:")


def points_of(trial: Trial) -> list[Point]:
    """Arms that were scored and timed, the baseline first in every task; `front` marks what no other arm beats."""
    found: list[Point] = []
    for task, body in trial.tasks.items():
        own = []
        for arm, value in body["arms"].items():
            metric, prefill = headline_metric(value), value.get("prefill")
            if metric is not None and prefill is not None and (arm == BASE or prefill.get("speedup")):
                own.append(_point(trial, task, arm, value, metric))
        front = pareto([(point.speedup, point.value) for point in own])
        found += [Point(**{**vars(point), "front": at in front}) for at, point in enumerate(own)]
    return found


def pareto(points: Sequence[tuple[float, float]]) -> set[int]:
    """Indices of the points that no other one equals or exceeds in both coordinates, with one of them exceeded."""
    return {i for i, (x, y) in enumerate(points) if not any(a >= x and b >= y and (a > x or b > y) for a, b in points)}


def _point(trial: Trial, task: str, arm: str, value: JSON, headline: tuple[str, JSON]) -> Point:
    name, metric = headline
    plan = arm_plans(value)[0]
    speedup = value["prefill"].get("speedup") or {"value": 1.0, "ci95": None}
    kind = BASE if arm == BASE else arm.removeprefix("hybrid:").partition(":")[0]
    return Point(
        task=task,
        arm=arm,
        kind=kind if kind in KINDS else KINDS[0],
        kept=None if arm == BASE else len(plan.get("full", [])),
        density=plan.get("query_head_density"),
        kv_density=plan.get("kv_head_density"),
        metric=name,
        value=metric["value"],
        ci=metric["ci95"],
        n=metric["n"],
        delta=value.get("delta"),
        speedup=speedup["value"],
        speedup_ci=speedup["ci95"],
        language_ms=value["prefill"]["language_ms"]["median"],
        changed=changed(trial, task, BASE, arm, name),
    )


def hybrid(trial: Trial, name: str) -> Figure:
    """Of one run: speed is compared within it only."""
    found = points_of(trial)
    where = hardware(trial.record["environment"])
    window = _window(trial)
    return Figure(
        name=name,
        title=f"Hybrid attention: {trial.label}",
        caption=(
            f"Accuracy against the speed-up of the language model's prefill over dense, on {where}. The heads named "
            f"see every key, all others {window}. Ringed: the Pareto front, arms that no other arm equals or beats in "
            "both; dashed: dense; in parentheses the number of full heads. Bars: 95%, clustered by picture, video or "
            "document."
        ),
        table=Table(
            ("checkpoint", "task", "arm", "heads_full", "query_head_density", "kv_head_density", "metric", "value",
             "low", "high", "n", "delta", "delta_low", "delta_high", "lost", "gained", "mcnemar_p", "speedup",
             "speedup_low", "speedup_high", "language_ms", "pareto"),
            [_row(trial.label, point) for point in found],
        ),
        draw=lambda: _draw(trial, found),
        shown=Table(
            ("task", "full heads", "metric, %", "difference, points", "lost / gained", "McNemar p", "prefill speed-up",
             "Pareto", "n"),
            [_shown(point) for point in found],
        ),
        notes=notes_of(trial),
    )  # fmt: skip


def _window(trial: Trial) -> str:
    """In the words of the first plan that has one."""
    arms = (arm for body in trial.tasks.values() for arm in body["arms"].values())
    plans = (arm_plans(arm)[0] for arm in arms)
    seen = next((plan for plan in plans if plan.get("window") is not None), None)
    return f"the last {seen['window']} and the first {seen.get('sink') or 0}" if seen else "a window and the first ones"


def _row(label: str, point: Point) -> tuple[Cell, ...]:
    delta = point.delta or {"value": None, "ci95": None}
    return (
        label, point.task, point.arm, point.kept, point.density, point.kv_density, point.metric, point.value,
        *bounds(point.ci), point.n, delta["value"], *bounds(delta["ci95"]), *changed_numbers(point.changed),
        point.speedup, *bounds(point.speedup_ci), point.language_ms, "yes" if point.front else "no",
    )  # fmt: skip


def _shown(point: Point) -> tuple[Cell, ...]:
    kept = "all (dense)" if point.arm == BASE else f"{point.name} ({point.kept} heads)"
    return (
        short_task(point.task), kept, f"{point.metric} {percent(point.value, point.ci)}", points(point.delta),
        *changed_cells(point.changed), with_interval(point.speedup, point.speedup_ci), "yes" if point.front else "no",
        point.n,
    )  # fmt: skip


def _draw(trial: Trial, points: Sequence[Point]) -> Drawing:
    tasks = list(dict.fromkeys(point.task for point in points))
    drawing, grid = panels(1, len(tasks), 4.8, 4.1)
    drawing.suptitle(f"{trial.label}: heads kept full in prefill", fontsize=11)
    for axis, task in zip(grid[0], tasks, strict=True):
        own = [point for point in points if point.task == task]
        _panel(axis, own)
        tokens = trial.tasks[task].get("tokens") or {}
        length = f", {tokens['prompt_median']:.0f} tokens" if tokens else ""
        axis.set_title(f"{short_task(task)}, n {own[0].n}{length}")
    return drawing


def _panel(axis: Axes, own: Sequence[Point]) -> None:
    dense = next((point for point in own if point.arm == BASE), None)
    if dense is not None:
        axis.axhline(100 * dense.value, color=GREY, linestyle="--", linewidth=1)
    axis.axvline(1, color=GREY, linestyle="--", linewidth=1)
    front = sorted((point.speedup, 100 * point.value) for point in own if point.front)
    axis.plot(
        [x for x, _ in front], [y for _, y in front], color=GREY, linewidth=1.5, alpha=0.7, label="Pareto front",
        marker="o", markersize=15, markerfacecolor="none",
    )  # fmt: skip
    for n, point in enumerate(sorted(own, key=lambda point: point.speedup)):
        at = KINDS.index(point.kind)
        x, y, ci = point.speedup, 100 * point.value, point.ci and [100 * bound for bound in point.ci]
        axis.errorbar(
            x, y, xerr=list(whiskers(x, point.speedup_ci)), yerr=list(whiskers(y, ci)), color=COLOURS[at],
            marker=MARKS[at], markersize=7, capsize=3, elinewidth=1, linestyle="none",
        )  # fmt: skip
        text = BASE if point.arm == BASE else f"{point.name} ({point.kept})"
        axis.annotate(
            text, (x, y), xytext=(0, -36 - 14 * (n % 3)), textcoords="offset points", ha="center", fontsize=8.5,
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.6},
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )  # fmt: skip
    axis.set_xlabel("prefill speed-up over dense")
    axis.set_ylabel(f"{own[0].metric}, %")
    axis.set_ylim(-3, 108)
    axis.margins(x=0.2)
    axis.legend(loc="lower left")
