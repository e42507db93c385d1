"""Finding a head table that fits a checkpoint, and writing one: heads.tsv, heads.<task>.tsv and heads.json beside them.

heads.json (the sidecar) says where the scores come from: checkpoint, checkpoint_hash, revision, tasks, split, samples
({task: {"ids": [...], "clusters": [...]}}), media (content marks of their files), query, overlap,
limit, frames, versions, seed, command.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core_bench.errors import UserError
from core_bench.heads import HeadScores, HeadShape
from core_bench.runfolder import write_json

TABLE, SIDECAR = "heads.tsv", "heads.json"
CACHE_VARIABLE = "CORE_BENCH_CACHE"
SIDECAR_KEYS = (
    "checkpoint", "checkpoint_hash", "revision", "tasks", "split", "samples", "media",
    "query", "overlap", "limit", "frames", "versions", "seed", "command",
)  # fmt: skip
BUNDLED = Path(__file__).resolve().parent / "bundled"


@dataclass(frozen=True, kw_only=True)
class HeadMeta:
    """Where a head table came from: `where` is its path, `ids` and `clusters` are (task, name) pairs of the samples it
    was found on. `note` is a warning to print and to record; None if all is well."""

    where: str
    checkpoint_hash: str | None
    tasks: tuple[str, ...]
    ids: frozenset[tuple[str, str]]
    clusters: frozenset[tuple[str, str]]
    media: frozenset[str] = frozenset()
    note: str | None = None

    def overlap(self, samples: Iterable[tuple[str, str, str, Iterable[str]]]) -> list[tuple[str, str]]:
        """Those of `samples` (task, id, cluster, content marks of their media) that share an image, video or document
        with the samples the heads were found on, as sorted (task, id). Content counts across tasks and file names;
        ids and cluster names count within a task."""
        shared = {
            (task, name)
            for task, name, cluster, marks in samples
            if (task, name) in self.ids or (task, cluster) in self.clusters or not self.media.isdisjoint(marks)
        }
        return sorted(shared)

    def to_record(self) -> dict[str, Any]:
        """As `run.heads` of a record holds it: it says which table it was, without this machine's folders."""
        path = Path(self.where).resolve()
        where = path.name
        for name, root in (("bundled", BUNDLED), ("cache", cache_dir()), ("", Path.cwd())):
            if path.is_relative_to(root.resolve()):
                where = ":".join(part for part in (name, path.relative_to(root.resolve()).as_posix()) if part)
                break
        return {"where": where, "checkpoint_hash": self.checkpoint_hash, "note": self.note}


def cache_dir() -> Path:
    """The user's cache folder: $CORE_BENCH_CACHE, else ~/.cache/core_bench. It need not exist."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "core_bench"


def cache_folder(checkpoint_hash: str, query: str, overlap: float) -> Path:
    """Where the head tables of one checkpoint content, found under one query rule and overlap, are cached."""
    return cache_dir() / "heads" / f"{checkpoint_hash.replace(':', '-')}-{query}-{overlap:g}"


def resolve(
    spec: str,
    *,
    checkpoint_hash: str,
    shape: HeadShape,
    query: str = "question",
    overlap: float = 0.0,
    search: Sequence[Path] | None = None,
) -> tuple[HeadScores, HeadMeta] | None:
    """The head table that `spec` (--heads) means.

    "auto": the first whose sidecar names this checkpoint content, query rule and overlap among the bundled tables, the
    user's cache and the folders in `search` (earlier runs); None if there is none, and heads must be detected first.
    Otherwise a table, or a folder that holds heads.tsv. A table of another checkpoint is taken if the shape is the
    same, with a note. Raises UserError for a missing or damaged table and for one of another shape.
    """
    if spec != "auto":
        return _read(Path(spec), checkpoint_hash, shape)
    bundled = sorted(path.parent for path in BUNDLED.glob(f"*/{SIDECAR}"))
    # A table found on a few samples (--limit) is taken only when it is named.
    wanted = {"checkpoint_hash": checkpoint_hash, "query": query, "overlap": overlap, "limit": None}
    for folder in [*bundled, cache_folder(checkpoint_hash, query, overlap), *(search or [])]:
        if not (folder / SIDECAR).is_file():
            continue
        sidecar = _sidecar(folder / SIDECAR)
        if all(sidecar.get(key) == value for key, value in wanted.items()):
            return _read(folder / TABLE, checkpoint_hash, shape)
    return None


def write_tables(
    folder: str | os.PathLike[str], per_task: Mapping[str, HeadScores], pooled: HeadScores, sidecar: dict[str, Any]
) -> None:
    """Write all tables and the sidecar. The sidecar comes last: where it stands, the tables beside it are its own.

    Raises ValueError if the sidecar lacks a key of SIDECAR_KEYS.
    """
    if missing := [key for key in SIDECAR_KEYS if key not in sidecar]:
        raise ValueError(f"{SIDECAR}: no {missing[0]!r}")
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / SIDECAR).unlink(missing_ok=True)
        for task, scores in per_task.items():
            scores.write_tsv(target / f"heads.{task}.tsv")
        pooled.write_tsv(target / TABLE)
    except OSError as error:
        raise UserError(f"{target}: head tables cannot be written: {error.strerror}") from None
    write_json(target / SIDECAR, sidecar)


def _read(path: Path, checkpoint_hash: str, shape: HeadShape) -> tuple[HeadScores, HeadMeta]:
    table = path / TABLE if path.is_dir() else path
    if not table.is_file():
        raise UserError(f"--heads {path}: expected a head table or a folder with {TABLE}, found none")
    scores = HeadScores.read_tsv(table, shape)
    beside = table.parent / SIDECAR
    if not beside.is_file():
        note = f"{table}: no {SIDECAR} beside it, so an overlap with the samples it was found on cannot be seen"
        return scores, HeadMeta(
            where=str(table), checkpoint_hash=None, tasks=(), ids=frozenset(), clusters=frozenset(), note=note
        )
    sidecar = _sidecar(beside)
    samples = sidecar["samples"]
    own_task = table.name.removeprefix("heads.").removesuffix(".tsv")
    if own_task in samples:
        samples = {own_task: samples[own_task]}
    found_on = sidecar["checkpoint_hash"]
    other = None if found_on == checkpoint_hash else f"{table}: heads of another checkpoint, {sidecar['checkpoint']}"
    return scores, HeadMeta(
        where=str(table),
        checkpoint_hash=found_on,
        tasks=tuple(samples),
        ids=_pairs(samples, "ids"),
        clusters=_pairs(samples, "clusters"),
        media=frozenset(sidecar["media"]),
        note=other,
    )


def _pairs(samples: dict[str, dict[str, list[str]]], name: str) -> frozenset[tuple[str, str]]:
    return frozenset((task, value) for task, lists in samples.items() for value in lists[name])


def _sidecar(path: Path) -> dict[str, Any]:
    """The sidecar with every key that is used here checked."""
    try:
        sidecar = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(sidecar, dict):
            raise ValueError("expected an object")
        sidecar.setdefault("media", [])  # tables of others may not say
        for key, kind in (("checkpoint", str), ("checkpoint_hash", str), ("samples", dict), ("media", list)):
            if not isinstance(sidecar.get(key), kind):
                raise ValueError(f"{key}: expected {kind.__name__}, got {sidecar.get(key)!r:.60}")
        for task, lists in sidecar["samples"].items():
            for name in ("ids", "clusters"):
                values = lists.get(name) if isinstance(lists, dict) else None
                if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
                    raise ValueError(f"samples.{task}.{name}: expected a list of strings")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path}: not a head table's sidecar: {error}") from None
    return sidecar
