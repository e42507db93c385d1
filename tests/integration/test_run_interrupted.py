"""A run that is stopped half-way leaves a record that says so; the same command completes it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core_bench import evaluate, running
from core_bench.results import strip_times, verify_record

Bench = Callable[..., Any]


def comparable(ended: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Record and rows without times; somebody may commit to the source tree between two runs."""
    return strip_times(ended.record) | {"environment": None}, [{**row, "times": None} for row in ended.rows]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
@pytest.mark.parametrize("mode", ["detect", "dense", "hybrid"])
def test_a_signal_in_the_middle(
    bench: Bench, task: Path, monkeypatch: pytest.MonkeyPatch, mode: str, number: int, code: int
) -> None:
    flags: list[Any] = ["--tasks", task]
    if mode == "hybrid":
        found = bench("detect", "--tasks", task, out="found")
        flags += ["--heads", found.folder / "heads.tsv", "--keep", "2"]
    whole = bench(mode, *flags, out="whole")
    calls: list[dict[str, Any]] = []
    append = evaluate.RunFolder.append

    def signal_after_two(folder: Any, *rows: dict[str, Any]) -> None:
        append(folder, *rows)
        before = len(calls)
        calls.extend(rows)
        if before < 2 <= len(calls):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(evaluate.RunFolder, "append", signal_after_two)
    cut = bench(mode, *flags)
    assert cut.code == code
    assert cut.tables == ""
    assert cut.said[-1].endswith(f"the same command goes on from {cut.folder}")
    kept = cut.rows
    assert len(kept) == len(calls)
    assert cut.record["run"]["complete"] is False
    verify_record(cut.record, kept)
    assert not (cut.folder / "heads.tsv").exists(), "heads of a part are not the heads"

    monkeypatch.setattr(evaluate.RunFolder, "append", append)
    again = bench(mode, *flags)
    assert again.code == 0
    assert comparable(again) == comparable(whole)
    assert again.rows[:2] == kept, "measured once, times and all"


def test_a_signal_during_the_controls(
    bench: Bench, generated: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are there, the controls are not: the run is unfinished, and goes on with them."""
    flags = ("--tasks", "core_refcocog_tiny", "--data-dir", generated, "--limit", "1", "--max-new-tokens", "1")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    image_blind = evaluate.image_blind
    monkeypatch.setattr(evaluate, "image_blind", interrupted)
    cut = bench("dense", *flags)
    assert cut.code == 130
    assert len(cut.rows) == 1
    assert cut.record["run"]["complete"] is False

    monkeypatch.setattr(evaluate, "image_blind", image_blind)
    monkeypatch.setattr(running, "_rows", interrupted)
    again = bench("dense", *flags)
    assert again.code == 0
    assert again.record["run"]["complete"] is True
    assert again.record["tasks"]["core_refcocog_tiny"]["controls"]["image_blind"]["n"] == 1


def test_a_full_disk_is_told_and_loses_nothing(bench: Bench, task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = os.write, []

    def full_at_the_third(file: int, data: bytes) -> int:
        if b'"arm": "dense"' in data:
            calls.append(data)
            if len(calls) == 3:
                raise OSError(28, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(os, "write", full_at_the_third)
    ended = bench("dense", "--tasks", task)
    monkeypatch.setattr(os, "write", write)
    assert "No space left on device" in ended.refusal
    assert len(ended.rows) == 2
    assert ended.record["run"]["complete"] is False
    again = bench("dense", "--tasks", task)
    assert (again.code, len(again.rows)) == (0, 4)
