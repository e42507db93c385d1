"""A real run, killed at moments from its start to the writing of its record, ends as an undisturbed one does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core_bench.results import strip_times, verify_record

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
SAMPLES, RECORD = Path("out/samples.jsonl"), Path("out/record.json")

# Kills its process at the first event whose text matches, in the middle of unchanged code.
KILLED_AT = """
import os, signal, sys
event, part = sys.argv[1:3]
def hook(name, args):
    if name == event and any(part in str(arg) for arg in args):
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
from core_bench.cli import main
sys.exit(main(sys.argv[3:]))
"""


class Run:
    """The same command in one folder, again and again. Paths in it are relative, so that records can be compared."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.words = ["--model", "qwen3vl", "--checkpoint", str(checkpoint), "--device", "cpu", "--mode", "ablate"]
        self.words += ["--tasks", "core_refcocog_tiny", "--limit", "5", "--out", "out"]

    def start(self, *python: str) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "CORE_BENCH_CACHE": "cache", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, *python, *self.words],
            cwd=self.folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def killed_at(self, event: str, part: str) -> None:
        child = self.start("-c", KILLED_AT, event, part)
        _, errors = child.communicate(timeout=120)
        assert child.returncode == -signal.SIGKILL, f"{event} {part} did not come: {errors}"

    def stopped_when(self, moment: Callable[[], bool], number: int) -> tuple[int, str]:
        child = self.start("-m", "core_bench")
        deadline = time.monotonic() + 120
        while child.poll() is None and not moment() and time.monotonic() < deadline:
            time.sleep(0.002)
        assert child.poll() is None, "ended before the moment came"
        child.send_signal(number)
        _, errors = child.communicate(timeout=120)
        return child.returncode, errors

    def finish(self) -> str:
        child = self.start("-m", "core_bench")
        tables, errors = child.communicate(timeout=300)
        assert child.returncode == 0, errors
        return tables

    def size(self, pattern: str) -> int:
        return sum(path.stat().st_size for path in self.folder.glob(pattern))

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / SAMPLES).read_text().splitlines()]

    @property
    def record(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / RECORD).read_text()))

    def result(self) -> Any:
        record = strip_times(self.record)
        record["environment"] = record["environment"] | {"commit": None}  # somebody may commit meanwhile
        heads = {path.name: path.read_bytes() for path in self.folder.glob("cache/heads/*/heads.*")}
        return record, [{**row, "times": None} for row in self.rows], heads


@pytest.fixture(scope="module")
def whole(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("runs") / "whole", checkpoint)
    run.finish()
    return run


def test_killed_at_twelve_moments(whole: Run, checkpoint: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "killed", checkpoint)
    began = time.monotonic()
    code, _ = run.stopped_when(lambda: time.monotonic() - began > 0.3, signal.SIGKILL)  # imports
    assert code == -signal.SIGKILL
    run.killed_at("open", "model.safetensors")  # the checkpoint is hashed
    run.killed_at("os.rename", "detect-")  # pictures for detection are written
    seen = run.size("cache/heads/*/*/samples.jsonl")
    code, _ = run.stopped_when(lambda: run.size("cache/heads/*/*/samples.jsonl") > seen, signal.SIGKILL)  # detection
    assert code == -signal.SIGKILL
    run.killed_at("os.rename", "heads.json")  # the head table is there, what it came from is not
    run.killed_at("os.rename", "out/settings.json")  # the folder is there, bound to nothing
    for _ in range(3):  # between samples and arms
        seen = run.size("out/samples.jsonl")
        code, _ = run.stopped_when(lambda seen=seen: run.size("out/samples.jsonl") > seen, signal.SIGKILL)  # type: ignore[misc]
        assert code == -signal.SIGKILL
        assert run.size("out/samples.jsonl") > seen, "every start gets on"
    with (run.folder / SAMPLES).open("ab") as file:
        file.write(b'{"task": "core_refcocog_tiny", "id": "ev')  # as a kill within a write leaves it
    run.killed_at("os.rename", "cache/controls")  # the image-blind control is measured, not kept
    for _ in range(2):
        run.killed_at("os.rename", "out/record.json")  # the record is written beside its place
    assert not (run.folder / RECORD).exists()
    tables = run.finish()
    verify_record(run.record, run.rows)
    assert run.result() == whole.result()
    assert run.finish() == tables


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_stopped_by_a_signal(whole: Run, checkpoint: Path, tmp_path: Path, number: int, code: int) -> None:
    run = Run(tmp_path / "stopped", checkpoint)
    came, errors = run.stopped_when(lambda: run.size("out/samples.jsonl") > 0, number)
    assert came == code, errors
    assert errors.splitlines()[-1].endswith("; the same command goes on from out")
    assert "Traceback" not in errors
    assert run.record["run"]["complete"] is False
    assert 0 < len(run.rows) < len(whole.rows)
    run.finish()
    assert run.result() == whole.result()
