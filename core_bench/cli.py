"""The command line: reads flags, turns every user's mistake into one line and an exit code, and hands over.

Exit codes: 0 done; 1 a task without a scored sample, or --strict and a failure; 2 a user's mistake; 75 SIGTERM;
130 SIGINT; 141 the reader of our output went away. Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from core_bench.cliparsers import (
    COMMANDS,
    SPEED_KINDS,
    leaderboard_parser,
    report_parser,
    run_parser,
    show_parser,
    speed_parser,
    tasks_parser,
)
from core_bench.config import RunConfig, one_of
from core_bench.errors import UserError, one_line
from core_bench.registry import suggestion
from core_bench.team import ToldByLeader

EXIT_USER, EXIT_TERM, EXIT_INT, EXIT_PIPE = 2, 75, 130, 141
SHORT_HELP = """\
Find, ablate and exploit the Context-aware Retrieval (CoRe) heads of multimodal LLMs.

  python -m core_bench --model qwen3vl --mode detect       rank the heads
  python -m core_bench --model qwen3vl --mode ablate       switch them off
  python -m core_bench --model qwen3vl --mode hybrid       keep only them full
  python -m core_bench tasks | speed | show | report | leaderboard
                                                           other commands
  python -m core_bench --help                              every flag"""


class Terminated(BaseException):
    """SIGTERM arrived. Not an Exception, so that only `finally` blocks see it on the way out."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. `argv` defaults to the process's own arguments."""
    words = list(sys.argv[1:] if argv is None else argv)
    resume: list[str] = []
    try:
        with _sigterm_raises():
            try:
                code = _dispatch(words, resume)
            finally:
                sys.stdout.flush()
            return code
    except ToldByLeader:
        return EXIT_USER
    except UserError as error:
        rank = os.environ.get("RANK", "0")  # of several processes
        where = "" if rank == "0" else f"process {rank}: "
        return _complain(f"error: {where}{one_line(error)}", EXIT_USER)
    except Terminated:
        return _complain(f"stopped by SIGTERM{''.join(resume)}", EXIT_TERM)
    except KeyboardInterrupt:
        return _complain(f"interrupted{''.join(resume)}", EXIT_INT)
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE


def _dispatch(words: list[str], resume: list[str]) -> int:
    if not words:
        print(SHORT_HELP, file=sys.stderr)
        return EXIT_USER
    if words[0].startswith("-"):
        return _run(words, resume)
    commands: dict[str, Callable[[list[str]], int]] = {
        "tasks": _tasks,
        "speed": _speed,
        "show": _show,
        "report": _report,
        "leaderboard": _leaderboard,
    }
    if words[0] not in commands:
        hint = suggestion(words[0], COMMANDS)
        raise UserError(
            f"command: expected one of {', '.join(COMMANDS)}, or --model and --mode, got {words[0]!r}{hint}"
        )
    return commands[words[0]](words[1:])


def _run(words: list[str], resume: list[str]) -> int:
    given = vars(run_parser().parse_args(words))
    for flag in ("model", "mode"):
        if flag not in given:
            raise UserError(f"--{flag}: expected with every run, got none (see python -m core_bench --help)")
    config = RunConfig(**given)
    from core_bench.registry import bundled_checkpoint, load_tasks

    if config.bundled:
        bundled_checkpoint(config.model)
    load_tasks(config.tasks, config.mode, config.bundled)  # a mistake in a task file shows before torch loads
    for name in config.unread(set(given)):
        flag = name.replace("_", "-")
        print(f"core_bench: note: --{flag} is not read in --mode {config.mode}", file=sys.stderr)
    resume.append(f"; the same command goes on from {config.out_dir()}")
    from core_bench.evaluate import run

    return run(config)


def _tasks(words: list[str]) -> int:
    given = vars(tasks_parser().parse_args(words))
    if given.pop("action") == "check":
        return _check_task(given)
    from core_bench.registry import known_tasks

    rows = [("task", "dataset", "kind", "scored by", "default of")]
    for spec in known_tasks().values():
        rows.append((spec.name, spec.dataset, spec.kind, spec.headline, ", ".join(spec.default_for) or "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _check_task(given: dict[str, Any]) -> int:
    task, split, data_dir = (given.pop(name, None) for name in ("task", "split", "data_dir"))
    if given and "model" not in given:
        raise UserError(f"--{min(given).replace('_', '-')}: expected together with --model")
    # One model's flags mean the same here as in a run that ranks heads, so the run's checks do for both.
    config = RunConfig(mode="detect", **given) if given else None
    if config is not None and config.bundled:
        from core_bench.registry import bundled_checkpoint

        bundled_checkpoint(config.model)
    from core_bench.taskcommand import run_check

    return run_check(task, split=split, data_dir=data_dir, config=config)


def _speed(words: list[str]) -> int:
    given = speed_parser().parse_args(words)
    one_of("--what", given.what, SPEED_KINDS)
    # One model's flags mean the same here as in a run, so the run's checks do for both.
    common = ("model", "checkpoint", "keep", "heads", "window", "sink", "device", "dtype", "seed")
    checked = RunConfig(mode="hybrid", **{name: getattr(given, name) for name in common})
    if checked.bundled:
        from core_bench.registry import bundled_checkpoint

        bundled_checkpoint(checked.model)
    from core_bench.speed import run_speed

    return run_speed(
        what=given.what,
        tokens=given.tokens,
        attention=given.attention,
        shape=given.shape,
        budget_s=given.budget,
        json_path=given.json,
        **{name: getattr(checked, name) for name in common},
    )


def _show(words: list[str]) -> int:
    given = vars(show_parser().parse_args(words))
    special = {name: given.pop(name) for name in ("task", "sample", "split", "head", "out")}
    # One model's flags mean the same here as in a run that ranks heads, so the run's checks do for both.
    checked = RunConfig(mode="ablate", **{name: value for name, value in given.items() if value is not None})
    if checked.bundled:
        from core_bench.registry import bundled_checkpoint

        bundled_checkpoint(checked.model)
    from core_bench.show import run_show

    return run_show(
        checked,
        task=special["task"],
        sample=special["sample"],
        split=special["split"],
        heads=special["head"],
        out=special["out"],
        table=given["heads"] is not None,
    )


def _report(words: list[str]) -> int:
    given = report_parser().parse_args(words)
    from core_bench.report import run_report

    return run_report(given.runs, given.out)


def _leaderboard(words: list[str]) -> int:
    given = leaderboard_parser().parse_args(words)
    from core_bench import board

    if given.action == "add":
        return board.add(given.outs, given.dir)
    if given.action == "check":
        return board.check(given.outs)
    return board.build(given.dir)


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Turn the first SIGTERM into `Terminated`; a second one cannot cut the cleaning-up short (SIGKILL can)."""

    def handler(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _complain(message: str, code: int) -> int:
    with contextlib.suppress(BrokenPipeError):
        print(f"core_bench: {message}", file=sys.stderr)
    return code
