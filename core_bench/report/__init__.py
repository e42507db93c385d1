"""`python -m core_bench report`: figures, the numbers behind them, and one page that holds all, from finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from core_bench.errors import UserError


def run_report(runs: Sequence[str], out: str) -> int:
    """Write `out`/report.html and `out`/figures/ (PNG, SVG and CSV of each figure) and return exit code 0.

    `runs`: folders of runs, folders with head tables alone, head tables, and JSON files of `speed`. The same runs give
    the same bytes. UserError names a run that is not valid or that cannot stand beside another.
    """
    if find_spec("matplotlib") is None:
        raise UserError("report: needs matplotlib: pip install 'core-bench[plots]'")
    from core_bench.report.build import write_report

    for path in write_report(runs, out):
        print(path)
    return 0
