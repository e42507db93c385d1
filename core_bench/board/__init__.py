"""The leaderboard: checking and adding runs, and building its pages. It needs no source tree, only the data folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from core_bench.errors import UserError


def add(outs: Sequence[str], directory: str) -> int:
    """Copy finished runs to `directory`/results/<run id>/ and return exit code 0.

    Each of `outs` is a run's folder. All are checked before anything is copied: the record against its schema and
    against the samples. What results/ held under a run's id goes to `directory`/history/<run id>/. UserError names the
    file and the field that is wrong.
    """
    from core_bench.board.runs import add_runs

    for run_id, what in add_runs(outs, directory):
        print(f"{run_id}: {what}")
    return 0


def check(outs: Sequence[str]) -> int:
    """Print of each run whether `add` would take it, and if not why, in one line; 0 if it would take all, else 2.

    Each of `outs` is a run's folder or its record.json. Nothing is written.
    """
    from core_bench.board.runs import load_run, run_folder

    code = 0
    for out in outs:
        try:
            print(f"{out}: ok, {load_run(run_folder(out))['run']['id']}")
        except UserError as error:
            print(f"core_bench: {error}", file=sys.stderr)
            code = 2
    return code


def build(directory: str) -> int:
    """Write LEADERBOARD.md and index.html of `directory` from its results/ and return exit code 0.

    The same results give the same bytes. UserError names the file and the field of a run that is not valid.
    """
    from core_bench.board.pages import write_pages

    for path in write_pages(directory):
        print(path)
    return 0
