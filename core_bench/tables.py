"""The tables that a run prints at its end, within 120 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

JSON = dict[str, Any]
TOP_ROWS = 10
MOST_NAMED = 40  # heads named one by one


def render_tables(record: JSON) -> str:
    """The record as text: one table a task, arms as rows; the leading heads for a detection run."""
    run, environment = record["run"], record["environment"]
    lines = [
        f"{run['model']} {run['mode']}  checkpoint {run['checkpoint']} ({short_hash(run['checkpoint_hash'])})"
        f"  {environment['device']} {environment['dtype']} {environment['attention']}  seed {run['seed']}",
        *(f"NOTE: {note}" for note in run_notes(record)),
    ]
    for name, task in record["tasks"].items():
        lines += ["", _task_title(name, task)]
        if task["arms"]:
            lines.append(_arm_table(task["arms"]))
        if any(arm.get("prefill") for arm in task["arms"].values()):
            lines += ["", _prefill_table(task["arms"])]
        if record.get("ram") and name in record["ram"]["per_task"]:
            lines += _ram_lines(record["ram"]["per_task"][name])
    if record.get("ram") and len(record["ram"]["per_task"]) > 1:
        lines += ["", "all tasks, unweighted", *_ram_lines(record["ram"]["pooled"])]
    if record.get("ram") and record["ram"].get("stability"):
        lines += ["", *stability_lines(record["ram"]["stability"])]
    return "\n".join(lines)


def run_notes(record: JSON) -> list[str]:
    """What a reader must know before comparing this run with others."""
    settings, notes = record["run"]["settings"], []
    if not record["run"]["complete"]:
        notes.append("partial: unfinished")
    if settings.get("limit") is not None:
        notes.append(f"partial: limit {settings['limit']}")
    if settings.get("allow_overlap"):
        notes.append("heads may come from samples evaluated here (--allow-overlap)")
    heads = record["run"].get("heads")
    if heads and heads.get("note"):
        notes.append(heads["note"])
    return notes


def is_partial(record: JSON) -> bool:
    """Unfinished, or run on a part of the samples."""
    return not record["run"]["complete"] or record["run"]["settings"].get("limit") is not None


def short_hash(text: str) -> str:
    """ "sha256:0123456789abcdef" -> "0123456789"."""
    return text.rpartition(":")[2][:10]


def percent(metric: JSON | None) -> str:
    """Value in percent with its interval: 95.0 [88.1, 98.0]."""
    return "-" if metric is None else f"{100 * metric['value']:.1f}{_interval(metric['ci95'], 100, 1)}"


def points(delta: JSON | None) -> str:
    """Difference in percentage points with its interval."""
    return "-" if delta is None else f"{100 * delta['value']:+.1f}{_interval(delta['ci95'], 100, 1, sign=True)}"


def times(speedup: JSON | None) -> str:
    """Speed-up with its interval; one that cannot be told from none at all says so."""
    if speedup is None:
        return "-"
    interval = speedup["ci95"]
    same = interval is not None and interval[0] <= 1 <= interval[1]
    return f"{speedup['value']:.2f}x{_interval(interval, 1, 2)}{' (none)' if same else ''}"


def named_heads(heads: Sequence[Sequence[int]]) -> str:
    """ "(0, 6) (0, 7)"; of many the first ones and how many more."""
    named = " ".join(f"({layer}, {head})" for layer, head in heads[:MOST_NAMED])
    return named if len(heads) <= MOST_NAMED else f"{named} and {len(heads) - MOST_NAMED} more"


def arm_plans(arm: JSON) -> list[JSON]:
    """The plan of an arm; of a random arm those of its draws, which differ in heads and KV density alone."""
    return [draw["plan"] for draw in arm["draws"]] if arm.get("draws") else [arm["plan"]]


def arm_heads(name: str, arm: JSON) -> int | None:
    """How many heads an arm keeps full (hybrid) or cuts (ablation); None for the model as it is."""
    plan = arm_plans(arm)[0]
    if not plan:
        return None
    return len(plan.get("full" if name.startswith("hybrid") else "off", []))


def densities(arm: JSON) -> str:
    """Shares of query heads and of KV heads that are read in full: 4.2%/8.3%, or 4.2%/4.2-8.3% where draws differ."""
    return "/".join(_share_range(arm_plans(arm), f"{kind}_head_density") for kind in ("query", "kv"))


def _share_range(plans: list[JSON], name: str) -> str:
    shares = [plan.get(name) for plan in plans]
    known = [f"{100 * share:.1f}" for share in sorted(share for share in shares if share is not None)]
    if len(known) < len(shares):
        return "?"
    return f"{known[0]}%" if known[0] == known[-1] else f"{known[0]}-{known[-1]}%"


def headline_metric(arm: JSON) -> tuple[str, JSON] | None:
    """Name and value of the metric written first."""
    return next(iter(arm["metrics"].items()), None)


def leading_heads(table: JSON) -> list[tuple[int, int]]:
    """(layer, head), highest RAM first, ties by (layer, head)."""
    ram = table["ram"]
    heads = [(layer, head) for layer, row in enumerate(ram) for head in range(len(row))]
    return sorted(heads, key=lambda at: (-ram[at[0]][at[1]], at))


def heads_with_half_of_mass(table: JSON) -> tuple[int, int]:
    """How few heads hold half of the summed RAM, and how many heads there are."""
    values = [table["ram"][layer][head] for layer, head in leading_heads(table)]
    half, held = sum(values) / 2, 0.0
    for count, value in enumerate(values, start=1):
        held += value
        if held >= half:
            return count, len(values)
    return len(values), len(values)


def _interval(pair: list[float] | None, factor: float, digits: int, sign: bool = False) -> str:
    if pair is None:
        return " [n/a]"
    low, high = (f"{factor * bound:{'+' if sign else ''}.{digits}f}" for bound in pair)
    return f" [{low}, {high}]"


def _task_title(name: str, task: JSON) -> str:
    parts = [f"{name}: n {task['n']}, failed {task['n_failed']}"]
    if task["tokens"]:
        parts.append(
            f"median tokens {task['tokens']['prompt_median']:.0f} ({task['tokens']['visual_median']:.0f} visual)"
        )
    controls, looking = task.get("controls") or {}, []
    if controls.get("chance") is not None:
        looking.append(f"chance {100 * controls['chance']:.1f}")
    for key, label in (("image_blind", "image-blind"), ("shuffled_media", "shuffled media")):
        if controls.get(key) is not None:
            looking.append(f"{label} {percent(controls[key])}")
    whole = "; ".join([*parts, *looking])
    return whole if len(whole) <= 120 else "; ".join(parts) + ";\n  " + "; ".join(looking)


def _arm_table(arms: dict[str, JSON]) -> str:
    metric = next((found[0] for arm in arms.values() if (found := headline_metric(arm))), "score")
    header = ["arm", "heads", "q/kv full", f"{metric} % [95%]", "n", "unparsed", "failed", "difference [95%]"]
    return _table(header, [_arm_row(name, arm) for name, arm in arms.items()])


def _arm_row(name: str, arm: JSON) -> list[str]:
    heads, found = arm_heads(name, arm), headline_metric(arm)
    return [
        _label(name, arm),
        "-" if heads is None else str(heads),
        densities(arm) if name.startswith("hybrid") else "-",
        percent(found[1]) if found else "-",
        str(arm["n_scored"]),
        str(arm["n_unparsed"]),
        str(arm["n_failed"]),
        points(arm.get("delta")),
    ]


def _prefill_table(arms: dict[str, JSON]) -> str:
    """Times apart from scores: together they would not fit the width."""
    header = ["arm", "prefill ms, median", "IQR", "vision ms", "n", "speed-up [95%]"]
    timed = {name: arm for name, arm in arms.items() if arm.get("prefill")}
    return _table(header, [[_label(name, arm), *_prefill_cells(arm["prefill"])] for name, arm in timed.items()])


def _prefill_cells(prefill: JSON) -> list[str]:
    language, vision = prefill["language_ms"], prefill["vision_ms"]
    numbers = [f"{language['median']:.1f}", f"{language['iqr']:.1f}", "-" if vision is None else f"{vision:.1f}"]
    return [*numbers, str(prefill["n"]), times(prefill.get("speedup"))]


def _label(name: str, arm: JSON) -> str:
    return f"{name} x{len(arm['draws'])}" if arm.get("draws") else name


def _table(header: list[str], rows: list[list[str]], fmt: str = "simple") -> str:
    """Rows under a header, without columns that say nothing."""
    from tabulate import tabulate

    used = [i for i in range(len(header)) if any(row[i] != "-" for row in rows)]
    cells = [[row[i] for i in used] for row in rows]
    return tabulate(cells, headers=[header[i] for i in used], tablefmt=fmt, disable_numparse=True)


def _ram_lines(table: JSON) -> list[str]:
    order = leading_heads(table)
    half, n_heads = heads_with_half_of_mass(table)
    columns = ("ram", "stderr", "chance", "sink_corrected")
    rows = [
        [str(layer), str(head), *(_cell(table[name][layer][head]) for name in columns)]
        for layer, head in order[:TOP_ROWS]
    ]
    return [
        f"leading heads by RAM, n {table['n']}; {half} of {n_heads} heads hold half of the summed RAM",
        _table(["layer", "head", *columns], rows),
    ]


def stability_lines(stability: JSON, fmt: str = "simple") -> list[str]:
    """How far the rankings of the tasks agree, as two tables and a line; `fmt` as tabulate names it."""
    shared, count = stability["shared"], len(stability["halves"])
    pairs = [
        [
            " - ".join(pair["tasks"]),
            "-" if pair["value"] is None else f"{pair['value']:.2f}{_interval(pair['ci95'], 1, 2)}",
        ]
        for pair in stability["pairs"]
    ]
    halves = [[task, *_half_cells(half)] for task, half in stability["halves"].items()]
    named = " ".join(f"({layer},{head})" for layer, head in shared["heads"])
    return [
        _table(["RAM over heads, two tasks", "Spearman [95%, over samples]"], pairs, fmt),
        "",
        _table(["RAM over heads, two halves of one task", "Spearman [95% of partings]", "Spearman-Brown"], halves, fmt),
        "",
        f"in the top {shared['share']} ({shared['k']} of {shared['n_heads']} heads) of all {count} tasks: "
        f"{len(shared['heads'])} heads; by chance {shared['expected_by_chance']:.2g}, "
        f"so many or more with p = {shared['p_by_chance']:.2g}",
        *textwrap.wrap(f"their (layer,head): {named}" if named else "", width=118, subsequent_indent="  "),
    ]


def _half_cells(half: JSON | None) -> list[str]:
    if half is None:
        return ["-", "-"]
    corrected = half["spearman_brown"]
    return [
        f"{half['value']:.2f}{_interval(half['central95'], 1, 2)}",
        "-" if corrected is None else f"{corrected:.2f}",
    ]


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
