"""Rows of a task: from a JSONL file, from a generated data set, or from a Hugging Face data set."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from core_bench import authorfiles
from core_bench.errors import UserError, one_line
from core_bench.taskfile import FunctionRef, YamlMap

# What a function meets in a row that is not as it expected; anything else is a bug and shows its traceback.
ROW_ERRORS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError)
_JSON_SUFFIXES = (".jsonl", ".json")
REVISION = "source_revision"  # column that rows of the hub get: the commit that they are of
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_OPTIONS = ("revision", "data_dir", "data_files", "token", "trust_remote_code")


@dataclass(frozen=True)
class BadRow:
    """A row that cannot even be read, with the reason."""

    reason: str


Doc = dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """`docs` in file order; relative media paths in them start at `base`. `where` names the source in messages.

    `store` holds media that came inside the data set: their names there do not depend on the machine.
    """

    docs: list[Doc | BadRow]
    base: Path
    where: str
    store: Path | None = None

    def name_of(self, path: str) -> str:
        """A medium's path as the row writes it, or its name in the store."""
        return Path(path).name if self.store is not None and Path(path).parent == self.store else path


def source_kind(keys: YamlMap, core: YamlMap) -> str:
    """generated, local (files on this machine) or hub."""
    if core.get("generator"):
        return "generated"
    path = str(keys["dataset_path"])
    is_local = path == "json" or path.endswith(_JSON_SUFFIXES) or _beside(keys, path).exists()
    return "local" if is_local else "hub"


def read_rows(keys: YamlMap, core: YamlMap, split: str, data_dir: str | None, limit: int | None = None) -> Rows:
    """The first `limit` rows of one split. UserError for a source that is missing or unreadable."""
    if core.get("generator"):
        from core_bench.bundled.generate import ensure

        folder = ensure(core["generator"], split, Path(data_dir) if data_dir else None)
        where = f"generated {core['generator']}, split {split}"
        names = _data_files(keys, split.partition("@")[0]) if "dataset_kwargs" in keys else ["annotations.jsonl"]
        rows = Rows(_read_json([folder / name for name in names]), folder, where)
    elif core.get("files"):
        found = authorfiles.find(str(keys["task"]), core, split, data_dir)
        if found is None:
            rows = _hub_or_advice(keys, core, split, limit)
        else:
            store = _media_store()
            rows = Rows(_read_files(found.files, store, limit), found.base, f"{found.files[0]}", store)
    else:
        path = str(keys["dataset_path"])
        files = _json_files(keys, path, split)
        if files is None:
            return _from_hub(keys, path, split, Path(data_dir) if data_dir else None, limit)
        key = "dataset_kwargs" if path == "json" else "dataset_path"
        rows = Rows(
            _read_json(files, f"{keys.place(key)}: {key}"),
            Path(data_dir) if data_dir else files[0].parent,
            f"{files[0]}",
        )
    docs = rows.docs
    if keys.get("process_docs") is not None:
        good = _processed(keys["process_docs"], [doc for doc in docs if not isinstance(doc, BadRow)], rows.where)
        docs = [*(doc for doc in docs if isinstance(doc, BadRow)), *good]
    return replace(rows, docs=docs[:limit])


def _processed(function: FunctionRef, docs: list[Doc], where: str) -> list[Doc]:
    try:
        found: list[Doc] = function.resolve()(docs)
    except ROW_ERRORS as error:
        raise UserError(f"{where}: process_docs: {function.name}: {type(error).__name__}: {error}") from error
    return found


def _beside(keys: YamlMap, path: str, key: str = "dataset_path") -> Path:
    """A path of the YAML file: relative ones start at the file where the key stands."""
    return keys.place(key).path.parent / Path(path).expanduser()


def _json_files(keys: YamlMap, path: str, split: str) -> list[Path] | None:
    if path.endswith(_JSON_SUFFIXES):
        return [_beside(keys, path)]
    if path != "json":
        return None
    return [_beside(keys, name, "dataset_kwargs") for name in _data_files(keys, split)]


def _data_files(keys: YamlMap, split: str) -> list[str]:
    """The names under `dataset_kwargs.data_files`, of this split where they are given by split."""
    place = keys.place("dataset_kwargs" if "dataset_kwargs" in keys else "dataset_path")
    data_files = (keys.get("dataset_kwargs") or {}).get("data_files")
    if isinstance(data_files, dict):
        if split not in data_files:
            raise UserError(f"{place}: split {split!r}: expected one of {', '.join(data_files)} (data_files)")
        data_files = data_files[split]
    names: list[Any] = data_files if isinstance(data_files, list) else [data_files]
    if not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"{place}: dataset_kwargs.data_files: expected file names, got {data_files!r}")
    return names


def _read_json(files: list[Path], argument: str = "dataset_path") -> list[Doc | BadRow]:
    """Rows of JSON and JSONL files. `argument`: what names them, for messages."""
    docs: list[Doc | BadRow] = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise UserError(f"{argument}: expected a readable file, got {file}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise UserError(f"{argument}: expected UTF-8 text, got {file}: byte {error.start}") from None
        docs += _json_array(text, file, argument) if text.lstrip().startswith("[") else list(_json_lines(text, file))
    return docs


def _read_files(files: list[Path], store: Path, limit: int | None) -> list[Doc | BadRow]:
    """JSON and JSONL files whole; of Parquet files, whose cells may hold media, no more rows than `limit`. The column
    `source_file` names the file that a row is of."""
    docs: list[Doc | BadRow] = []
    for file in files:
        found: Iterable[Doc | BadRow] = (
            _read_json([file])
            if file.suffix != ".parquet"
            else itertools.islice(_parquet_rows(file, store), None if limit is None else max(0, limit - len(docs)))
        )
        before = len(docs)
        docs += [doc if isinstance(doc, BadRow) else {**doc, "source_file": file.name} for doc in found]
        if len(docs) == before and limit is None:
            raise UserError(f"dataset_path: no rows in {file}")
    return docs


def _parquet_rows(file: Path, store: Path) -> Iterator[Doc]:
    for rows in _parquet_batches(file):
        for row in rows:
            yield {key: _stored(cell, store) for key, cell in row.items()}


def _parquet_batches(file: Path) -> Iterator[list[Doc]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=64):
                yield batch.to_pylist()
    except UnicodeDecodeError as error:
        raise UserError(f"dataset_path: expected UTF-8 text, got {file}: byte {error.start} of a cell") from None
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"dataset_path: expected a Parquet file, got {file}: {one_line(error)}") from None


def _hub_or_advice(keys: YamlMap, core: YamlMap, split: str, limit: int | None) -> Rows:
    """The hub's table, where it holds the media too; else, and where it cannot be had, what to get."""
    name = str(keys["task"])
    if not core.get("table_has_media"):
        raise authorfiles.absent(name, core, "its files are needed here")
    try:
        return _from_hub(keys, str(keys["dataset_path"]), split, None, limit, processed_later=True)
    except UserError as error:
        raise authorfiles.absent(name, core, str(error)) from error


def _json_array(text: str, file: Path, argument: str) -> list[Doc | BadRow]:
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise UserError(f"{argument}: expected a JSON array of rows, got {file}: {error}") from None
    return [_row(doc, f"{file}, row {number}") for number, doc in enumerate(found, start=1)]


def _json_lines(text: str, file: Path) -> Iterator[Doc | BadRow]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield _row(json.loads(line, parse_constant=_no_constant), f"{file}:{number}")
            except ValueError as error:
                yield BadRow(f"{file}:{number}: not JSON: {error}")


def _row(doc: Any, where: str) -> Doc | BadRow:
    return doc if isinstance(doc, dict) else BadRow(f"{where}: expected a JSON object, got {type(doc).__name__}")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _from_hub(
    keys: YamlMap, path: str, split: str, data_dir: Path | None, limit: int | None, *, processed_later: bool = False
) -> Rows:
    import datasets

    options = dict(keys.get("dataset_kwargs") or {})
    place = keys.place("dataset_kwargs") if options else keys.place("dataset_path")
    unknown = [name for name in options if name not in _HUB_OPTIONS]
    if unknown:
        raise UserError(f"{place}: dataset_kwargs: expected {', '.join(_HUB_OPTIONS[:-1])}, got {unknown[0]!r}")
    if options.pop("trust_remote_code", False):
        raise UserError(f"{place}: dataset_kwargs.trust_remote_code: code of a data set is never run")
    folder = _beside(keys, path)
    name = str(folder) if folder.exists() else path
    with _quiet_unless_terminal():
        try:
            table = datasets.load_dataset(name, keys.get("dataset_name"), split=split, **options)
        except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
            reason = one_line(error)[:300]
            raise UserError(f"{place}: cannot load the data set {path!r}, split {split!r}: {reason}") from error
        if keys.get("process_docs") is not None and not processed_later:
            table = keys["process_docs"].resolve()(table)
        table = _undecoded(table.select(range(min(len(table), limit or len(table)))))
        store = _media_store()
        commit = _commit_of(table)
        told = {} if commit is None else {REVISION: commit}
        docs: list[Doc | BadRow] = [
            {**{key: _stored(cell, store) for key, cell in row.items()}, **told} for row in table
        ]
    base = data_dir or (folder if folder.is_dir() else Path())
    return Rows(docs, base, f"{path}, split {split}", store)


def _commit_of(table: Any) -> str | None:
    """The hub's commit that a table was read from, after which the library names the folder of its cache; None for a
    local folder."""
    folders = {part for file in table.cache_files for part in Path(file["filename"]).parts}
    return next((name for name in sorted(folders) if _COMMIT.fullmatch(name)), None)


@contextlib.contextmanager
def _quiet_unless_terminal() -> Iterator[None]:
    """Without the library's progress bars where stderr is no terminal."""
    import datasets

    hide = not sys.stderr.isatty() and datasets.are_progress_bars_disabled() is False
    if hide:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if hide:
            datasets.enable_progress_bars()


def _undecoded(table: Any) -> Any:
    """The table with media columns as {bytes, path}: the files' own bytes, not decoded arrays."""
    import datasets

    kinds = (datasets.Image, datasets.Video, datasets.Audio)
    for column, feature in table.features.items():
        inner = getattr(feature, "feature", None)
        if isinstance(feature, kinds):
            table = table.cast_column(column, type(feature)(decode=False))
        elif isinstance(inner, kinds):
            table = table.cast_column(column, datasets.List(type(inner)(decode=False)))
    return table


def _media_store() -> Path:
    from core_bench.headtables import cache_dir

    return (cache_dir() / "media").resolve()


def _stored(cell: Any, store: Path) -> Any:
    """A {bytes, path} cell as the path of a file with these bytes; any other cell as it is."""
    if isinstance(cell, list):
        return [_stored(item, store) for item in cell]
    if not isinstance(cell, dict) or set(cell) != {"bytes", "path"}:
        return cell
    content, path = cell["bytes"], cell["path"]
    if content is None:
        return path
    file = store / (hashlib.sha256(content).hexdigest()[:32] + Path(path or "").suffix)
    if not file.exists():
        store.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f"{file.name}.{os.getpid()}.tmp")
        draft.write_bytes(content)
        draft.replace(file)  # whole or absent, also when two runs write it at once
    return str(file)
