"""A data set's own files, as its authors ship them, in a folder of the user's (`--data-dir`).

The task's YAML says which (`files`) and what to do where they are absent (`get`), so that nobody has to search for it:
one line with what to get, from where, into which folder, how large, under which licence.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from core_bench.errors import UserError
from core_bench.taskfile import YamlMap

GET_KEYS = ("what", "from", "folder", "size", "licence")


@dataclass(frozen=True)
class Found:
    """Files of one split in the order in which they are read, and the folder at which paths in them start."""

    base: Path
    files: list[Path]


def find(name: str, core: YamlMap, split: str, data_dir: str | None) -> Found | None:
    """The files of a split of task `name`; None without `data_dir`. UserError for an unknown split or absent files.

    They lie in the folder that `get.folder` names inside `data_dir`, or in `data_dir` itself. An entry of `files` is a
    name or a pattern, or a list of names of which the first that is there counts.
    """
    splits = core["files"]
    if split not in splits:
        raise UserError(f"{core.place('files')}: split {split!r}: expected one of {', '.join(splits)} (files)")
    if data_dir is None:
        return None
    root = Path(data_dir).expanduser()
    bases = (root / str(core["get"]["folder"]), root)
    for base in bases:
        entries = [_entry(base, entry) for entry in splits[split]]
        if all(entries):
            return Found(base, [file for entry in entries for file in entry])
    first = next(entry for entry in splits[split] if not _entry(bases[0], entry) and not _entry(root, entry))
    wanted = " or ".join(first) if isinstance(first, list) else first
    raise absent(name, core, f"no {wanted} in {bases[0]} or {root}")


def absent(name: str, core: YamlMap, what: str) -> UserError:
    """The line that says what is not there and how to get it."""
    get = core["get"]
    return UserError(
        f"{name}: {what}: get {get['what']} from {get['from']} ({get['size']}; {get['licence']}), unpack into a folder "
        f"{get['folder']} and name the folder it is in: --data-dir DIR"
    )


def _entry(base: Path, entry: str | list[str]) -> list[Path]:
    for pattern in [entry] if isinstance(entry, str) else entry:
        found = sorted(path for path in base.glob(pattern) if path.is_file())
        if found:
            return found
    return []
