"""What the kinds of `speed` share: timing in turns, rows, tables, the break-even length, and the JSON file.

Every row carries what, device, dtype, impl, heads, tokens, dense_ms, ms, speedup, ideal, share_of_ideal, spread and
compile_ms. Times are medians; spread is the interquartile range of the paired speed-ups; what is unbounded is None.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from core_bench import stats
from core_bench.errors import UserError
from core_bench.probes import synchronize
from core_bench.stats import median_iqr

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], object]]
COMPILED = ("flex", "triton")  # implementations whose first call at a shape compiles


def timed_ms(work: Callable[[], object], device: torch.device) -> float:
    """One call, synchronised on CUDA."""
    synchronize(device)
    begin = time.perf_counter()
    work()
    synchronize(device)
    return (time.perf_counter() - begin) * 1e3


def in_turns(works: Mapping[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Milliseconds of each, one call each and round, every second round in reverse. The caller warms up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds):
        for name in list(works)[:: 1 if number % 2 == 0 else -1]:
            times[name].append(timed_ms(works[name], device))
    return times


def measured(dense: Sequence[float], times: Sequence[float], bound: float) -> Row:
    """The columns that follow from paired times: medians, speed-up, its spread and its share of `bound`."""
    dense_ms, ms = median_iqr(list(dense))[0], median_iqr(list(times))[0]
    return {
        "dense_ms": dense_ms,
        "ms": ms,
        "speedup": dense_ms / ms,
        "share_of_ideal": finite(dense_ms / ms / bound),
        "spread": median_iqr([d / m for d, m in zip(dense, times, strict=True)])[1],
        "rounds": len(times),
    }


def break_even(rows: Sequence[Row]) -> dict[tuple[str, str], int | None]:
    """(heads, impl) -> the shortest length from which on every measured length is faster than dense; None if none."""
    by_key: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in rows:
        by_key.setdefault((row["heads"], row["impl"]), []).append((row["tokens"], row["speedup"]))
    return {key: stats.break_even(speedups) for key, speedups in by_key.items()}


def render(title: str, rows: Sequence[Row], columns: Sequence[Column], notes: Sequence[str]) -> str:
    """The table, with what it was measured on above and how to read it below."""
    lines = [title]
    if rows:
        cells = [[cell(row) for _, cell in columns] for row in rows]
        lines.append(tabulate(cells, headers=[name for name, _ in columns], disable_numparse=True))
    return "\n".join([*lines, *notes])


def speedup_cell(row: Row) -> str:
    return f"{row['speedup']:.2f}x" + (" NOT FASTER" if row["speedup"] <= 1 else "")


def share_cell(row: Row) -> str:
    return "-" if row["share_of_ideal"] is None else f"{row['share_of_ideal']:.0%}"


def compile_cell(row: Row) -> str:
    return "-" if not row["compile_ms"] else f"{row['compile_ms'] / 1e3:.1f} s"


def ideal_cell(row: Row, name: str = "ideal") -> str:
    return "unbounded" if row[name] is None else f"{row[name]:.2f}x"


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def check_writable(json_path: str | None) -> None:
    """A long sweep must not end on a path that cannot be written."""
    if json_path is None:
        return
    path = Path(json_path)
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"--json {json_path}: expected a file in a writable folder")


def write_rows(json_path: str | None, **record: Any) -> None:
    """environment, run, rows and note, if a file was asked for."""
    if json_path is not None:
        Path(json_path).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
