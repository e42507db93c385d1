"""Runs on disk: checking one, and copying it under the leaderboard."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core_bench.errors import UserError
from core_bench.results import verify_record
from core_bench.runfolder import RECORD, SAMPLES, load_record, load_rows

RESULTS = "results"
HEAD_TABLES = ("heads.tsv", "heads.*.tsv", "heads.json")


def add_runs(outs: Sequence[str | os.PathLike[str]], directory: str | os.PathLike[str]) -> list[tuple[str, bool]]:
    """Copy runs; returns (run id, whether it is new) of each. See `core_bench.board.add`."""
    results = Path(directory) / RESULTS
    sources: dict[str, Path] = {}
    for out in map(Path, outs):
        run_id = load_run(out)["run"]["id"]
        if run_id in sources:
            raise UserError(f"{out}: the run id {run_id} is that of {sources[run_id]} too")
        sources[run_id] = out
    new = {run_id: _is_new(out, results / run_id) for run_id, out in sources.items()}
    for run_id, out in sources.items():
        if new[run_id]:
            _copy(out, results / run_id)
    return list(new.items())


def load_run(folder: Path) -> dict[str, Any]:
    """The record of a run, checked against its schema and its samples. UserError names file and field."""
    for name in (RECORD, SAMPLES):
        if not (folder / name).is_file():
            raise UserError(f"{folder}: expected the folder of a run, found no {name}")
    record = load_record(folder / RECORD)
    if record["run"]["mode"] == "detect" and not (folder / "heads.tsv").is_file():
        raise UserError(f"{folder}: expected the head table of a detection run, found no heads.tsv")
    rows = load_rows(folder / SAMPLES)
    try:
        verify_record(record, rows)
    except ValueError as error:
        raise UserError(f"{folder / RECORD}: {error}") from None
    return record


def _files(folder: Path) -> list[Path]:
    tables = {path for pattern in HEAD_TABLES for path in folder.glob(pattern)}
    return [folder / RECORD, folder / SAMPLES, *sorted(tables)]


def _is_new(out: Path, target: Path) -> bool:
    if not target.exists():
        return True
    there = {path.name: path.read_bytes() for path in target.iterdir()}
    here = {path.name: path.read_bytes() for path in _files(out)}
    differing = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
    if differing:
        raise UserError(f"{target}: holds another run under this id ({differing[0]} differs); remove it first")
    return False


def _copy(out: Path, target: Path) -> None:
    partial = target.with_name(f".{target.name}.tmp")
    try:
        shutil.rmtree(partial, ignore_errors=True)  # left by a kill
        partial.mkdir(parents=True)
        for path in _files(out):
            shutil.copyfile(path, partial / path.name)
        partial.rename(target)
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror}") from None
