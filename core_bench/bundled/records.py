"""Published records of the bundled models: finding them on a leaderboard, and putting newly measured ones in place.

`python -m core_bench.bundled.records RUNS... --dir leaderboard` takes folders as scripts/demo.sh leaves them, one of
each family: detect/, ablate/, hybrid/ and speed.json. All are checked before anything is changed. Unlike `leaderboard
add` it keeps no history: the bundled models are retrained with the suite, and git has the older records.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core_bench.board.pages import write_pages
from core_bench.board.runs import HISTORY, RESULTS, add_runs, load_run
from core_bench.checkpoints import manifest
from core_bench.errors import UserError
from core_bench.report.speedfile import load_speed
from core_bench.runfolder import RECORD, load_record
from core_bench.tables import is_partial

MODES = ("detect", "ablate", "hybrid")
SPEED, ATTENTION = "speed", "attention"  # folder of the board, and what is of no family in it


@dataclass(frozen=True)
class Measured:
    """What was measured of one family: its three runs by mode, in the order of MODES, and the file of its prefill."""

    family: str
    runs: dict[str, Path]
    prefill: Path


def published(board: Path) -> dict[str, Measured]:
    """Family -> what the board holds of its bundled checkpoint, qwen3vl first; `prefill` need not be there.

    UserError where a family has not one run of each mode.
    """
    found: dict[str, dict[str, list[Path]]] = {}
    for folder, record in _of_bundled(board):
        found.setdefault(record["run"]["model"], {}).setdefault(record["run"]["mode"], []).append(folder)
    for family, runs in found.items():
        for mode in MODES:
            if (n := len(runs.get(mode, []))) != 1:
                raise UserError(f"{board}: expected one {mode} run of bundled:{family}, got {n}")
    return {
        family: Measured(family, {mode: found[family][mode][0] for mode in MODES}, board / SPEED / f"{family}.json")
        for family in sorted(found, reverse=True)
    }


def replace(outs: Sequence[Path], attention: Path | None, board: Path) -> list[str]:
    """Put the runs and times in `outs`, and the times of one layer's attention, in place of those of the same families.

    Returns a line a run. UserError, and no change, where a run is not valid, not finished or not of a bundled
    checkpoint as it now is, where a run with a limit would replace one without, and where the times are of another
    checkpoint.
    """
    measured = [_measured(out) for out in outs]
    families = [one.family for one in measured]
    if len(set(families)) < len(families):
        raise UserError(f"expected runs of one family each, got {', '.join(families)}")
    files = {one.family: one.prefill for one in measured}
    if attention is not None:
        load_speed(attention)
        files[ATTENTION] = attention
    old = {path: record for path, record in _of_bundled(board) if record["run"]["model"] in families}
    limited = any(is_partial(load_record(path / RECORD)) for one in measured for path in one.runs.values())
    whole = [path.name for path, record in old.items() if not is_partial(record)]
    if limited and whole:
        raise UserError(f"{board}: runs with a limit would replace {whole[0]}, which has none")
    for path in old:
        shutil.rmtree(path)
        shutil.rmtree(board / HISTORY / path.name, ignore_errors=True)  # few have one
    added = add_runs([one.runs[mode] for one in measured for mode in MODES], board)
    (board / SPEED).mkdir(parents=True, exist_ok=True)
    for name, path in files.items():
        shutil.copyfile(path, board / SPEED / f"{name}.json")
    return [f"{run_id}: {what}" for run_id, what in added]


def _measured(out: Path) -> Measured:
    records = {mode: load_run(out / mode) for mode in MODES}
    run = records[MODES[0]]["run"]
    for mode, record in records.items():
        own = record["run"]
        if own["mode"] != mode or not own["complete"]:
            raise UserError(f"{out / mode}: expected a finished run with --mode {mode}")
        if not _is_bundled(own) or own["checkpoint_hash"] != run["checkpoint_hash"]:
            raise UserError(
                f"{out / mode}: expected the bundled checkpoint of {out / MODES[0]}, got {own['checkpoint']}"
            )
    known = manifest().get(run["model"], {}).get("checkpoint_hash")
    if run["checkpoint_hash"] != known:
        raise UserError(f"{out}: measured on checkpoint {run['checkpoint_hash']}, but the bundled one is {known}")
    prefill = out / "speed.json"
    timed = load_speed(prefill).run
    if (timed.get("checkpoint"), timed.get("checkpoint_hash")) != (run["checkpoint"], run["checkpoint_hash"]):
        raise UserError(f"{prefill}: expected times of {run['checkpoint']}, content {run['checkpoint_hash']}")
    return Measured(run["model"], {mode: out / mode for mode in MODES}, prefill)


def _of_bundled(board: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Folder and record of every run on the board that is of a bundled checkpoint."""
    found = [(folder, load_record(folder / RECORD)) for folder in sorted((board / RESULTS).glob("[!.]*/"))]
    return [(folder, record) for folder, record in found if _is_bundled(record["run"])]


def _is_bundled(run: dict[str, Any]) -> bool:
    return bool(run["checkpoint"] == f"bundled:{run['model']}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m core_bench.bundled.records", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUNS", help="folder of one family's runs and speed.json")
    parser.add_argument("--attention", type=Path, metavar="FILE", help="of speed --what attention --json")
    parser.add_argument("--dir", type=Path, default=Path("leaderboard"), help="default: leaderboard")
    args = parser.parse_args()
    try:
        for line in replace(args.runs, args.attention, args.dir):
            print(line)
        write_pages(args.dir)
    except UserError as error:
        print(f"records: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
