"""Records of the bundled models: newly measured ones take the place of the published ones, whole or not at all."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core_bench.board.runs import load_run
from core_bench.bundled import claims, records
from core_bench.bundled.records import MODES, main, published
from core_bench.results import run_id

FAMILY = "qwen3vl"


def write_speed(path: Path, **run: Any) -> Path:
    row = {
        "what": "prefill", "device": "cpu", "dtype": "float32", "impl": "auto", "heads": "10% (5 of 48)",
        "tokens": 4097, "dense_ms": 20.0, "ms": 8.0, "speedup": 2.5, "spread": 0.1, "rounds": 9, "amdahl": 3.0,
    }  # fmt: skip
    path.write_text(json.dumps({"environment": {"device": "cpu"}, "run": run, "rows": [row]}))
    return path


@pytest.fixture
def measured(repo_root: Path, tmp_path: Path) -> Path:
    """As scripts/demo.sh leaves them; the runs are the published ones, without the samples that decide nothing here."""
    there = published(repo_root / "leaderboard")[FAMILY]
    out = tmp_path / "measured"
    for mode, folder in there.runs.items():
        shutil.copytree(folder, out / mode)
    run = load_run(out / "hybrid")["run"]
    write_speed(out / "speed.json", checkpoint=run["checkpoint"], checkpoint_hash=run["checkpoint_hash"])
    return out


@pytest.fixture
def board(repo_root: Path, tmp_path: Path) -> Path:
    """The committed leaderboard, and a superseded run of a bundled model beside it."""
    copy = shutil.copytree(repo_root / "leaderboard", tmp_path / "board")
    old = published(copy)[FAMILY].runs["hybrid"]
    (copy / "history" / old.name / "0123").mkdir(parents=True)
    return copy


def call(monkeypatch: pytest.MonkeyPatch, function: Callable[[], int], *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["x", *map(str, words)])
    return function()


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def edit(out: Path, mode: str, **changes: Any) -> None:
    """Of the run's settings and of the run; its id follows."""
    path = out / mode / "record.json"
    record = json.loads(path.read_text())
    record["run"]["settings"] |= changes.pop("settings", {})
    record["run"] |= changes
    record["run"]["id"] = run_id(record["run"]["model"], record["run"]["mode"], record["run"]["settings"])
    path.write_text(json.dumps(record))


def test_new_records_replace_those_of_their_family_only(
    measured: Path, board: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = published(board)
    edit(measured, "ablate", settings={"again": True})
    new = load_run(measured / "ablate")["run"]["id"]
    attention = write_speed(measured / "attention.json", shape="8/2x64")
    assert call(monkeypatch, main, measured, "--attention", attention, "--dir", board) == 0
    assert capsys.readouterr().out.count(": added\n") == 3
    after = published(board)
    assert after[FAMILY].runs["ablate"].name == new != before[FAMILY].runs["ablate"].name
    assert not before[FAMILY].runs["ablate"].exists()
    assert not list((board / "history").glob("*"))
    assert {name: one for name, one in after.items() if name != FAMILY} == {
        name: one for name, one in before.items() if name != FAMILY
    }
    assert (board / "speed" / f"{FAMILY}.json").read_bytes() == (measured / "speed.json").read_bytes()
    assert (board / "speed" / "attention.json").read_bytes() == attention.read_bytes()
    assert new in (board / "LEADERBOARD.md").read_text()
    # The claims are read off what is published.
    assert call(monkeypatch, claims.main, "--board", board, FAMILY) == 0
    assert "2.50x (Amdahl bound 3.00x)" in capsys.readouterr().out


def other_times(out: Path) -> None:
    write_speed(out / "speed.json", checkpoint=f"bundled:{FAMILY}", checkpoint_hash="other")


def unfinished(out: Path) -> None:
    edit(out, "ablate", complete=False)


def limited(out: Path) -> None:
    edit(out, "hybrid", settings={"limit": 2})


def of_a_real_checkpoint(out: Path) -> None:
    edit(out, "ablate", checkpoint="org/name", settings={"checkpoint": "org/name"})


def of_other_weights(out: Path) -> None:
    edit(out, "ablate", checkpoint_hash="other", settings={"checkpoint_hash": "other"})


def wrong_mode(out: Path) -> None:
    shutil.rmtree(out / "ablate")
    shutil.copytree(out / "hybrid", out / "ablate")


def without_times(out: Path) -> None:
    (out / "speed.json").unlink()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_times, "speed.json: expected times of bundled:qwen3vl, content "),
        (unfinished, "ablate: expected a finished run with --mode ablate"),
        (limited, "runs with a limit would replace qwen3vl-ablate-"),
        (of_a_real_checkpoint, "ablate: expected the bundled checkpoint"),
        (of_other_weights, "ablate: expected the bundled checkpoint"),
        (wrong_mode, "ablate: expected a finished run with --mode ablate"),
        (without_times, "speed.json: cannot be read"),
    ],
)
def test_what_cannot_be_published_is_one_line_and_changes_nothing(
    measured: Path, board: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    change: Callable[[Path], None], said: str,
) -> None:  # fmt: skip
    change(measured)
    before = files(board)
    assert call(monkeypatch, main, measured, "--dir", board) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("records: error: ")
    assert said in line
    assert files(board) == before


def test_runs_on_a_checkpoint_that_was_trained_anew_since_are_refused(
    measured: Path, board: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(records, "manifest", lambda: {FAMILY: {"checkpoint_hash": "new"}})
    assert call(monkeypatch, main, measured, "--dir", board) == 2
    assert "but the bundled one is new" in capsys.readouterr().err


def test_a_family_must_be_given_once_and_be_whole(
    measured: Path, board: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, main, measured, measured, "--dir", board) == 2
    assert f"one family each, got {FAMILY}, {FAMILY}" in capsys.readouterr().err
    shutil.rmtree(published(board)[FAMILY].runs[MODES[0]])
    assert call(monkeypatch, claims.main, "--board", board, FAMILY) == 2
    assert "expected one detect run of bundled:qwen3vl, got 0" in capsys.readouterr().err
