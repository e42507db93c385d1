"""RAM tables as a record holds them, and as they follow from the rows of a detection."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from core_bench.board.consistency import DETECT
from core_bench.heads import HeadScores, pool_scores
from core_bench.ram import SampleRam, accumulate
from core_bench.stability import stability

JSON = dict[str, Any]


def ram_record(per_task: Mapping[str, HeadScores], pooled: HeadScores, rows: Sequence[JSON] | None = None) -> JSON:
    """RAM tables as the record holds them: [layers][heads], null for what is not a number.

    `rows`: those that the tables were made of; with them, and two or more tasks, the record tells how stable the
    ranking is.
    """
    record: JSON = {"per_task": {task: ram_table(table) for task, table in per_task.items()}}
    record["pooled"] = ram_table(pooled)
    found = None if rows is None else stability(per_task, _by_task(rows))
    return record if found is None else {**record, "stability": found}


def ram_table(table: HeadScores) -> JSON:
    """One of them."""
    grids = {name: getattr(table, name).tolist() for name in ("ram", "stderr", "chance", "sink_corrected")}
    for name in ("stderr", "sink_corrected"):
        grids[name] = [[value if math.isfinite(value) else None for value in row] for row in grids[name]]
    return {**grids, "n": table.n}


def ram_of_rows(rows: Sequence[JSON]) -> JSON | None:
    """The tables that follow from `rows`; None without a measured sample. Raises ValueError naming a bad row."""
    per_task = {
        task: accumulate([_sample_ram(row) for row in good], [row["cluster"] for row in good])
        for task, good in _by_task(rows).items()
    }
    return ram_record(per_task, pool_scores(list(per_task.values())), rows) if per_task else None


def _by_task(rows: Sequence[JSON]) -> dict[str, list[JSON]]:
    """Task -> its measured rows, in the order of ids."""
    grouped: dict[str, list[JSON]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: str(row["id"])):
        if row["arm"] == DETECT and row["failure"] is None:
            grouped[row["task"]].append(row)
    return grouped


def _sample_ram(row: JSON) -> SampleRam:
    ram, placebo, chance = row.get("ram"), row.get("placebo"), row.get("chance")
    if not ram or chance is None or any(len(layer) != len(ram[0]) for layer in ram):
        raise ValueError(f"row {row['id']!r} of {row['task']}: expected chance, and ram as a grid")
    if placebo is not None and list(map(len, placebo)) != list(map(len, ram)):
        raise ValueError(f"row {row['id']!r} of {row['task']}: expected placebo as a grid like ram")
    return SampleRam(ram=np.array(ram), placebo=None if placebo is None else np.array(placebo), chance=chance)
