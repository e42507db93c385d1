"""The folder of one run: locked while it runs, bound to its settings, resumable after a kill at any moment.

settings.json   what the results depend on; written first
samples.jsonl   one line a sample and arm, appended whole
samples.1.jsonl what another process of the same run has done and the leader has not taken over yet
record.json     the summary; written last
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from core_bench.board.schema import check_record, check_row
from core_bench.errors import UserError
from core_bench.team import Team

SETTINGS, SAMPLES, RECORD, LOCK = "settings.json", "samples.jsonl", "record.json", ".lock"
OTHERS = "samples.[0-9]*.jsonl"
Row = dict[str, Any]
RowKey = tuple[str, str, str, int | None]


def row_key(row: Row) -> RowKey:
    """(task, id, arm, draw): what a run does once."""
    return row["task"], row["id"], row["arm"], row.get("draw")


class RunFolder:
    """An open run folder. Use `RunFolder.open` in a `with` statement; `rows` and `done` grow with `append`."""

    def __init__(self, out: Path, lock: int | None, samples: int, rows: list[Row], team: Team) -> None:
        self.out = out
        self.team = team
        self.rows = rows
        self.done: set[RowKey] = {row_key(row) for row in rows}
        self._lock = lock
        self._samples = samples

    @classmethod
    def open(cls, out: str | os.PathLike[str], settings: dict[str, Any], team: Team | None = None) -> RunFolder:
        """Create `out` or resume the run in it; in a `team` every process does so, and the leader holds the lock.

        Raises UserError if another run works there, if it was made with other settings (the message lists them),
        if it holds something else, or if a line of samples.jsonl is damaged. A last line without an end, as a kill
        leaves it, is dropped.
        """
        folder, team = Path(out), team or Team()
        return team.leader_first(
            lambda: cls._take_over(folder, settings, team) if team.leads else cls._join(folder, team)
        )

    @classmethod
    def _join(cls, folder: Path, team: Team) -> RunFolder:
        """The folder as the leader has just opened it, with a file of this process's own."""
        rows = load_rows(folder / SAMPLES)
        try:
            samples = os.open(_own(folder, team), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"--out {folder}: cannot be written: {error.strerror}") from None
        return cls(folder, None, samples, rows, team)

    @classmethod
    def _take_over(cls, folder: Path, settings: dict[str, Any], team: Team) -> RunFolder:
        """The folder, locked, with all that any process of an earlier start has left in it."""
        try:
            _refuse_foreign(folder)
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"--out {folder}: cannot be written: {error.strerror}") from None
        try:
            _take(lock, folder)
            _refuse_foreign(folder)  # again, now that nobody else can be writing
            _bind_settings(folder, settings)
            rows = load_rows(folder / SAMPLES, cut=True)
            samples = os.open(folder / SAMPLES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except BaseException:
            os.close(lock)
            raise
        taken = cls(folder, lock, samples, rows, team)
        try:
            taken._absorb()
            for path in folder.glob(OTHERS):
                path.unlink()
        except BaseException:
            taken.close()
            raise
        return taken

    def _absorb(self) -> None:
        """Take over the rows of the other processes' files. Killed in between, it finds them in both, and goes on."""
        for path in sorted(self.out.glob(OTHERS)):
            new = [row for row in load_rows(path, cut=True) if row_key(row) not in self.done]
            if new:
                self.append(*new)
            os.truncate(path, 0)

    def gather(self) -> None:
        """Wait for the whole team; afterwards `rows` and `done` hold what all its processes have done."""
        if self.team.size > 1:
            self.team.wait()
            self.team.lead(self._absorb)
            self.rows = load_rows(self.out / SAMPLES)
            self.done = {row_key(row) for row in self.rows}

    def arrange(self, place: Callable[[Row], Any]) -> None:
        """Put the rows of samples.jsonl in the order of `place`, in which one process would have written them."""
        arranged = sorted(self.rows, key=place)
        if arranged != self.rows:
            write_text(self.out / SAMPLES, "".join(_line(row) for row in arranged))
            os.close(self._samples)
            self._samples = os.open(self.out / SAMPLES, os.O_WRONLY | os.O_APPEND)
            self.rows = arranged

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the folder back. The lock goes with the process too, however that ends."""
        if self._samples < 0:
            return
        handed_over = os.fstat(self._samples).st_size == 0
        os.close(self._samples)
        self._samples = -1
        if self._lock is not None:
            os.close(self._lock)
        elif handed_over:
            _own(self.out, self.team).unlink(missing_ok=True)

    def append(self, *rows: Row) -> None:
        """Add rows whole, in one write, so that a kill does not part rows which were measured together.

        Raises ValueError for a row that breaks the schema, holds NaN or was there before.
        """
        keys = [row_key(row) for row in rows]
        for key in keys:
            if key in self.done or keys.count(key) > 1:
                raise ValueError(f"{self.out / SAMPLES}: {key} is there already")
        for row in rows:
            check_row(row)
        lines = [_line(row) for row in rows]
        data = "".join(lines).encode()
        # No fsync: a killed process loses nothing that was written, and after a power cut a torn tail is measured anew.
        end = os.fstat(self._samples).st_size
        try:
            written = os.write(self._samples, data)
        except OSError as error:
            raise UserError(f"--out {self.out}: cannot write {SAMPLES}: {error.strerror}") from None
        if written != len(data):
            os.ftruncate(self._samples, end)
            raise UserError(f"--out {self.out}: cannot write {SAMPLES}: the disk is full")
        self.rows.extend(json.loads(line) for line in lines)
        self.done.update(keys)

    @property
    def record(self) -> dict[str, Any] | None:
        """The record, or None before the first `write_record`."""
        path = self.out / RECORD
        return load_record(path) if path.exists() else None

    @property
    def finished(self) -> bool:
        record = self.record
        return record is not None and bool(record["run"]["complete"])

    def write_record(self, record: dict[str, Any]) -> None:
        """Check `record` against the schema and replace record.json by it. Raises ValueError naming a wrong field."""
        check_record(record)
        os.fsync(self._samples)  # a record must not outlive the rows it sums up
        write_json(self.out / RECORD, record)


def _own(folder: Path, team: Team) -> Path:
    """Where a process that does not lead writes its rows."""
    return folder / f"samples.{team.rank}.jsonl"


def _line(row: Row) -> str:
    return json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n"


def load_record(path: Path) -> dict[str, Any]:
    """Read and check a record.json. UserError names file and field."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
        check_record(record)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path}: not a valid record: {error}") from None
    return record


def load_rows(path: Path, *, cut: bool = False) -> list[Row]:
    """Read and check a samples.jsonl; `cut` truncates the file behind its last whole line. No file, no rows.

    UserError names file and line of a row that is damaged, breaks the schema or stands there twice.
    """
    try:
        data = path.read_bytes() if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if cut and len(whole) != len(data):
            os.truncate(path, len(whole))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    rows: list[Row] = []
    seen: set[RowKey] = set()
    for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line, parse_constant=_no_constant)
            check_row(row)
        except ValueError as error:
            raise UserError(f"{path}:{number}: damaged row: {error}") from None
        if row_key(row) in seen:
            raise UserError(f"{path}:{number}: {row_key(row)} stands there twice")
        seen.add(row_key(row))
        rows.append(row)
    return rows


def write_json(path: Path, value: Any) -> None:
    """Write JSON (no NaN) whole or not at all, and durably."""
    write_text(path, json.dumps(value, allow_nan=False, ensure_ascii=False, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a text file (UTF-8, \\n) whole or not at all, and durably. UserError if it cannot be written."""
    partial = path.with_name(f".{path.name}.tmp")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None


def _take(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"--out {folder}: another process is working there; wait for it or choose another") from None
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be locked: {error.strerror}") from None


def check_out(out: str | os.PathLike[str]) -> None:
    """Raise UserError where `RunFolder.open` would for the folder itself; leaves everything as it is.

    For before a checkpoint is loaded, which may take minutes.
    """
    folder = Path(out)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        _refuse_foreign(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / LOCK).exists():
            lock = os.open(folder / LOCK, os.O_RDWR)
            try:
                _take(lock, folder)
            finally:
                os.close(lock)
        elif not os.access(folder, os.W_OK | os.X_OK):
            raise UserError(f"--out {folder}: cannot be written: Permission denied")
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written: {error.strerror}") from None
    with contextlib.suppress(OSError):  # another run may have begun beside it
        for path in made:
            path.rmdir()


def _refuse_foreign(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder}: expected a folder, got a file")
    if not folder.exists() or (folder / SETTINGS).exists():
        return
    foreign = sorted(entry.name for entry in folder.iterdir() if entry.name not in (LOCK, f".{SETTINGS}.tmp"))
    if foreign:
        raise UserError(
            f"--out {folder}: expected a new folder or that of a run, but it holds {foreign[0]} and no {SETTINGS}"
        )


def _bind_settings(folder: Path, settings: dict[str, Any]) -> None:
    path = folder / SETTINGS
    now = json.loads(json.dumps(settings, allow_nan=False))
    if not path.exists():
        write_json(path, now)
        return
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    before, after = _flat(there), _flat(now)
    differing = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    if differing:
        listed = "; ".join(
            f"{key}: {before.get(key, 'unset')} there, {after.get(key, 'unset')} now" for key in differing
        )
        raise UserError(f"--out {folder}: holds a run with other settings ({listed}); choose another --out")


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    """{"a": {"b": [1]}} -> {"a.b": "[1]"}: values as JSON, so that 1 and true differ."""
    if not isinstance(value, dict) or not value:
        return {prefix: json.dumps(value, sort_keys=True)}
    parts = (_flat(inner, f"{prefix}.{key}" if prefix else str(key)) for key, inner in value.items())
    return {key: text for part in parts for key, text in part.items()}


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
