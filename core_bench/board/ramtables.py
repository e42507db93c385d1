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

JSON = dict[str, Any]


def ram_record(per_task: Mapping[str, HeadScores], pooled: HeadScores) -> JSON:
    """RAM tables as the record holds them: [layers][heads], null for what is not a number."""
    return {"per_task": {task: ram_table(table) for task, table in per_task.items()}, "pooled": ram_table(pooled)}


def ram_table(table: HeadScores) -> JSON:
    """One of them."""
    grids = {name: getattr(table, name).tolist() for name in ("ram", "stderr", "chance", "sink_corrected")}
    for name in ("stderr", "sink_corrected"):
        grids[name] = [[value if math.isfinite(value) else None for value in row] for row in grids[name]]
    return {**grids, "n": table.n}


def ram_of_rows(rows: Sequence[JSON]) -> JSON | None:
    """The tables that follow from `rows`; None without a measured sample. Raises ValueError naming a bad row."""
    grouped: dict[str, list[JSON]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: str(row["id"])):
        if row["arm"] == DETECT and row["failure"] is None:
            grouped[row["task"]].append(row)
    per_task = {
        task: accumulate([_sample_ram(row) for row in good], [row["cluster"] for row in good])
        for task, good in grouped.items()
    }
    return ram_record(per_task, pool_scores(list(per_task.values()))) if per_task else None


def _sample_ram(row: JSON) -> SampleRam:
    ram, placebo, chance = row.get("ram"), row.get("placebo"), row.get("chance")
    if not ram or chance is None or any(len(layer) != len(ram[0]) for layer in ram):
        raise ValueError(f"row {row['id']!r} of {row['task']}: expected chance, and ram as a grid")
    if placebo is not None and list(map(len, placebo)) != list(map(len, ram)):
        raise ValueError(f"row {row['id']!r} of {row['task']}: expected placebo as a grid like ram")
    return SampleRam(ram=np.array(ram), placebo=None if placebo is None else np.array(placebo), chance=chance)
