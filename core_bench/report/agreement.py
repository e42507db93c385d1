"""Figure: how far the rankings of tasks agree, which heads they share, and how many samples a ranking needs."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure as Drawing

from core_bench.heads import Head, HeadScores, k_for
from core_bench.rankstats import shared_by_chance
from core_bench.reliability import Agreement, agreements, predicted, samples_needed
from core_bench.report.figure import (
    COLOURS,
    GREY,
    MARKS,
    Cell,
    Figure,
    Table,
    bounds,
    panels,
    short_task,
    whiskers,
    with_interval,
)
from core_bench.report.inputs import Detection
from core_bench.stability import SHARE, stability
from core_bench.stats import Floats, spearman
from core_bench.tables import named_heads

JSON = dict[str, Any]
TARGETS = (0.9, 0.95)
BEYOND = 8  # times the measured samples, as far as the extrapolation is drawn
NO_SAMPLES = "only head tables are known of {}: no interval and no split halves without its samples"


def agreement(detection: Detection, name: str) -> Figure:
    """Of one checkpoint."""
    curves = {task: _curve(task, rows) for task, rows in sorted(detection.rows.items())}
    found = _stability(detection)
    pairs = found["pairs"] if found else _pairs(detection)
    missing = sorted(detection.tables.keys() - detection.rows.keys())
    return Figure(
        name=name,
        title=f"Stability of the ranking: {detection.label}",
        caption=(
            "Top left: Spearman's correlation of RAM over heads between tasks, with 95% intervals over pictures, "
            "videos or documents; hollow: split halves of one task, with the central 95% of 200 partings. Top right: "
            f"in how many tasks each head is among the top {SHARE}. Below: agreement of two rankings from as many "
            "other samples each, and the share of their top heads that both have; bars: central 95% of 200 partings; "
            "dashed beyond half of the samples: Spearman-Brown's prediction, approximate for ranks; dotted: Spearman "
            "0.9 and 0.95, and the overlap of random sets."
        ),
        table=_table(detection.label, pairs, found, curves),
        draw=lambda: _draw(detection, pairs, found, curves),
        shown=_needed_table(curves) if curves else None,
        notes=[NO_SAMPLES.format(", ".join(map(short_task, missing)))] * bool(missing) + _shared_notes(detection),
    )


def _stability(detection: Detection) -> JSON | None:
    if len(detection.tables) < 2 or detection.rows.keys() != detection.tables.keys():
        return None
    return stability(detection.tables, detection.rows)


def _pairs(detection: Detection) -> list[JSON]:
    """As `stability` gives them, but without samples, and so without intervals."""
    ram = {task: table.ram.ravel().tolist() for task, table in detection.tables.items()}
    return [{"tasks": [a, b], "value": spearman(ram[a], ram[b]), "ci95": None} for a, b in combinations(sorted(ram), 2)]


def _curve(task: str, rows: Sequence[JSON]) -> list[Agreement]:
    ram_NH = np.array([row["ram"] for row in rows], dtype=np.float64).reshape(len(rows), -1)
    seed = zlib.crc32(f"agreement/{task}".encode())
    return agreements(ram_NH, [row["cluster"] for row in rows], k_for(SHARE, ram_NH.shape[1]), seed=seed)


def _shared_notes(detection: Detection) -> list[str]:
    """Heads in the top of every task, by RAM and by sink-corrected RAM, which a task's chance level moves less."""
    tables = list(detection.tables.values())
    if len(tables) < 2:
        return []
    size, notes = tables[0].ram.size, []
    k = k_for(SHARE, size)
    for name, top in (("RAM", _top_by_ram), ("sink-corrected RAM", _top_by_gain)):
        sets = [top(table, k) for table in tables]
        if any(one is None for one in sets):
            continue
        heads = sorted(set.intersection(*(one for one in sets if one is not None)))
        expected, p = shared_by_chance(size, k, len(tables), len(heads))
        notes.append(
            f"in the top {SHARE} by {name} ({k} of {size} heads) of every task: {len(heads)} heads, "
            f"{named_heads(heads) or '-'}; by chance {expected:.2g}, so many or more with p = {p:.2g}"
        )
    return notes


def _top_by_ram(table: HeadScores, k: int) -> set[Head]:
    return set(table.top(k))


def _top_by_gain(table: HeadScores, k: int) -> set[Head] | None:
    """None where a head has no sink-corrected RAM."""
    gains = table.sink_corrected
    if not bool(np.all(np.isfinite(gains))):
        return None
    order = np.argsort(-gains, axis=None, kind="stable")[:k]
    return {divmod(int(flat), table.n_heads) for flat in order}


def _table(label: str, pairs: list[JSON], found: JSON | None, curves: dict[str, list[Agreement]]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for pair in pairs:
        rows.append((label, "spearman of tasks", " - ".join(pair["tasks"]), None, pair["value"], *bounds(pair["ci95"])))
    for task, half in (found or {"halves": {}})["halves"].items():
        if half is not None:
            rows.append((label, "split half", task, None, half["value"], *bounds(half["central95"])))
            rows.append((label, "split half, Spearman-Brown", task, None, half["spearman_brown"], None, None))
    for task, curve in curves.items():
        for one in curve:
            rows.append((label, "spearman of samples", task, one.samples, one.spearman, *one.spearman95))
            rows.append((label, f"shared top {SHARE}", task, one.samples, one.overlap, *one.overlap95))
    return Table(("checkpoint", "what", "of", "samples_each", "value", "low", "high"), rows)


def _needed_table(curves: dict[str, list[Agreement]]) -> Table:
    header = ["task", "samples in a half", "Spearman of halves", f"shared top {SHARE} of halves"]
    rows: list[tuple[Cell, ...]] = []
    for task, curve in curves.items():
        if not curve:
            rows.append((short_task(task), None, "-", "-", *["-"] * len(TARGETS)))
            continue
        last = curve[-1]
        cells = [_needed(curve, target) for target in TARGETS]
        halves = with_interval(last.spearman, last.spearman95), with_interval(last.overlap, last.overlap95)
        rows.append((short_task(task), f"{last.samples:g}", *halves, *cells))
    return Table((*header, *(f"samples for Spearman {target:g}" for target in TARGETS)), rows)


def _needed(curve: Sequence[Agreement], target: float) -> str:
    needed = samples_needed(curve, target)
    if needed is None:
        return "-"
    samples, was_measured = needed
    return f"{samples:.0f}" if was_measured else f"about {samples:.0f} (extrapolated)"


def _draw(detection: Detection, pairs: list[JSON], found: JSON | None, curves: dict[str, list[Agreement]]) -> Drawing:
    drawing, ((forest, shared), (correlation, overlap)) = panels(2, 2, 5.4, 3.7)
    drawing.suptitle(detection.label, fontsize=11)
    _forest(forest, pairs, (found or {"halves": {}})["halves"])
    _shared_map(drawing, shared, detection)
    size = next(iter(detection.tables.values())).ram.size
    correlation.set_ylabel("Spearman's correlation")
    overlap.set_ylabel(f"share of the top {SHARE} in both")
    overlap.axhline(k_for(SHARE, size) / size, color=GREY, linewidth=1, linestyle=":")
    for axis, kind in ((correlation, "spearman"), (overlap, "overlap")):
        _curves(axis, curves, kind)
    return drawing


def _forest(axis: Axes, pairs: list[JSON], halves: dict[str, JSON | None]) -> None:
    rows = [(" - ".join(map(short_task, pair["tasks"])), pair["value"], pair["ci95"], True) for pair in pairs]
    for task, half in halves.items():
        if half is not None:
            rows.append((f"{short_task(task)}, halves", half["value"], half["central95"], False))
    for y, (_, value, interval, filled) in enumerate(reversed(rows)):
        if value is not None:
            low, high = whiskers(value, interval)
            face = COLOURS[0] if filled else "white"
            axis.errorbar(value, y, xerr=[low, high], marker="o", color=COLOURS[0], markerfacecolor=face, capsize=3)
    axis.set_yticks(range(len(rows)), [row[0].replace("_tiny", "") for row in reversed(rows)], fontsize=8)
    known = [low for _, value, ci, _ in rows if value is not None for low in (ci or [value])]
    axis.set_xlim(min(known, default=0.0) - 0.05, 1.02)
    axis.set_ylim(-0.6, max(len(rows), 1) - 0.4)
    axis.set_xlabel("Spearman's correlation over heads, 95%")
    axis.set_title("agreement between and within tasks")
    if not rows:
        axis.text(0.5, 0.5, "one task, no samples", transform=axis.transAxes, ha="center")


def _shared_map(drawing: Drawing, axis: Axes, detection: Detection) -> None:
    tables = list(detection.tables.values())
    k = k_for(SHARE, tables[0].ram.size)
    counts: Floats = np.zeros(tables[0].ram.shape)
    for table in tables:
        for head in table.top(k):
            counts[head] += 1
    norm = Normalize(0, len(tables))
    image = axis.imshow(counts, norm=norm, cmap="cividis", origin="lower", aspect="auto", interpolation="nearest")
    axis.grid(False)
    drawing.colorbar(image, ax=axis, label="tasks", ticks=range(len(tables) + 1))
    axis.set_xlabel("query head")
    axis.set_ylabel("layer")
    axis.locator_params(integer=True)
    in_all = int((counts == len(tables)).sum())
    axis.set_title(f"tasks that have the head in their top {SHARE} ({k}): {in_all} in all")


def _curves(axis: Axes, curves: dict[str, list[Agreement]], kind: str) -> None:
    for n, (task, curve) in enumerate(curves.items()):
        if not curve:
            continue
        aside = 1 + 0.04 * (n - len(curves) / 2)  # so that the bars of several tasks can be told apart
        colour, x = COLOURS[n % len(COLOURS)], [one.samples * aside for one in curve]
        values = [getattr(one, kind) for one in curve]
        axis.plot(x, values, color=colour, marker=MARKS[n % len(MARKS)], markersize=4.5, label=short_task(task))
        for at, value, one in zip(x, values, curve, strict=True):
            axis.errorbar(
                at, value, yerr=list(whiskers(value, getattr(one, f"{kind}95"))), color=colour, elinewidth=0.9
            )
        if kind == "spearman" and values[-1] > 0:
            factors = np.geomspace(1, BEYOND, 20)
            beyond = [predicted(values[-1], factor) for factor in factors]
            axis.plot(x[-1] * factors, beyond, color=colour, linestyle="--", linewidth=1)
    if kind == "spearman":
        for target in TARGETS:
            axis.axhline(target, color=GREY, linewidth=0.8, linestyle=":")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_ylim(top=1.02)
    axis.set_xlabel("samples in each of two rankings")
    if not any(curves.values()):
        axis.clear()
        axis.set_axis_off()
        axis.text(0.5, 0.5, "unknown without samples", transform=axis.transAxes, ha="center")
    elif kind == "spearman":
        axis.legend(loc="lower right")
