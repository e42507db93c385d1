"""The leaderboard: checking and adding runs, and building its pages. It needs no source tree, only the data folder."""

from __future__ import annotations

from collections.abc import Sequence


def add(outs: Sequence[str], directory: str) -> int:
    """Copy finished runs to `directory`/results/<run id>/ and return exit code 0.

    Each of `outs` is a run's folder. All are checked before anything is copied: the record against its schema and
    against the samples. UserError names the file and the field that is wrong, or a run id that other content has.
    """
    from core_bench.board.runs import add_runs

    for run_id, new in add_runs(outs, directory):
        print(f"{run_id}: {'added' if new else 'was there already'}")
    return 0


def build(directory: str) -> int:
    """Write LEADERBOARD.md and index.html of `directory` from its results/ and return exit code 0.

    The same results give the same bytes. UserError names the file and the field of a run that is not valid.
    """
    from core_bench.board.pages import write_pages

    for path in write_pages(directory):
        print(path)
    return 0
