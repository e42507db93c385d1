"""The command line: one line and the right exit code for every mistake, and nothing heavy before it is needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core_bench import cli, registry
from core_bench.errors import UserError

RUN = ["--model", "qwen3vl", "--mode"]
HEAVY = (
    "torch transformers numpy scipy yaml rich pydantic PIL datasets av tabulate core_bench.heads core_bench.taskspec"
)


@pytest.fixture(autouse=True)
def _a_bundled_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "bundled_checkpoint", lambda name: tmp_path)


@pytest.fixture
def run_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], int]], None]:
    """Puts a function in the place of the evaluation."""

    def place(function: Callable[[Any], int]) -> None:
        module = types.ModuleType("core_bench.evaluate")
        module.run = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "core_bench.evaluate", module)

    return place


def run_with_recorder(run_with: Any, code: int) -> list[Any]:
    """The configurations that runs were started with."""
    seen: list[Any] = []

    def record(config: Any) -> int:
        seen.append(config)
        return code

    run_with(record)
    return seen


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "qwen3v", "--mode", "detect"], "did you mean 'qwen3vl'"),
        (["--model", "qwen3vl", "--mode", "detekt"], "did you mean 'detect'"),
        (["--model", "qwen3vl"], "--mode"),
        (["--mode", "dense"], "--model"),
        ([*RUN, "dense", "--tasks", "core_refcocog_tinny"], "did you mean 'core_refcocog_tiny'"),
        ([*RUN, "dense", "--tasks", "nowhere.yaml"], "nowhere.yaml"),
        ([*RUN, "dense", "--tasks", ""], "--tasks"),
        ([*RUN, "hybrid", "--keep", "0.5 heads"], "0.5 heads"),
        ([*RUN, "hybrid", "--keep", "110%"], "110%"),
        ([*RUN, "hybrid", "--window", "-5"], "-5"),
        ([*RUN, "hybrid", "--window", "ten"], "'ten'"),
        ([*RUN, "hybrid", "--window"], "--window"),
        ([*RUN, "ablate", "--ablate", "middle:5%"], "middle:5%"),
        ([*RUN, "hybrid", "--heads", "nowhere.tsv"], "nowhere.tsv"),
        ([*RUN, "hybrid", "--windo", "5"], "did you mean '--window'"),
        ([*RUN, "hybrid", "stray"], "stray"),
        (["taks"], "did you mean 'tasks'"),
        (["tasks", "stray"], "stray"),
        (["speed", "--what", "everything"], "everything"),
        (["speed", "--tokens", "1k"], "1k"),
        (["speed", "--tokens", "0"], "'0'"),
        (["speed", "--tokens", "4096,10000000"], "at most 9999999"),
        (["speed", "--budget", "-1"], "-1"),
        (["speed", "--model", "nope"], "nope"),
        (["leaderboard"], "add"),
        (["leaderboard", "drop"], "drop"),
        (["leaderboard", "add"], "OUT"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("core_bench: error: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err


def test_a_bad_task_file_names_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("task: mine\ndataset_path: a.jsonl\ndoc_to_txt: question\n")
    assert cli.main([*RUN, "dense", "--tasks", "mine.yaml"]) == 2
    line = capsys.readouterr().err
    assert line == "core_bench: error: mine.yaml:3: unknown key doc_to_txt (did you mean 'doc_to_text'?)\n"


def test_no_arguments_is_a_short_help_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert 0 < capsys.readouterr().err.count("\n") <= 10


def test_a_run_gets_the_flags(run_with: Any, capsys: pytest.CaptureFixture[str]) -> None:
    seen = run_with_recorder(run_with, 1)
    words = [*RUN, "hybrid", "--keep", "5%,bottom:5%", "--window", "64", "--limit", "3", "--strict", "--off", "blind"]
    assert cli.main(words) == 1
    assert (seen[0].keep, seen[0].window, seen[0].limit, seen[0].strict) == ("5%,bottom:5%", 64, 3, True)
    assert seen[0].tasks is None
    assert capsys.readouterr().err == "core_bench: note: --off is not read in --mode hybrid\n"


def test_tasks_are_split_at_commas(run_with: Any, tmp_path: Path) -> None:
    seen = run_with_recorder(run_with, 0)
    (tmp_path / "mine.yaml").write_text("task: mine\ndataset_path: a.jsonl\n")
    assert cli.main([*RUN, "dense", "--tasks", "core_refcocog_tiny, mine.yaml"]) == 0
    assert seen[0].tasks == ("core_refcocog_tiny", "mine.yaml")


def test_errors_of_the_run_are_one_line_but_bugs_show(run_with: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def mistake(config: Any) -> int:
        raise UserError("heads.tsv: expected 48 heads,\n got 8")

    run_with(mistake)
    assert cli.main([*RUN, "dense"]) == 2
    assert capsys.readouterr().err == "core_bench: error: heads.tsv: expected 48 heads, got 8\n"

    def bug(config: Any) -> int:
        raise ZeroDivisionError

    run_with(bug)
    with pytest.raises(ZeroDivisionError):
        cli.main([*RUN, "dense"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_signals(run_with: Any, capsys: pytest.CaptureFixture[str], number: int, code: int) -> None:
    cleaned: list[bool] = []

    def interrupted(config: Any) -> int:
        try:
            os.kill(os.getpid(), number)
            threading.Event().wait(5)
            return 0
        finally:
            cleaned.append(True)

    run_with(interrupted)
    before = signal.getsignal(signal.SIGTERM)
    assert cli.main([*RUN, "dense", "--out", "here"]) == code
    assert cleaned == [True]
    assert signal.getsignal(signal.SIGTERM) is before
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "the same command goes on from here" in line


def test_speed_hands_its_flags_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    module = types.ModuleType("core_bench.speed")
    module.run_speed = lambda **flags: seen.update(flags) or 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "core_bench.speed", module)
    assert cli.main(["speed", "--what", "prefill", "--tokens", "4096,16384", "--keep", "5%", "--budget", "1.5"]) == 0
    assert seen == {
        "what": "prefill", "model": "qwen3vl", "checkpoint": None, "tokens": (4096, 16384), "keep": "5%",
        "heads": "auto", "window": None, "sink": None, "device": "auto", "dtype": None, "attention": "auto",
        "shape": None, "budget_s": 1.5, "json_path": None, "seed": 0,
    }  # fmt: skip


def test_leaderboard_hands_its_arguments_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from core_bench import board

    monkeypatch.setattr(board, "add", lambda outs, directory: print(outs, directory) or 0)
    monkeypatch.setattr(board, "build", lambda directory: 7)
    assert cli.main(["leaderboard", "add", "a", "b", "--dir", "x"]) == 0
    assert cli.main(["leaderboard", "build"]) == 7


def test_tasks_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tasks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["task", "dataset", "kind"]
    row = next(line for line in lines if line.startswith("core_refcocog_tiny"))
    assert "generated" in row
    assert row.endswith("detect, ablate")


def python(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    root = Path(cli.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=60, check=False, **options
    )


def test_nothing_heavy_is_imported_for_help() -> None:
    code = f"""
import sys
from core_bench.cli import main
import core_bench.config, core_bench.registry
try:
    main(["--help"])
except SystemExit as stop:
    assert stop.code == 0, stop.code
print([name for name in "{HEAVY}".split() if name in sys.modules])
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(flag in done.stdout for flag in ("--keep", "--ablate", "--allow-overlap", "leaderboard"))


def test_a_mistake_in_a_run_is_found_before_torch_loads() -> None:
    code = f"""
import sys
from core_bench.cli import main
from core_bench import registry
registry.bundled_checkpoint = lambda name: None
codes = [main({RUN} + words) for words in (["hybrid", "--keep", "110%"], ["dense", "--tasks", "nope"])]
print(codes, [name for name in ("torch", "transformers") if name in sys.modules])
"""
    done = python("-c", code)
    assert done.stdout == "[2, 2] []\n"
    assert done.stderr.count("\n") == 2


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [sys.executable, "-m", "core_bench", "tasks"], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(cli.__file__).parent.parent)}, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (process.returncode, process.stderr) == (141, "")
