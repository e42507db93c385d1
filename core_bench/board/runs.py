"""Runs on disk: checking one, and copying it under the leaderboard."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core_bench.board.consistency import DETECT, first_difference
from core_bench.board.ramtables import ram_table
from core_bench.errors import UserError
from core_bench.heads import HeadScores
from core_bench.results import verify_record
from core_bench.runfolder import RECORD, SAMPLES, Row, load_record, load_rows

RESULTS = "results"
SIDECAR = "heads.json"
HEAD_TABLES = ("heads.tsv", "heads.*.tsv", SIDECAR)


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
    """The record of a run, checked against its schema, its samples and its head tables. UserError names file and
    field."""
    try:
        for name in (RECORD, SAMPLES):
            if not (folder / name).is_file():
                raise UserError(f"{folder}: expected the folder of a run, found no {name}")
        record, rows = load_record(folder / RECORD), load_rows(folder / SAMPLES)
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise UserError(f"{folder}: {RECORD} or {SAMPLES}: nested too deeply") from None
    try:
        verify_record(record, rows)
    except (ValueError, ArithmeticError) as error:  # numbers may be too large to add up
        raise UserError(f"{folder / RECORD}: {' '.join(str(error).split())}") from None
    _check_tables(folder, record, rows)
    return record


def _check_tables(folder: Path, record: dict[str, Any], rows: Sequence[Row]) -> None:
    """Refuse head tables that are missing, damaged or not those of the record."""
    ram = record.get("ram") or {}
    tables = {f"heads.{task}.tsv": table for task, table in ram.get("per_task", {}).items()}
    tables |= {"heads.tsv": ram["pooled"]} if ram else {}
    if record["run"]["mode"] == DETECT and record["run"]["complete"]:
        for name in ("heads.tsv", SIDECAR, *tables):
            if not (folder / name).is_file():
                raise UserError(f"{folder}: expected the head tables of a detection run, found no {name}")
    for path in _tables(folder):
        if path.name != SIDECAR and path.name not in tables:
            raise UserError(f"{path}: a head table that {RECORD} does not have")
        if path.name == SIDECAR:
            _check_sidecar(path, record, rows)
        elif difference := first_difference(tables[path.name], ram_table(HeadScores.read_tsv(path))):
            raise UserError(f"{path}: {difference}: not as in {RECORD}")


def _check_sidecar(path: Path, record: dict[str, Any], rows: Sequence[Row]) -> None:
    """Later runs read from it which samples they must not evaluate on."""
    measured: dict[str, list[str]] = {task: [] for task in record["tasks"]}
    for row in rows:
        if row["arm"] == DETECT and row["failure"] is None:
            measured[row["task"]].append(row["id"])
    try:
        sidecar = json.loads(path.read_text(encoding="utf-8"))
        found = {task: sorted(lists["ids"]) for task, lists in sidecar["samples"].items()}
        checkpoint = sidecar["checkpoint_hash"]
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise UserError(f"{path}: expected an object with checkpoint_hash and samples.TASK.ids") from None
    if checkpoint != record["run"]["checkpoint_hash"]:
        raise UserError(f"{path}: checkpoint_hash: not as in {RECORD}")
    if found != {task: sorted(ids) for task, ids in measured.items()}:
        raise UserError(f"{path}: samples: not those measured in {SAMPLES}")


def _tables(folder: Path) -> list[Path]:
    return sorted({path for pattern in HEAD_TABLES for path in folder.glob(pattern)})


def _files(folder: Path) -> list[Path]:
    return [folder / RECORD, folder / SAMPLES, *_tables(folder)]


def _is_new(out: Path, target: Path) -> bool:
    if not target.exists():
        return True
    try:
        there = {path.name: path.read_bytes() for path in target.iterdir()}
        here = {path.name: path.read_bytes() for path in _files(out)}
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be read: {error.strerror}") from None
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
