"""LEADERBOARD.md and index.html, from the records under results/. The same records give the same bytes."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path
from typing import Any

from core_bench.board.rows import Section, partial_runs, sections
from core_bench.board.runs import RESULTS, earlier, load_run
from core_bench.board.web import EMPTY, INTRO, PARTIAL, TITLE, Run, page
from core_bench.errors import UserError
from core_bench.runfolder import write_text

JSON = dict[str, Any]


def write_pages(directory: str | os.PathLike[str]) -> list[Path]:
    """Write both pages and return their paths. UserError names a run that is not valid."""
    folder = Path(directory)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--dir {folder}: expected a folder, got a file")
    records = []
    for path in sorted((folder / RESULTS).glob("[!.]*/")):
        record = load_run(path)
        if record["run"]["id"] != path.name:
            raise UserError(f"{path}: expected the run {path.name}, but its record has run.id {record['run']['id']}")
        records.append(record)
    tables, partial = sections(records), partial_runs(records)
    runs = [Run(record, *_files(folder, record["run"]["id"])) for record in records]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--dir {folder}: cannot be written: {error.strerror}") from None
    pages = {"LEADERBOARD.md": _markdown(tables, partial), "index.html": page(tables, partial, runs)}
    for name, text in pages.items():
        write_text(folder / name, text)
    return [folder / name for name in pages]


def _files(folder: Path, run_id: str) -> tuple[list[str], list[str]]:
    """Of a run, what lies in its folder and the folders of those that it superseded, relative to the pages."""
    files = sorted(path.relative_to(folder).as_posix() for path in (folder / RESULTS / run_id).iterdir())
    return files, [path.relative_to(folder).as_posix() for path in earlier(folder, run_id)]


def _markdown(tables: list[Section], partial: list[tuple[str, str]]) -> str:
    lines = [f"# {TITLE}", "", INTRO]
    for table in tables:
        lines += ["", f"## {table.title}", "", table.note, ""]
        if not table.rows:
            lines.append(EMPTY)
            continue
        lines += [_md_row(table.header), _md_row(["---"] * len(table.header))]
        ends = [_md_link(row[-1]) if table.linked else _md(row[-1]) for row in table.rows]
        lines += [_md_row([*map(_md, row[:-1]), end]) for row, end in zip(table.rows, ends, strict=True)]
    if partial:
        lines += ["", f"## {PARTIAL}", "", *(f"- {_md_link(run_id)}: {_md(about)}" for run_id, about in partial)]
    return "\n".join(lines) + "\n"


def _md_row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _md(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no link, no HTML, no end of the cell."""
    return re.sub(r"[\\`*_|~]|\](?=[(\[:])", r"\\\g<0>", html.escape(" ".join(text.split()), quote=False))


def _md_link(run_id: str) -> str:
    return f"[{_md(run_id)}]({RESULTS}/{run_id}/)"
