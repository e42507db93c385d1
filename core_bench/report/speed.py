"""Figure: speed of hybrid attention against prompt length, with break-even and bound, from files of `speed --json`."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure as Drawing

from core_bench.report.figure import COLOURS, DASHES, GREY, MARKS, Cell, Figure, Table, panels
from core_bench.report.speedfile import SpeedFile, SpeedRow
from core_bench.stats import break_even

KINDS = {"attention": "attention of one layer", "prefill": "prefill of the language model"}
Key = tuple[str, str]  # heads, implementation


def speed(file: SpeedFile, name: str) -> Figure | None:
    """Of one file, whose rows are of one machine; None for one without rows that compare hybrid with dense."""
    lines = _lines(file.rows)
    if not lines:
        return None
    what = KINDS[file.rows[0].what]
    even = {key: break_even((row.tokens, row.speedup) for row in rows) for key, rows in lines.items()}
    return Figure(
        name=name,
        title=f"Speed against length: {file.label}",
        caption=(
            f"Speed-up of the {what} over dense at the same length, medians of interleaved calls; bars: interquartile "
            "range of the paired speed-ups, centred. Dashed: not faster than dense. Dotted: the bound, for attention "
            "what counting visible (query, key) pairs allows, for prefill Amdahl's with it. Hollow mark, break-even: "
            "the shortest measured length from which on every longer one is faster."
        ),
        table=Table(
            ("file", "what", "device", "dtype", "impl", "heads", "window", "sink", "tokens", "dense_ms", "ms",
             "speedup", "iqr", "bound", "rounds"),
            [
                (
                    file.name, row.what, row.device, row.dtype, row.impl, row.heads, row.window, row.sink, row.tokens,
                    row.dense_ms, row.ms, row.speedup, row.spread, _bound(row), row.rounds,
                )
                for rows in lines.values()
                for row in rows
            ],
        ),
        draw=lambda: _draw(file, lines, even),
        shown=Table(
            ("heads full", "implementation", "break-even", "largest length", "speed-up there", "bound there"),
            [_shown(key, rows, even[key]) for key, rows in lines.items()],
        ),
    )  # fmt: skip


def _lines(rows: Sequence[SpeedRow]) -> dict[Key, list[SpeedRow]]:
    lines: dict[Key, list[SpeedRow]] = {}
    for row in sorted((row for row in rows if row.what in KINDS), key=lambda row: row.tokens):
        lines.setdefault((row.heads, row.impl), []).append(row)
    return dict(sorted(lines.items()))


def _bound(row: SpeedRow) -> float | None:
    return row.amdahl if row.what == "prefill" else row.ideal


def _shown(key: Key, rows: Sequence[SpeedRow], even: int | None) -> tuple[Cell, ...]:
    last = rows[-1]
    bound = _bound(last)
    length = "not reached" if even is None else f"{even} tokens"
    limit = "-" if bound is None else f"{bound:.2f}x"
    return *key, length, f"{last.tokens} tokens", f"{last.speedup:.2f}x (IQR {last.spread:.2f})", limit


def _draw(file: SpeedFile, lines: dict[Key, list[SpeedRow]], even: dict[Key, int | None]) -> Drawing:
    drawing, [[axis]] = panels(1, 1, 8.0, 5.0)
    axis.axhline(1, color=GREY, linestyle="--", linewidth=1)
    for n, (key, rows) in enumerate(lines.items()):
        colour, tokens = COLOURS[n % len(COLOURS)], [row.tokens for row in rows]
        half = [row.spread / 2 for row in rows]
        reached = "no break-even" if even[key] is None else f"break-even {even[key]}"
        label = f"{key[0]} full, {key[1]}: {reached}, {min(row.rounds for row in rows)} rounds"
        speedups = [row.speedup for row in rows]
        axis.errorbar(tokens, speedups, yerr=half, color=colour, marker=MARKS[n % len(MARKS)], capsize=3, label=label)
        bounds = [(row.tokens, bound) for row in rows if (bound := _bound(row)) is not None]
        axis.plot([x for x, _ in bounds], [y for _, y in bounds], color=colour, linestyle=DASHES[3], linewidth=1)
        if (length := even[key]) is not None:
            axis.plot(length, 1, color=colour, marker=MARKS[n % len(MARKS)], markersize=12, fillstyle="none")
    axis.plot([], [], color=GREY, linestyle=DASHES[3], linewidth=1, label="bound")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_major_formatter("{x:g}x")
    axis.set_xlabel("prompt tokens")
    axis.set_ylabel("speed-up over dense")
    axis.set_title(f"{KINDS[file.rows[0].what]}, {file.label}")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12))
    return drawing
