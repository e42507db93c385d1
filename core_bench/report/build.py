"""The report's files: every figure as PNG, SVG and CSV, and the page. The same runs give the same bytes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from core_bench.errors import UserError
from core_bench.report.ablation import ablation
from core_bench.report.agreement import agreement
from core_bench.report.figure import Figure, rendered
from core_bench.report.heads import task_heads
from core_bench.report.hybrid import hybrid
from core_bench.report.inputs import Inputs, read_inputs
from core_bench.report.maps import head_map
from core_bench.report.page import page
from core_bench.report.speed import speed
from core_bench.report.spread import depth, lines_of, sparsity
from core_bench.runfolder import write_text

PAGE, FIGURES = "report.html", "figures"
Given = TypeVar("Given")


def write_report(runs: Sequence[str], out: str | os.PathLike[str]) -> list[Path]:
    """Write everything and return the paths, the page last; nothing is written before all is known to be valid."""
    folder = _out_folder(out)
    inputs = read_inputs(runs)
    figures = figures_of(inputs)
    if not figures:
        raise UserError("report: nothing to draw: no head table, no ablation or hybrid run, no speed file with rows")
    images = {figure.name: rendered(figure) for figure in figures}
    text = page(inputs, figures, {name: found["svg"] for name, found in images.items()})
    try:
        (folder / FIGURES).mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / FIGURES)  # figures of runs that are no longer given
        (folder / FIGURES).mkdir()
        paths = []
        for figure in figures:
            files = {**images[figure.name], "csv": figure.table.csv().encode()}
            for ending, data in files.items():
                paths.append(folder / FIGURES / f"{figure.name}.{ending}")
                paths[-1].write_bytes(data)
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written: {error.strerror}") from None
    write_text(folder / PAGE, text)
    return [*paths, folder / PAGE]


def figures_of(inputs: Inputs) -> list[Figure]:
    """In the order of the page."""
    checkpoints = [(one.label, task_heads(one)) for one in inputs.detections]
    lines = lines_of(checkpoints)
    return [
        *_each("map", checkpoints, lambda one, name: head_map(one[0], name, one[1])),
        *([sparsity(lines), depth(lines)] if lines else []),
        *_each("stability", inputs.detections, agreement),
        *_each("ablation", inputs.ablations, ablation),
        *_each("hybrid", inputs.hybrids, hybrid),
        *_each("speed", inputs.speeds, speed),
    ]


def _each(kind: str, given: Sequence[Given], draw: Callable[[Given, str], Figure | None]) -> list[Figure]:
    """One figure of each that has something to draw: "map", or of several "map-1", "map-2"."""
    found = (draw(one, kind if len(given) == 1 else f"{kind}-{n}") for n, one in enumerate(given, start=1))
    return [figure for figure in found if figure is not None]


def _out_folder(out: str | os.PathLike[str]) -> Path:
    """UserError where it holds something else than a report."""
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder}: expected a folder, got a file")
    if folder.exists() and not (folder / PAGE).is_file() and any(folder.iterdir()):
        raise UserError(f"--out {folder}: expected a new folder or that of a report, but it holds no {PAGE}")
    return folder
