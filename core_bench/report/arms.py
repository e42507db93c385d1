"""What the figures of ablation and of hybrid attention share: samples that changed, cells, and warnings."""

from __future__ import annotations

from core_bench.report.figure import Cell, Interval, short_task, with_interval
from core_bench.report.inputs import Trial
from core_bench.significance import McNemar, few_clusters, mcnemar
from core_bench.tables import run_notes

SHARED = (
    "several samples share a picture, video or document: McNemar's test takes them as independent, the intervals do not"
)


def changed(trial: Trial, task: str, base: str, arm: str, metric: str) -> McNemar | None:
    """Samples that only the baseline answers rightly, and only the arm; None for the baseline itself, for an arm of
    several draws and for a metric that is neither right nor wrong."""
    if arm == base or trial.tasks[task]["arms"][arm].get("draws"):
        return None
    return mcnemar(_scores(trial, task, base, metric), _scores(trial, task, arm, metric))


def _scores(trial: Trial, task: str, arm: str, metric: str) -> dict[str, float]:
    return {
        row["id"]: row["scores"][metric]
        for row in trial.rows
        if (row["task"], row["arm"]) == (task, arm) and row["failure"] is None and metric in row.get("scores", {})
    }


def notes_of(trial: Trial) -> list[str]:
    """What is known about the run, tasks with few clusters, and whether samples share them."""
    notes, shared = [*run_notes(trial.record)], False
    for task in trial.tasks:
        of = {row["id"]: row["cluster"] for row in trial.rows if row["task"] == task and row["failure"] is None}
        shared = shared or len(set(of.values())) < len(of)
        if of and (warning := few_clusters(list(of.values()))):
            notes.append(f"{short_task(task)}: {warning}")
    return [*notes, SHARED] if shared else notes


def percent(value: float, interval: Interval) -> str:
    """95.0 [88.1, 98.0]."""
    return with_interval(100 * value, None if interval is None else [100 * bound for bound in interval], 1)


def changed_cells(found: McNemar | None) -> tuple[Cell, Cell]:
    """Lost / gained, and p."""
    return ("-", "-") if found is None else (f"{found.only_first} / {found.only_second}", f"{found.p:.2g}")


def changed_numbers(found: McNemar | None) -> tuple[Cell, Cell, Cell]:
    return (None, None, None) if found is None else (found.only_first, found.only_second, found.p)
