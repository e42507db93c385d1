"""Context sweep: accuracy and speed-up of prefill, dense and hybrid, over prompt lengths on the generated tasks.

`python -m core_bench.bundled.context --out OUT` runs every task at every length as a hybrid run of its own, in
OUT/<task>-<tokens>, on the first --n items of the task's split eval@TOKENS. Stopped at any moment, the same command
goes on where it was. It prints a table for each task and writes OUT/context.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from core_bench.config import RunConfig
from core_bench.errors import UserError
from core_bench.evaluate import EXIT_NOTHING_SCORED, carry_out, exit_code, make_session, say
from core_bench.registry import load_tasks
from core_bench.runfolder import write_json
from core_bench.tables import arm_heads, headline_metric, percent
from core_bench.taskspec import TaskSpec

if TYPE_CHECKING:
    from core_bench.model_wrappers.base import ModelWrapper

JSON = dict[str, Any]
TASKS = "core_mlvu_tiny,core_videomme_tiny,core_refcocog_tiny,core_mmlongbench_doc_tiny"
TOKENS = "256,512,1024,2048,4096,8192,16384"
# Fewer where one dense pass takes seconds on a laptop: the two longest lengths still take more than half of the time.
COUNTS = "50,50,50,50,25,12,8"
SPLIT = "eval"
PIXELS = 4 * 32 * 32  # per token: a token is 32 x 32 pixels of one picture or of two frames; the rest is room


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One task at one length: `n` items with prompts of about `tokens` tokens."""

    spec: TaskSpec
    tokens: int
    n: int

    @property
    def name(self) -> str:
        return f"{self.spec.name}-{self.tokens}"


def cells(specs: Sequence[TaskSpec], tokens: Sequence[int], counts: Sequence[int]) -> list[Cell]:
    """Every task at every length, shortest first. One count serves all lengths. UserError for lists that do not fit."""
    for spec in specs:
        if not spec.generated:
            raise UserError(f"--tasks {spec.name}: expected a generated task, whose prompts can be made of any length")
    if len(set(tokens)) < len(tokens):
        raise UserError(f"--tokens: expected every length once, got {','.join(map(str, tokens))}")
    if len(counts) not in (1, len(tokens)):
        raise UserError(f"--n: expected one number or one for each of {len(tokens)} lengths, got {len(counts)}")
    per_length = dict(zip(tokens, counts if len(counts) > 1 else [*counts] * len(tokens), strict=True))
    return [Cell(spec=spec, tokens=length, n=per_length[length]) for length in sorted(per_length) for spec in specs]


def measure(wrapper: ModelWrapper, config: RunConfig, cell: Cell) -> JSON:
    """The record of one cell's run, from its folder if it was finished before; the controls are left out."""
    # A clip or picture must reach the model in the size it was made in: no checkpoint's own cap may bind.
    own = replace(
        config, tasks=(cell.spec.name,), out=str(config.out_dir() / cell.name), max_pixels=cell.tokens * PIXELS
    )
    samples = cell.spec.samples(f"{SPLIT}@{cell.tokens}:{cell.n}", data_dir=config.data_dir)
    session = make_session(own, wrapper, [(cell.spec, samples)])
    record, _ = carry_out(replace(session, controls=False))
    return record


def row_of(cell: Cell, record: JSON) -> JSON:
    """One line of context.json. `prompt_median` in tokens, None where no sample could be read; `language_ms` is the
    median time of the language model's prefill; metrics and speed-ups as a record holds them."""
    task = record["tasks"][cell.spec.name]
    arms = {}
    for name, arm in task["arms"].items():
        found, prefill = headline_metric(arm), arm.get("prefill") or {}
        arms[name.removeprefix("hybrid:")] = {
            "heads": arm_heads(name, arm),
            "score": found[1] if found else None,
            "delta": arm.get("delta"),
            "language_ms": prefill["language_ms"]["median"] if prefill else None,
            "speedup": prefill.get("speedup"),
        }
    return {
        "task": cell.spec.name,
        "metric": cell.spec.headline,
        "tokens": cell.tokens,
        "prompt_median": task["tokens"]["prompt_median"] if task["tokens"] else None,
        "n": task["n"],
        "n_failed": task["n_failed"],
        "arms": arms,
    }


def render(rows: Sequence[JSON], fmt: str = "simple") -> str:
    """A table for each task: a line a length; accuracy in % with its 95% interval, and speed-up of language prefill."""
    blocks = []
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        arms = list(own[0]["arms"])
        header = ["tokens", "n", *(_title(name, own[0]["arms"][name]) for name in arms)]
        lines = [[_prompt(row), _count(row), *(_cell(row["arms"][name]) for name in arms)] for row in own]
        table = tabulate(lines, headers=header, tablefmt=fmt, disable_numparse=True)
        blocks.append(f"{task}: {own[0]['metric']}, % [95%], and speed-up of prefill\n\n{table}")
    return "\n\n".join(blocks)


def _title(name: str, arm: JSON) -> str:
    return name if arm["heads"] is None else f"{name} full ({arm['heads']} heads)"


def _prompt(row: JSON) -> str:
    return "-" if row["prompt_median"] is None else f"{row['prompt_median']:.0f}"


def _count(row: JSON) -> str:
    return f"{row['n']}" + (f" ({row['n_failed']} failed)" if row["n_failed"] else "")


def _cell(arm: JSON) -> str:
    speedup = arm["speedup"]
    return percent(arm["score"]) + ("" if speedup is None else f" {speedup['value']:.2f}x")


def sweep(config: RunConfig, todo: Sequence[Cell]) -> int:
    """Run the cells, print what was found; returns the exit code (1 where a cell has no scored sample)."""
    from core_bench.checkpoints import load_wrapper

    wrapper = load_wrapper(config)
    target = config.out_dir() / "context.json"
    rows: list[JSON] = []
    codes = []
    for number, cell in enumerate(todo, start=1):
        begin = time.perf_counter()
        record = measure(wrapper, config, cell)
        codes.append(exit_code(record, config.strict))
        rows.append(row_of(cell, record))
        run = {key: record["run"][key] for key in ("model", "checkpoint", "checkpoint_hash", "seed", "heads")}
        reach = {key: record["run"]["settings"][key] for key in ("keep", "window", "sink")}
        write_json(target, {"run": {**run, **reach}, "environment": record["environment"], "rows": rows})
        say(f"{number} of {len(todo)}: {cell.name}, {cell.n} samples, {time.perf_counter() - begin:.0f} s")
    print(render(rows))
    say(f"written: {target}")
    return EXIT_NOTHING_SCORED if any(codes) else 0


def _numbers(text: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers separated by commas, got {text!r}") from None
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"expected numbers above 0, got {text!r}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m core_bench.bundled.context", description=__doc__)
    parser.add_argument("--model", default="qwen3vl")
    parser.add_argument("--checkpoint", help="default: the family's bundled one, for which prompt lengths are counted")
    parser.add_argument("--tasks", default=TASKS, help=f"generated tasks (default: {TASKS})")
    parser.add_argument("--tokens", type=_numbers, default=TOKENS, help=f"prompt lengths (default: {TOKENS})")
    parser.add_argument("--keep", default="5%,10%,20%", help="heads that stay full (default: 5%%,10%%,20%%)")
    parser.add_argument("--n", type=_numbers, default=COUNTS, help=f"samples, one number or one a length ({COUNTS})")
    parser.add_argument("--heads", default="auto", help="head table (default: auto)")
    parser.add_argument("--data-dir", help="where generated data lies (default: the user's cache folder)")
    parser.add_argument("--out", default="runs/context", help="default: runs/context")
    given = parser.parse_args(argv)
    try:
        names = tuple(given.tasks.split(","))
        config = RunConfig(
            mode="hybrid", tasks=names,
            **{key: getattr(given, key) for key in ("model", "checkpoint", "keep", "heads", "data_dir", "out")},
        )  # fmt: skip
        return sweep(config, cells(load_tasks(names, "hybrid", config.bundled), given.tokens, given.n))
    except UserError as error:
        print(f"context: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"context: interrupted; the same command goes on from {given.out}", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
