"""What a report is made of: runs, head tables and speed files, checked, and grouped by what belongs together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from core_bench.board.consistency import DETECT
from core_bench.board.rows import place
from core_bench.board.runs import SIDECAR, load_run_and_rows, run_folder
from core_bench.errors import UserError, one_line
from core_bench.heads import HeadScores
from core_bench.report.speedfile import SpeedFile, load_speed
from core_bench.runfolder import RECORD, Row
from core_bench.stats import Floats

JSON = dict[str, Any]
MEASURED_BY = ("query", "overlap", "frames", "fps", "max_pixels")  # settings that head tables must share
SWEPT = ("ablate", "plans")  # settings in which runs of one ablation sweep differ


@dataclass
class Detection:
    """Head tables of one checkpoint. `rows`: measured rows of each task, absent where only its table is known;
    `clusters`: how many pictures, videos or documents, None where unknown."""

    label: str
    tables: dict[str, HeadScores] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    clusters: dict[str, int | None] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)


@dataclass
class Trial:
    """An ablation or a hybrid run: `tasks` as in the record, and its rows. Runs of one ablation sweep are one."""

    label: str
    record: JSON
    tasks: JSON
    rows: list[Row]
    runs: list[str]


@dataclass
class Inputs:
    """Everything, in the order given. `records`: of all runs."""

    detections: list[Detection] = field(default_factory=list)
    ablations: list[Trial] = field(default_factory=list)
    hybrids: list[Trial] = field(default_factory=list)
    speeds: list[SpeedFile] = field(default_factory=list)
    records: list[JSON] = field(default_factory=list)


def read_inputs(runs: Sequence[str]) -> Inputs:
    """UserError, one line, for what is missing, broken, given twice, or of another checkpoint than its name says."""
    inputs, seen = Inputs(), dict[str, str]()
    detections: dict[Any, Detection] = {}
    sweeps: dict[str, Trial] = {}
    for name in runs:
        path = Path(name)
        if path.suffix == ".json" and path.name != RECORD:
            inputs.speeds.append(load_speed(path))
        elif (run_folder(path) / RECORD).is_file():
            folder = run_folder(path)
            record, rows = load_run_and_rows(folder)
            run_id = record["run"]["id"]
            if run_id in seen:
                raise UserError(f"{name}: the run id {run_id} is that of {seen[run_id]} too")
            seen[run_id] = name
            inputs.records.append(record)
            _take(inputs, detections, sweeps, record, rows, name)
        else:
            key, found = _tables_alone(path)
            _join(detections, key, found, name)
    _refuse_two_of_a_name(inputs)
    inputs.detections, inputs.ablations = list(detections.values()), list(sweeps.values())
    for group in (inputs.detections, inputs.ablations, inputs.hybrids):
        _tell_apart(group)
    return inputs


def _take(
    inputs: Inputs,
    detections: dict[Any, Detection],
    sweeps: dict[str, Trial],
    record: JSON,
    rows: list[Row],
    name: str,
) -> None:
    run = record["run"]
    label, settings = place(run["checkpoint"]), run["settings"]
    if run["mode"] == DETECT:
        good = sorted((row for row in rows if row["failure"] is None), key=lambda row: str(row["id"]))
        by_task = {task: [row for row in good if row["task"] == task] for task in record["tasks"]}
        measured = {task: found for task, found in by_task.items() if found}
        found = Detection(
            label,
            tables={task: _table((record.get("ram") or {})["per_task"][task]) for task in measured},
            rows=measured,
            clusters={task: len({row["cluster"] for row in task_rows}) for task, task_rows in measured.items()},
            runs=[run["id"]],
        )
        _join(detections, (run["checkpoint_hash"], *(str(settings.get(key)) for key in MEASURED_BY)), found, name)
        return
    trial = Trial(label, record, dict(record["tasks"]), rows, [run["id"]])
    if run["mode"] == "hybrid":
        inputs.hybrids.append(trial)
    elif run["mode"] == "ablate":
        same = {key: value for key, value in settings.items() if key not in SWEPT}
        key = json.dumps([run["model"], run["checkpoint_hash"], same], sort_keys=True)
        sweeps[key] = _swept(sweeps[key], trial) if key in sweeps else trial


def _table(ram: JSON) -> HeadScores:
    def grid(name: str) -> Floats:
        return np.array(ram[name], dtype=np.float64)  # None becomes NaN

    return HeadScores(grid("ram"), grid("stderr"), grid("chance"), grid("sink_corrected"), ram["n"])


def _tables_alone(path: Path) -> tuple[Any, Detection]:
    """Of a folder with heads.*.tsv, or one table. Its key is the checkpoint's content where heads.json tells it."""
    if path.is_dir():
        files = sorted(path.glob("heads.*.tsv")) or sorted(path.glob("heads.tsv"))
        if not files:
            raise UserError(f"{path}: expected a run ({RECORD}) or head tables (heads.tsv), found neither")
    elif path.suffix == ".tsv":
        files = [path]
    else:
        what = f"a run's folder, a head table (.tsv) or a speed file (.json), got {path.name!r}"
        raise UserError(f"{path}: expected {what}" if path.exists() else f"{path}: there is no such run, table or file")
    side = _sidecar(files[0].parent / SIDECAR)
    tables = {_task_of(file): HeadScores.read_tsv(file) for file in files}
    samples = side.get("samples") or {}
    clusters = {task: len((samples.get(task) or {}).get("clusters") or []) or None for task in tables}
    label = place(str(side.get("checkpoint") or path.resolve().name))
    content = side.get("checkpoint_hash") or str(path)
    frames = side.get("frames") or {}
    settings = (str(side.get(key, frames.get(key))) if key != "frames" else str(frames.get(key)) for key in MEASURED_BY)
    return (content, *settings), Detection(label, tables=tables, clusters=clusters)


def _task_of(file: Path) -> str:
    name = file.name.removeprefix("heads.").removesuffix("tsv").rstrip(".")
    return name or "all tasks"


def _sidecar(path: Path) -> JSON:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict) and all(isinstance(found.get(key, {}), dict) for key in ("samples", "frames")):
            return found
        raise ValueError("not the sidecar of head tables")
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read: {one_line(error)}") from None


def _join(detections: dict[Any, Detection], key: Any, found: Detection, name: str) -> None:
    """Tasks that were measured in several runs of one checkpoint, under one setting, stand together."""
    there = detections.setdefault(key, Detection(found.label))
    if twice := there.tables.keys() & found.tables.keys():
        raise UserError(f"{name}: {min(twice)} of {found.label}: another run given has it too")
    there.tables |= found.tables
    shapes = {(table.n_layers, table.n_heads) for table in there.tables.values()}
    if len(shapes) > 1:
        told = " and ".join(f"{layers} x {heads}" for layers, heads in sorted(shapes))
        raise UserError(f"{name}: head tables of one checkpoint, {found.label}, but of {told} heads")
    there.rows |= found.rows
    there.clusters |= found.clusters
    there.runs += found.runs


def _swept(there: Trial, more: Trial) -> Trial:
    """One sweep of two: the arms of both; those that both have are those of the first."""
    tasks = {}
    for task, body in there.tasks.items():
        also = more.tasks.get(task, {"arms": {}})["arms"]
        tasks[task] = {**body, "arms": {**also, **body["arms"]}}
    known = {(task, arm) for task, body in there.tasks.items() for arm in body["arms"]}
    rows = there.rows + [row for row in more.rows if (row["task"], row["arm"]) not in known]
    return Trial(there.label, there.record, tasks, rows, there.runs + more.runs)


def _refuse_two_of_a_name(inputs: Inputs) -> None:
    """Head maps, trials and times of a checkpoint stand under its name: it must be one checkpoint."""
    given = [(record["run"]["id"], record["run"]) for record in inputs.records]
    given += [(speed.name, speed.run) for speed in inputs.speeds if speed.run.get("checkpoint_hash")]
    contents: dict[Any, tuple[str, str]] = {}
    for name, run in given:
        first, content = contents.setdefault(run.get("checkpoint"), (name, run["checkpoint_hash"]))
        if content != run["checkpoint_hash"]:
            raise UserError(
                f"{first} and {name}: both of checkpoint {place(run['checkpoint'])}, but with other weights "
                f"({content}, {run['checkpoint_hash']}): report them apart"
            )


def _tell_apart(group: Sequence[Detection] | Sequence[Trial]) -> None:
    """Two of one label get their run ids."""
    labels = [one.label for one in group]
    for one in group:
        if labels.count(one.label) > 1 and one.runs:
            one.label = f"{one.label} ({', '.join(one.runs)})"
