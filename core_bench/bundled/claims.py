"""The study's claims on a bundled checkpoint, read off the records of one detect, ablate and hybrid run.

`python -m core_bench.bundled.claims RUNS` prints them beside what they must be, with what the study reports of other
models in a table of its own; `--write README.md` puts all that between the file's claims marks. RUNS holds detect/,
ablate/, hybrid/ and speed.json, as `make run` leaves them in runs/demo; detect/ and speed.json may be missing. With
several RUNS, one of each family, it is one table with a column a family. `--board leaderboard` reads the published
records instead: RUNS are then families, none for all.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from core_bench.board.reported import REPORTED, REPORTED_TITLE
from core_bench.bundled.records import MODES, published
from core_bench.errors import UserError
from core_bench.runfolder import RECORD, load_record, write_text
from core_bench.tables import percent, points, stability_lines, times

JSON = dict[str, Any]
BEGIN, END = "<!-- claims: written by `make report`, do not edit -->", "<!-- claims: end -->"


@dataclass(frozen=True)
class Claim:
    """One line: what is claimed of which task, what was measured, the bound, and whether it holds (None: reported as
    it is)."""

    text: str
    task: str
    measured: str
    bound: str
    holds: bool | None


def claims(ablate: JSON, hybrid: JSON) -> list[Claim]:
    """The claims for every task of both records; claim by claim, so that the tasks stand below each other."""
    cut = [_cut_claims(name, task) for name, task in ablate["tasks"].items()]
    kept = [_hybrid_claims(name, task) for name, task in hybrid["tasks"].items()]
    return [claim for group in (cut, kept) for same in zip(*group, strict=True) for claim in same]


def _cut_claims(name: str, task: JSON) -> list[Claim]:
    """What an ablation shows of one task; its values are shares of right answers."""
    arms = task["arms"]
    none, top, bottom, random = (_arm(name, arms, prefix) for prefix in ("none", "top:", "bottom:", "random:"))
    k = len(top["plan"]["off"])
    return [
        Claim("dense", name, _percent(none), ">= 95", _value(none) >= 0.95),
        _control("every picture noise", name, task, "image_blind"),
        _control("media of another sample", name, task, "shuffled_media"),
        Claim(f"top {k} heads (5%) off", name, _percent(top), "<= 40", _value(top) <= 0.40),
        Claim(f"random {k} heads off", name, _percent(random), "within 5 of dense", _delta(random) >= -0.05),
        Claim(f"bottom {k} heads off", name, _percent(bottom), "aim: within 5 of dense", None),
    ]


def _control(text: str, name: str, task: JSON, control: str) -> Claim:
    """Without the right media the model must not do better than chance; worse is no sign of looking elsewhere."""
    controls = task.get("controls") or {}
    metric, chance = controls.get(control), controls.get("chance")
    if metric is None or chance is None or metric["ci95"] is None:
        return Claim(text, name, percent(metric), "not above chance", None)
    bound = f"not above chance, {100 * chance:.1f}"
    return Claim(text, name, percent(metric), bound, metric["ci95"][0] <= chance)


def _hybrid_claims(name: str, task: JSON) -> list[Claim]:
    """What a hybrid run shows of one task."""
    arms = task["arms"]
    dense, full, low = (_arm(name, arms, prefix) for prefix in ("dense", "hybrid:5%", "hybrid:bottom:5%"))
    plan, prompt = full["plan"], round(task["tokens"]["prompt_median"])
    k, reach = len(plan["full"]), f"{plan['window']}+{plan['sink']}"
    return [
        Claim("dense, long prompts", name, f"{_percent(dense)}, {prompt} tokens", "", None),
        Claim(f"top {k} heads full, others {reach}", name, _both(full), "within 2 of dense", _delta(full) >= -0.02),
        Claim(f"bottom {k} heads full, others {reach}", name, _both(low), "at least 30 lost", _delta(low) <= -0.30),
        Claim(f"prefill speed-up, top {k} full", name, _speedup(full), "", None),
    ]


def speed_claims(rows: list[JSON]) -> list[Claim]:
    """The speed-up of language prefill at the lengths of a `speed --json` file; the longest one has a bound."""
    longest = max(row["tokens"] for row in rows)
    found = []
    for row in rows:
        bound, holds = (">= 2.3x", row["speedup"] >= 2.3) if row["tokens"] == longest else ("", None)
        measured = f"{row['speedup']:.2f}x (Amdahl bound {row['amdahl']:.2f}x)"
        text = f"prefill speed-up, {row['heads']} full"
        found.append(Claim(text, f"noise, {row['tokens']} tokens", measured, bound, holds))
    return found


def render(found: list[Claim], fmt: str, stability: JSON | None = None) -> str:
    """The table of claims, how stable the ranking is, and the study's own figures; `fmt` as tabulate names it."""
    verdict = {True: "yes", False: "NO", None: "-"}
    rows, above = [], None
    for claim in found:
        rows.append((claim.text if claim.text != above else "", claim.task, claim.measured, claim.bound))
        above = claim.text
    cells = [(*row, verdict[claim.holds]) for row, claim in zip(rows, found, strict=True)]
    blocks = [_table(("claim", "task", "measured, % [95%]", "required", "holds"), cells, fmt)]
    if stability is not None:
        blocks.append("\n".join(stability_lines(stability, fmt)))
    blocks += [REPORTED_TITLE, _table(("result", "as reported"), REPORTED, fmt)]
    return "\n\n".join(blocks)


def side_by_side(found: Mapping[str, list[Claim]], fmt: str) -> str:
    """One table with a column a family; a claim that does not hold is marked with NO."""
    bounds = {(claim.text, claim.task): claim.bound for each in found.values() for claim in each}
    cells = {
        family: {(claim.text, claim.task): claim.measured + (" NO" if claim.holds is False else "") for claim in each}
        for family, each in found.items()
    }
    rows, above = [], None
    for text, task in bounds:
        measured = [cells[family].get((text, task), "-") for family in found]
        rows.append((text if text != above else "", task, *measured, bounds[text, task]))
        above = text
    return _table(("claim", "task", *found, "required"), rows, fmt)


def _table(headers: tuple[str, ...], rows: Any, fmt: str) -> str:
    return tabulate(rows, headers=headers, tablefmt=fmt, disable_numparse=True)


def write_block(path: Path, block: str) -> None:
    """Replace what stands between the marks of `path`. UserError if the marks are not there."""
    text = path.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{path}: expected the lines {BEGIN} and {END}")
    write_text(path, f"{head}{BEGIN}\n\n{block}\n\n{END}{tail}")


def _speed(path: Path) -> list[Claim]:
    return speed_claims(json.loads(path.read_text(encoding="utf-8"))["rows"]) if path.is_file() else []


def _stability(path: Path) -> JSON | None:
    """That of a detection of two or more tasks, if there is one."""
    ram: JSON = (load_record(path).get("ram") or {}) if path.is_file() else {}
    return ram.get("stability")


def _arm(task: str, arms: Mapping[str, JSON], prefix: str) -> JSON:
    found = [body for name, body in arms.items() if name.startswith(prefix)]
    if not found:
        raise UserError(f"{task}: expected an arm {prefix}..., the record has {', '.join(arms)}")
    if not found[0]["metrics"]:
        raise UserError(f"{task}: arm {prefix}...: expected a scored sample, got none")
    return found[0]


def _value(arm: JSON) -> float:
    return float(next(iter(arm["metrics"].values()))["value"])


def _delta(arm: JSON) -> float:
    return float(arm["delta"]["value"])


def _percent(arm: JSON) -> str:
    return percent(next(iter(arm["metrics"].values())))


def _both(arm: JSON) -> str:
    return f"{_percent(arm)}, {points(arm['delta'])}"


def _speedup(arm: JSON) -> str:
    return times((arm.get("prefill") or {}).get("speedup"))


Found = tuple[str, list[Claim], list[Claim], JSON | None]


def _read(runs: Mapping[str, Path], prefill: Path) -> Found:
    """Model, claims about accuracy, claims about speed, and stability of the records in the folders of `runs`."""
    ablate, hybrid = (load_record(runs[name] / RECORD) for name in ("ablate", "hybrid"))
    return str(ablate["run"]["model"]), claims(ablate, hybrid), _speed(prefill), _stability(runs["detect"] / RECORD)


def _read_all(names: Sequence[str], board: Path | None) -> list[Found]:
    """Of folders of runs, or of families on a board."""
    if board is None:
        folders = [Path(name) for name in names]
        return [_read({mode: folder / mode for mode in MODES}, folder / "speed.json") for folder in folders]
    there = published(board)
    if unknown := [name for name in names if name not in there]:
        raise UserError(f"--board {board}: expected families of {', '.join(there) or 'none'}, got {unknown[0]}")
    return [_read(there[name].runs, there[name].prefill) for name in names or there]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m core_bench.bundled.claims", description=__doc__)
    parser.add_argument("runs", nargs="*", metavar="RUNS")
    parser.add_argument("--board", type=Path, metavar="DIR", help="a leaderboard, whose families RUNS name")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables between this file's claims marks")
    args = parser.parse_args()
    try:
        read = _read_all(args.runs, args.board)
        if not read:
            raise UserError("expected a folder of runs, or --board DIR with runs of bundled checkpoints, got none")
        families = {model: [*accuracy, *speed] for model, accuracy, speed, _ in read}
        if len(families) < len(read):
            raise UserError(f"expected runs of one model each, got {', '.join(model for model, *_ in read)}")

        def written(fmt: str) -> str:
            if len(read) > 1:
                return side_by_side(families, fmt)
            ((_, accuracy, speed, stability),) = read
            return render([*accuracy, *speed], fmt, stability)

        print(written("simple"))
        if args.write is not None:
            write_block(args.write, written("github"))
    except UserError as error:
        print(f"claims: error: {error}", file=sys.stderr)
        return 2
    # A slow spell of the machine must not fail a build, so only what does not depend on it decides.
    return 0 if all(claim.holds is not False for _, accuracy, _, _ in read for claim in accuracy) else 1


if __name__ == "__main__":
    sys.exit(main())
