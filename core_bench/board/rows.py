"""What the leaderboard says: sections of plain text cells, which `pages` turns into Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from core_bench.board.reported import REPORTED, REPORTED_TITLE
from core_bench.tables import (
    arm_heads,
    arm_plans,
    densities,
    headline_metric,
    heads_with_half_of_mass,
    is_partial,
    leading_heads,
    percent,
    points,
    run_notes,
    short_hash,
    times,
)

JSON = dict[str, Any]
BASELINES = ("none", "dense")
BUNDLED = (
    "Small models that come with the suite, on generated data: they show mechanism and measurement, not the study."
)
SETUP = ("Device", "dtype", "Versions", "Notes", "Run")


@dataclass(frozen=True)
class Section:
    """A table. The last cell of a row is a run id, to be linked to its folder, if `linked`. `mode`: of the runs
    in it."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    linked: bool = True
    mode: str = ""


def sections(records: Iterable[JSON]) -> list[Section]:
    """The tables of the runs that are not partial: three of real checkpoints, those of the bundled ones that have rows,
    and what the study reports."""
    whole = sorted((r for r in records if not is_partial(r)), key=lambda r: (r["run"]["model"], r["run"]["id"]))
    bundled = [record for record in whole if is_bundled(record)]
    own = [
        replace(table, title=f"{table.title}: bundled models", note=f"{BUNDLED} {table.note}")
        for table in _sections(bundled)
        if table.rows
    ]
    study = Section(
        "As reported by the study", REPORTED_TITLE.replace(":", "."), ("Result", "As reported"), REPORTED, linked=False
    )
    return [*_sections([record for record in whole if not is_bundled(record)]), *own, study]


def is_bundled(record: JSON) -> bool:
    """Whether it is a run of a small model that comes with this suite."""
    return record["run"]["checkpoint"].partition(":")[0] == "bundled"


def _sections(whole: Sequence[JSON]) -> list[Section]:
    return [
        Section(
            "Hybrid attention",
            "Selected heads see every key, all others a window and the first tokens. Scores in percent with 95% "
            "intervals, differences on the same samples. Speed-up: prefill of the language model, dense over hybrid.",
            ("Model", "Checkpoint", "Task", "n", "Metric", "Chance / blind", "Dense", "Kept", "Hybrid", "Difference",
             "Full heads (query / KV)", "Window / sink", "Prefill speed-up", *SETUP),
            _all(_hybrid_rows(record) for record in whole),
            mode="hybrid",
        ),
        Section(
            "Ablation",
            "Heads cut: their output is zero, or blind: they see no visual tokens. Random: mean of the draws, with the "
            "lowest and the highest. In parentheses the difference to none, in points.",
            ("Model", "Checkpoint", "Task", "n", "Metric", "Chance / blind", "Cut", "Heads", "None", "Top", "Bottom",
             "Random", "Other", *SETUP),
            _all(_ablation_rows(record) for record in whole),
            mode="ablate",
        ),
        Section(
            "Detection",
            "RAM: attention mass on the evidence, mean over samples. Chance: what even attention would put there. "
            "Half of mass: how few heads hold half of the summed RAM.",
            ("Model", "Checkpoint", "Task", "n", "Leading head (layer, head)", "RAM", "Chance", "Sink-corrected",
             "Half of mass", *SETUP),
            _all(_detection_rows(record) for record in whole),
            mode="detect",
        ),
    ]  # fmt: skip


def partial_runs(records: Iterable[JSON]) -> list[tuple[str, str]]:
    """(run id, what it is and why it is left out) of runs that stand in no table."""
    listed = []
    for record in records:
        if is_partial(record):
            run = record["run"]
            about = f"{run['model']}, {run['mode']}, {', '.join(record['tasks'])}: {'; '.join(run_notes(record))}"
            listed.append((run["id"], about))
    return sorted(listed)


def _all(groups: Iterable[list[tuple[str, ...]]]) -> tuple[tuple[str, ...], ...]:
    return tuple(row for group in groups for row in group)


def place(name: str) -> str:
    """A path without its folders, if it is absolute: where it lies on one machine says nothing to others."""
    path = PurePath(name)
    return path.name if path.is_absolute() else name


def command(run: JSON) -> str:
    """What was typed, paths as `place` gives them."""
    return " ".join(map(place, run["command"].split()))


def checkpoint(run: JSON) -> str:
    """Its name and the start of the hash of its content."""
    return f"{place(run['checkpoint'])} ({short_hash(run['checkpoint_hash'])})"


def hardware(environment: JSON) -> str:
    """What the run had to compute with."""
    return f"{environment['device']}, {environment['threads']} threads, {environment['dtype']}"


def _who(record: JSON) -> tuple[str, str]:
    return record["run"]["model"], checkpoint(record["run"])


def _setup(record: JSON) -> tuple[str, ...]:
    environment = record["environment"]
    versions = environment["versions"]
    shown = [name for name in ("torch", "transformers") if name in versions] or sorted(versions)
    return (
        environment["device"],
        environment["dtype"],
        ", ".join(f"{name} {versions[name]}" for name in shown),
        "; ".join(run_notes(record)),
        record["run"]["id"],
    )


def _task_cells(name: str, task: JSON, arms: Sequence[JSON]) -> tuple[str, ...]:
    metric = next((found[0] for arm in arms if (found := headline_metric(arm))), "-")
    controls = task.get("controls") or {}
    chance, blind = controls.get("chance"), controls.get("image_blind")
    looking = f"{'-' if chance is None else f'{100 * chance:.1f}'} / {percent(blind)}"
    failed = f" ({task['n_failed']} failed)" if task["n_failed"] else ""
    return name, f"{task['n']}{failed}", metric, looking


def _score(arm: JSON | None) -> str:
    found = headline_metric(arm) if arm else None
    if arm is None or found is None:
        return "-"
    unparsed = f", {arm['n_unparsed']} unparsed" if arm["n_unparsed"] else ""
    return percent(found[1]) + unparsed


def _hybrid_rows(record: JSON) -> list[tuple[str, ...]]:
    if record["run"]["mode"] not in ("dense", "hybrid"):
        return []
    rows = []
    for name, task in record["tasks"].items():
        dense = task["arms"].get("dense")
        hybrid = {arm: body for arm, body in task["arms"].items() if arm not in BASELINES}
        start = (*_who(record), *_task_cells(name, task, list(task["arms"].values())), _score(dense))
        for arm, body in hybrid.items():
            plan, prefill = arm_plans(body)[0], body.get("prefill") or {}
            window = "-" if plan.get("window") is None else f"{plan['window']} / {plan.get('sink')}"
            density = f"{arm_heads(arm, body)} ({densities(body)})"
            middle = (arm.partition(":")[2], _score(body), points(body.get("delta")), density, window)
            rows.append((*start, *middle, times(prefill.get("speedup")), *_setup(record)))
        if not hybrid:
            rows.append((*start, *["-"] * 6, *_setup(record)))
    return rows


def _ablation_rows(record: JSON) -> list[tuple[str, ...]]:
    if record["run"]["mode"] != "ablate":
        return []
    rows = []
    for name, task in record["tasks"].items():
        arms = task["arms"]
        start = (*_who(record), *_task_cells(name, task, list(arms.values())))
        for amount in dict.fromkeys(arm.partition(":")[2] for arm in arms if arm not in BASELINES):
            same = {arm.partition(":")[0]: body for arm, body in arms.items() if arm.partition(":")[2] == amount}
            cells = [_ablated(same.get(kind)) for kind in ("top", "bottom", "random", "file")]
            rows.append((*start, amount, _cut_heads(same), _score(arms.get("none")), *cells, *_setup(record)))
    return rows


def _cut_heads(arms: dict[str, JSON]) -> str:
    """How many heads the arms of one amount cut, and how: "3 (zero)"."""
    for kind, body in arms.items():
        count = arm_heads(kind, body)
        if count is not None:
            return f"{count} ({arm_plans(body)[0].get('off_kind')})"
    return "-"


def _ablated(arm: JSON | None) -> str:
    if arm is None:
        return "-"
    delta = f" ({100 * arm['delta']['value']:+.1f})" if arm.get("delta") else ""
    values = [100 * found[1]["value"] for draw in arm.get("draws") or [] if (found := headline_metric(draw))]
    draws = f", {len(values)} draws {min(values):.1f} to {max(values):.1f}" if values else ""
    return _score(arm) + delta + draws


def _detection_rows(record: JSON) -> list[tuple[str, ...]]:
    if not record.get("ram"):
        return []
    tables = dict(record["ram"]["per_task"])
    if len(tables) > 1:
        tables["all, unweighted"] = record["ram"]["pooled"]
    rows = []
    for name, table in tables.items():
        layer, head = leading_heads(table)[0]
        cells = [table[column][layer][head] for column in ("ram", "chance", "sink_corrected")]
        error = table["stderr"][layer][head]
        numbers = ["-" if cell is None else f"{cell:.4f}" for cell in cells]
        numbers[0] += "" if error is None else f" ± {error:.4f}"
        half, n_heads = heads_with_half_of_mass(table)
        about = (name, str(table["n"]), f"({layer}, {head})", *numbers, f"{half} of {n_heads}")
        rows.append((*_who(record), *about, *_setup(record)))
    return rows
