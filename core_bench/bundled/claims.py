"""The study's claims on a bundled checkpoint, read off the records of one detect, ablate and hybrid run.

`python -m core_bench.bundled.claims RUNS` prints them beside what they must be; `--write README.md` puts the same table
between the file's claims marks. RUNS holds ablate/, hybrid/ and speed.json, as `make run` leaves them in runs/demo.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from core_bench.errors import UserError
from core_bench.runfolder import load_record, write_text
from core_bench.tables import percent, points, times

BEGIN, END = "<!-- claims: written by `make claims`, do not edit -->", "<!-- claims: end -->"


@dataclass(frozen=True)
class Claim:
    """One line: what is claimed, what was measured, the bound, and whether it holds (None: reported as it is)."""

    text: str
    measured: str
    bound: str
    holds: bool | None


def claims(ablate: dict[str, Any], hybrid: dict[str, Any], task: str) -> list[Claim]:
    """The claims for one task that both runs hold; values are shares of right answers."""
    cut, kept = ablate["tasks"][task], hybrid["tasks"][task]
    arms, long = cut["arms"], kept["arms"]
    none, top, bottom, random = (_arm(arms, name) for name in ("none", "top:", "bottom:", "random:"))
    dense, full, low = (_arm(long, name) for name in ("dense", "hybrid:5%", "hybrid:bottom:5%"))
    blind, chance = cut["controls"]["image_blind"], cut["controls"]["chance"]
    plan = full["plan"]
    k, window = len(plan["full"]), f"window {plan['window']} + sink {plan['sink']}"
    n_cut = len(top["plan"]["off"])
    prompt = round(kept["tokens"]["prompt_median"])
    return [
        Claim("dense accuracy", _percent(none), ">= 95", _value(none) >= 0.95),
        Claim(
            "pictures replaced by noise",
            percent(blind),
            f"about chance, {100 * chance:.1f}",
            blind["ci95"][0] <= chance <= blind["ci95"][1],
        ),
        Claim(f"top {n_cut} heads (5%) off", _percent(top), "<= 40", _value(top) <= 0.40),
        Claim(f"random {n_cut} heads off", _percent(random), "within 5 of dense", _delta(random) >= -0.05),
        Claim(f"bottom {n_cut} heads off", _percent(bottom), "aim: within 5 of dense", None),
        Claim(f"dense accuracy at {prompt} tokens", _percent(dense), "", None),
        Claim(
            f"hybrid, top {k} heads full, {window}",
            f"{_percent(full)}, {points(full['delta'])}",
            "within 2 of dense",
            _delta(full) >= -0.02,
        ),
        Claim(
            f"hybrid, bottom {k} heads full",
            f"{_percent(low)}, {points(low['delta'])}",
            "at least 30 lost",
            _delta(low) <= -0.30,
        ),
        Claim(f"prefill speed-up at {prompt} tokens", times(full["prefill"]["speedup"]), "", None),
    ]


def speed_claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """The speed-up of language prefill at the lengths of a `speed --json` file; the longest one has a bound."""
    longest = max(row["tokens"] for row in rows)
    found = []
    for row in rows:
        bound, holds = (">= 2.3x", row["speedup"] >= 2.3) if row["tokens"] == longest else ("", None)
        text = f"prefill speed-up at {row['tokens']} tokens, {row['heads']} full"
        found.append(Claim(text, f"{row['speedup']:.2f}x (Amdahl bound {row['amdahl']:.2f}x)", bound, holds))
    return found


def render(found: list[Claim], fmt: str) -> str:
    verdict = {True: "yes", False: "NO", None: "-"}
    rows = [(claim.text, claim.measured, claim.bound, verdict[claim.holds]) for claim in found]
    return tabulate(
        rows, headers=("claim", "measured, % [95%]", "required", "holds"), tablefmt=fmt, disable_numparse=True
    )


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


def _arm(arms: dict[str, Any], prefix: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [body for name, body in arms.items() if name.startswith(prefix)]
    if not found:
        raise UserError(f"claims: expected an arm {prefix}..., the record has {', '.join(arms)}")
    return found[0]


def _headline(arm: dict[str, Any]) -> dict[str, Any]:
    metric: dict[str, Any] = next(iter(arm["metrics"].values()))
    return metric


def _value(arm: dict[str, Any]) -> float:
    return float(_headline(arm)["value"])


def _delta(arm: dict[str, Any]) -> float:
    return float(arm["delta"]["value"])


def _percent(arm: dict[str, Any]) -> str:
    return percent(_headline(arm))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m core_bench.bundled.claims", description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--task", default="core_refcocog_tiny")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between this file's claims marks")
    args = parser.parse_args()
    try:
        ablate, hybrid = (load_record(args.runs / name / "record.json") for name in ("ablate", "hybrid"))
        accuracy = claims(ablate, hybrid, args.task)
        found = [*accuracy, *_speed(args.runs / "speed.json")]
        print(render(found, "simple"))
        if args.write is not None:
            write_block(args.write, render(found, "github"))
    except UserError as error:
        print(f"claims: error: {error}", file=sys.stderr)
        return 2
    # A slow spell of the machine must not fail a build, so only what does not depend on it decides.
    return 0 if all(claim.holds is not False for claim in accuracy) else 1


if __name__ == "__main__":
    sys.exit(main())
