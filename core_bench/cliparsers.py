"""The flags of every command. Values are checked in `RunConfig`; here text only becomes numbers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from core_bench.config import ATTENTIONS, DEVICE_MAPS, DTYPES, HOLDS, MODES, OFF_KINDS, QUERIES
from core_bench.errors import UserError
from core_bench.registry import MODELS, suggestion

COMMANDS = ("tasks", "speed", "show", "report", "leaderboard")
SPEED_KINDS = ("attention", "prefill", "ram")
PROG = "python -m core_bench"


class Parser(argparse.ArgumentParser):
    """argparse, but a mistake is one UserError instead of a page of usage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        start = "unrecognized arguments: "
        if message.startswith(start):
            word = message[len(start) :].split()[0]
            known = [option for action in self._actions for option in action.option_strings]
            raise UserError(f"unknown argument {word!r}{suggestion(word.partition('=')[0], known)}")
        raise UserError(message)


def _number(kind: type[int] | type[float], what: str) -> Callable[[str], Any]:
    def convert(text: str) -> int | float:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected {what}, got {text!r}") from None

    return convert


_whole, _real = _number(int, "a whole number"), _number(float, "a number")


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _lengths(text: str) -> tuple[int, ...]:
    parts = _names(text)
    if not all(part.isascii() and part.isdigit() and len(part) < 8 and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(
            f"expected counts of tokens such as 4096,16384, at most 9999999 each, got {text!r}"
        )
    return tuple(int(part) for part in parts)


def _choice(known: tuple[str, ...]) -> str:
    return "{" + ",".join(known) + "}"


def run_parser() -> Parser:
    """Flags of a run. One that is not given is absent from the result: the defaults live in `RunConfig`."""
    parser = Parser(
        prog=PROG,
        argument_default=argparse.SUPPRESS,
        description="Find a model's Context-aware Retrieval (CoRe) heads, switch them off, or keep only them full.",
        epilog="Other commands: " + ", ".join(f"{PROG} {name}" for name in COMMANDS) + " (each has its own --help). "
        "The same command resumes an interrupted run. Exit codes: 0 done, 1 a task has no scored sample, 2 a mistake "
        "in the command, 75 SIGTERM, 130 SIGINT.",
    )
    what = parser.add_argument_group("what to run")
    what.add_argument("--model", metavar=_choice(tuple(MODELS)), help="model family")
    what.add_argument("--mode", metavar=_choice(MODES), help="dense, or what to do with the heads")
    what.add_argument("--checkpoint", metavar="ID|DIR", help="hub id or local folder (default: the small bundled one)")
    what.add_argument("--revision", help="revision of a hub checkpoint")
    what.add_argument("--tasks", type=_names, metavar="A,B", help="task names, YAML files or folders of them")
    what.add_argument("--data-dir", metavar="DIR", help="where media lie; for generated tasks, where they are made")
    what.add_argument("--limit", type=_whole, metavar="N", help="first N samples of each task; marks the run partial")
    what.add_argument("--seed", type=_whole, metavar="N", help="of random controls and placebo regions (default: 0)")
    heads = parser.add_argument_group("heads")
    _plan_flags(heads)
    _ablate_and_detect_flags(heads)
    _media_flags(parser.add_argument_group("media and generation"))
    _device_flags(parser)
    end = parser.add_argument_group("output")
    end.add_argument("--out", metavar="DIR", help="default: runs/<model>-<mode>-<hash of the settings>")
    end.add_argument("--strict", action="store_true", help="exit 1 if any sample failed")
    end.add_argument(
        "--allow-overlap", action="store_true", help="evaluate on samples the heads were found on; recorded and shown"
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    return parser


def _plan_flags(heads: argparse._ArgumentGroup) -> None:
    heads.add_argument("--heads", metavar="auto|FILE", help="head table to rank by (default: auto)")
    heads.add_argument("--keep", metavar="LIST", help="hybrid: heads kept full, such as 5%%,10%% or bottom:10%% (10%%)")
    heads.add_argument("--window", type=_whole, metavar="TOKENS", help="hybrid: window of a streaming head")
    heads.add_argument("--sink", type=_whole, metavar="TOKENS", help="hybrid: first tokens it always sees")


def _ablate_and_detect_flags(heads: argparse._ArgumentGroup) -> None:
    heads.add_argument(
        "--ablate", metavar="LIST", help="ablate: arms (default: top:5%%,bottom:5%%,random:5%%); also file:PATH"
    )
    heads.add_argument("--off", metavar=_choice(OFF_KINDS), help="ablate: output zeroed (default), or no visual keys")
    heads.add_argument("--hold", metavar=_choice(HOLDS), help="default: always for ablate, prefill for hybrid")
    _detect_flags(heads, "detect: ")


def _detect_flags(heads: argparse._ArgumentGroup, mode: str = "") -> None:
    heads.add_argument("--query", metavar=_choice(QUERIES), help=f"{mode}tokens whose attention counts (question)")
    heads.add_argument("--overlap", type=_real, metavar="SHARE", help=f"{mode}share of a cell to exceed (default: 0)")


def _media_flags(media: argparse._ArgumentGroup) -> None:
    _pixel_flags(media)
    media.add_argument("--max-new-tokens", type=_whole, metavar="N", help="default: the task's")


def _pixel_flags(media: argparse._ArgumentGroup) -> None:
    media.add_argument("--frames", type=_whole, metavar="N", help="frames a video")
    media.add_argument("--fps", type=_real, metavar="X", help="frames a second of video, instead of --frames")
    media.add_argument("--max-pixels", type=_whole, metavar="N", help="pixel budget of a picture")


def _device_flags(parser: Parser, attention: bool = True) -> argparse._ArgumentGroup:
    device = parser.add_argument_group("device")
    device.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1 ... (default: cuda where there is one)")
    if attention:
        device.add_argument(
            "--device-map",
            metavar=_choice(DEVICE_MAPS),
            help="spread layers over several GPUs, instead of --device",
        )
    device.add_argument("--dtype", metavar=_choice(DTYPES), help="default: float32 on a CPU, bfloat16 on CUDA")
    if attention:
        device.add_argument("--attention", metavar=_choice(ATTENTIONS), help="implementation (default: auto)")
        device.add_argument(
            "--prefill-chunk", type=_whole, metavar="N", help="read prompts N tokens at a time: slower, less memory"
        )
    return device


class _Version(argparse.Action):
    def __init__(self, **options: Any) -> None:
        super().__init__(nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from core_bench import __version__

        print(f"core_bench {__version__}")
        parser.exit()


def tasks_parser() -> Parser:
    """Without an action the known tasks are listed. Flags of `check` that are not given are absent from the result."""
    parser = Parser(prog=f"{PROG} tasks", description="List the known tasks, or check a task file.")
    actions = parser.add_subparsers(dest="action", metavar="[check]")
    check = actions.add_parser(
        "check",
        argument_default=argparse.SUPPRESS,
        help="read a task's rows and show its first good sample",
        description="Check a task file: count its rows, show its first good sample, and with --model the prompt that "
        "is made of it. Exit codes: 0 a sample can be used, 1 none can, 2 a mistake in the file or the command.",
    )
    check.add_argument("task", metavar="FILE", help="YAML file or task name")
    check.add_argument("--split", help="default: all those that the modes read")
    check.add_argument("--data-dir", metavar="DIR", help="where media lie; for generated tasks, where they are made")
    prompt = check.add_argument_group("prompt (no weights are read)")
    prompt.add_argument("--model", metavar=_choice(tuple(MODELS)), help="model family, whose prompt to show")
    prompt.add_argument("--checkpoint", metavar="ID|DIR", help="hub id or local folder (default: the bundled one)")
    prompt.add_argument("--revision", help="revision of a hub checkpoint")
    _pixel_flags(prompt)
    return parser


def speed_parser() -> Parser:
    parser = Parser(
        prog=f"{PROG} speed",
        description="Time hybrid attention beside dense, in one layer or in prefill, or what measuring RAM costs.",
    )
    parser.add_argument("--what", default="attention", metavar=_choice(SPEED_KINDS), help="default: attention")
    parser.add_argument("--tokens", type=_lengths, metavar="N,M", help="default: by kind, up to 16384")
    parser.add_argument("--model", default="qwen3vl", metavar=_choice(tuple(MODELS)), help="default: qwen3vl")
    parser.add_argument(
        "--checkpoint",
        metavar="ID|DIR|random:NAME[:LAYERS]",
        help="default: the small bundled one; random:Qwen3-VL-4B has a real model's sizes and no weights to download",
    )
    parser.add_argument(
        "--shape", metavar="H/KxD", help="attention: query heads/KV heads x head size, such as 32/8x128"
    )
    parser.add_argument(
        "--budget", type=_seconds, default=20.0, metavar="S", help="stop where one dense call takes longer"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the rows there")
    parser.add_argument("--seed", type=_whole, default=0, metavar="N", help="default: 0")
    _plan_flags(parser.add_argument_group("heads"))
    device = _device_flags(parser, attention=False)
    device.add_argument(
        "--attention", metavar="LIST|all", help=f"implementations, of {_choice(ATTENTIONS)} (default: auto)"
    )
    parser.set_defaults(heads="auto", keep="10%", device="auto", attention="auto")
    return parser


def _seconds(text: str) -> float:
    value: float = _real(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")
    return value


def show_parser() -> Parser:
    parser = Parser(
        prog=f"{PROG} show",
        description="Draw one sample: its media, the evidence, the visual tokens on it, and where heads look.",
    )
    parser.add_argument("--model", required=True, metavar=_choice(tuple(MODELS)), help="model family")
    parser.add_argument("--task", required=True, metavar="NAME|FILE", help="task name or YAML file")
    parser.add_argument("--sample", required=True, metavar="ID|N", help="id, or number from 0 in the split")
    parser.add_argument("--split", help="default: the one that --mode detect reads")
    parser.add_argument(
        "--checkpoint", metavar="ID|DIR", help="hub id or local folder (default: the small bundled one)"
    )
    parser.add_argument("--revision", help="revision of a hub checkpoint")
    parser.add_argument("--data-dir", metavar="DIR", help="where media lie; for generated tasks, where they are made")
    heads = parser.add_argument_group("heads")
    heads.add_argument(
        "--heads", metavar="auto|FILE", help="head table; its first and its last head are shown (default: auto)"
    )
    heads.add_argument(
        "--head",
        type=_head,
        action="append",
        default=[],
        metavar="LAYER:HEAD",
        help="show this one instead; can repeat",
    )
    _detect_flags(heads)
    _media_flags(parser.add_argument_group("media and generation"))
    _device_flags(parser, attention=False)
    parser.add_argument("--out", metavar="FILE.png", help="default: TASK-SAMPLE.png in this folder")
    return parser


def _head(text: str) -> tuple[int, int]:
    parts = text.split(":")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"expected LAYER:HEAD such as 3:5, got {text!r}")
    return int(parts[0]), int(parts[1])


def report_parser() -> Parser:
    parser = Parser(
        prog=f"{PROG} report",
        description="Draw finished runs: head maps, sparsity, stability, ablation, hybrid attention, speed. Needs "
        "matplotlib (pip install 'core-bench[plots]').",
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a run's folder, a head table, or a JSON file of speed --json"
    )
    parser.add_argument("--out", default="runs/report", metavar="DIR", help="default: runs/report")
    return parser


def leaderboard_parser() -> Parser:
    parser = Parser(prog=f"{PROG} leaderboard", description="Collect finished runs and write the leaderboard pages.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="{add,check,build}")
    add = actions.add_parser("add", help="copy records into the leaderboard")
    add.add_argument("outs", nargs="+", metavar="OUT", help="output folder of a run")
    check = actions.add_parser("check", help="say whether records would be taken; nothing is written")
    check.add_argument("outs", nargs="+", metavar="FILE", help="record.json of a run, or its folder")
    build = actions.add_parser("build", help="write LEADERBOARD.md and index.html")
    for action in (add, build):
        action.add_argument("--dir", default="leaderboard", metavar="DIR", help="default: leaderboard")
    return parser
