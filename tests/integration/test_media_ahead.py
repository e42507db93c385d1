"""Whole runs over videos that are read ahead."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core_bench import decoding, evaluate
from core_bench.bundled.clip import FPS
from core_bench.bundled.mp4 import write_mp4
from core_bench.results import verify_record

Bench = Callable[..., Any]

# The worker, which writes down what it reads and dies over some of it.
WATCHED = """
import os, signal, sys
sys.path[:] = sys.argv[1:]
from core_bench import decodeworker
plain = decodeworker.read_visual
def read_visual(medium, **options):
    name = os.path.basename(medium.path)
    with open(os.environ["READ_LOG"], "a") as log:
        print(name, os.getpid(), file=log)
    if name == os.environ.get("DEADLY"):
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(medium, **options)
decodeworker.read_visual = read_visual
decodeworker.serve()
"""


@pytest.fixture
def films(tmp_path: Path) -> Path:
    """A task of four short videos."""
    folder = tmp_path / "films"
    folder.mkdir()
    rng = np.random.default_rng(3)
    for number in range(4):
        write_mp4(folder / f"{number}.mp4", rng.integers(0, 256, (2, 64, 64, 3), dtype=np.uint8))
    rows = [{"id": str(n), "video": f"{n}.mp4", "question": "What is it?", "answer": "noise"} for n in range(4)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    text = "task: films\ndataset_path: rows.jsonl\ngeneration_kwargs: {max_new_tokens: 2}\n"
    (folder / "films.yaml").write_text(text)
    return folder / "films.yaml"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the worker writes what it reads, and its process's number."""
    monkeypatch.setenv("READ_LOG", str(tmp_path / "read.log"))
    monkeypatch.setattr(decoding, "COMMAND", (sys.executable, "-c", WATCHED))
    return tmp_path / "read.log"


def read_files(log: Path) -> list[str]:
    return [line.split()[0] for line in log.read_text().splitlines()]


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "times": None} for row in rows]


def test_the_same_run_as_without(bench: Bench, films: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "LONG_WAIT", 0.0)
    ahead = bench("dense", "--tasks", films, "--frames", "4", out="ahead")
    assert ahead.code == 0, ahead.said
    assert read_files(log) == ["0.mp4", "1.mp4", "2.mp4", "3.mp4"]
    verify_record(ahead.record, ahead.rows)
    assert [row["fps"] for row in ahead.rows] == [[FPS]] * 4
    wait = ahead.record["tasks"]["films"]["media_wait"]
    assert 0 < wait["share"] < 1
    assert wait["seconds"] == pytest.approx(sum(row["times"]["media_ms"] for row in ahead.rows) / 1000)
    notes = [line for line in ahead.said if "waiting for media" in line]
    assert len(notes) == 1
    assert notes[0].startswith(f"core_bench: note: films: {wait['share']:.0%} of the time")

    monkeypatch.setattr(decoding, "_is_light", lambda media: True)
    monkeypatch.setattr(evaluate, "LONG_WAIT", 1.0)
    here = bench("dense", "--tasks", films, "--frames", "4", out="here")
    assert len(read_files(log)) == 4, "read in the run's own process"
    assert untimed(here.rows) == untimed(ahead.rows)
    assert not any("waiting for media" in line for line in here.said)


def test_a_file_that_kills_its_reader_is_one_failed_sample(
    bench: Bench, films: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEADLY", "1.mp4")
    ended = bench("dense", "--tasks", films, "--frames", "2")
    assert ended.code == 0, ended.said
    failures = {row["id"]: row["failure"] for row in ended.rows}
    deadly = films.parent / "1.mp4"
    assert failures == {"0": None, "1": f"{deadly}: the process that read it died (SIGKILL)", "2": None, "3": None}
    assert ended.record["tasks"]["films"]["n_failed"] == 1


def test_what_is_done_is_not_read_again(bench: Bench, films: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = evaluate.RunFolder.append

    def interrupted_after_two(folder: Any, *rows: dict[str, Any]) -> None:
        append(folder, *rows)
        if len(folder.rows) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(evaluate.RunFolder, "append", interrupted_after_two)
    cut = bench("dense", "--tasks", films, "--frames", "2")
    assert cut.code == 130
    for process in {int(line.split()[1]) for line in log.read_text().splitlines()}:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    log.unlink()
    monkeypatch.setattr(evaluate.RunFolder, "append", append)
    assert bench("dense", "--tasks", films, "--frames", "2").code == 0
    assert read_files(log) == ["2.mp4", "3.mp4"]
