"""Runs on disk: checking one, and copying it under the leaderboard."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core_bench.board.consistency import DETECT, first_difference
from core_bench.board.ramtables import ram_table
from core_bench.errors import UserError, one_line
from core_bench.heads import HeadScores
from core_bench.results import verify_record
from core_bench.runfolder import RECORD, SAMPLES, Row, load_record, load_rows

RESULTS, HISTORY = "results", "history"
SIDECAR = "heads.json"
HEAD_TABLES = ("heads.tsv", "heads.*.tsv", SIDECAR)


def run_folder(path: str | os.PathLike[str]) -> Path:
    """The folder of a run that is named by itself or by its record.json."""
    found = Path(path)
    return found.parent if found.name == RECORD else found


def add_runs(outs: Sequence[str | os.PathLike[str]], directory: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Copy runs; returns (run id, what was done) of each. See `core_bench.board.add`."""
    board = Path(directory)
    sources: dict[str, Path] = {}
    for out in map(run_folder, outs):
        run_id = load_run(out)["run"]["id"]
        if run_id in sources:
            raise UserError(f"{out}: the run id {run_id} is that of {sources[run_id]} too")
        sources[run_id] = out
    older = {run_id: _superseded(out, board, run_id) for run_id, out in sources.items()}
    return [(run_id, _put(out, board, run_id, older[run_id])) for run_id, out in sources.items()]


def earlier(board: Path, run_id: str) -> list[Path]:
    """The folders of the runs that a newer one of the same id has superseded."""
    return sorted(path for path in (board / HISTORY / run_id).glob("[!.]*/"))


def load_run(folder: Path) -> dict[str, Any]:
    """The record of a run, checked as in `load_run_and_rows`."""
    return load_run_and_rows(folder)[0]


def load_run_and_rows(folder: Path) -> tuple[dict[str, Any], list[Row]]:
    """The record of a run, checked against its schema, its samples and its head tables, and the rows of these.

    UserError names file and field.
    """
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
        raise UserError(f"{folder / RECORD}: {one_line(error)}") from None
    _check_tables(folder, record, rows)
    return record, rows


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


def _superseded(out: Path, board: Path, run_id: str) -> Path | None:
    """Where the run that the board has under this id goes: None if it has none, its own folder if it is the same one.

    UserError if `out` is itself one that a newer run has superseded.
    """
    target = board / RESULTS / run_id
    for path in earlier(board, run_id):
        if _same(out, path):
            raise UserError(f"{out}: a newer run {run_id} has superseded it, see {path}")
    if not target.exists():
        return None
    return target if _same(out, target) else board / HISTORY / run_id / _digest(target)


def _same(out: Path, target: Path) -> bool:
    try:
        there = {path.name: path.read_bytes() for path in target.iterdir()}
        here = {path.name: path.read_bytes() for path in _files(out)}
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be read: {error.strerror}") from None
    return there == here


def _digest(folder: Path) -> str:
    """A name for what a run holds."""
    whole = hashlib.sha256()
    for path in _files(folder):
        if path.is_file():
            whole.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:12]


def _put(out: Path, board: Path, run_id: str, older: Path | None) -> str:
    """Copy the run; what was there before goes to `older` first."""
    target = board / RESULTS / run_id
    if older == target:
        return "was there already"
    partial = target.with_name(f".{target.name}.tmp")
    try:
        shutil.rmtree(partial, ignore_errors=True)  # left by a kill
        partial.mkdir(parents=True)
        for path in _files(out):
            shutil.copyfile(path, partial / path.name)
        if older is not None:
            older.parent.mkdir(parents=True, exist_ok=True)
            target.rename(older)
        partial.rename(target)
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror}") from None
    return "added" if older is None else f"added; the one before is now {older}"
