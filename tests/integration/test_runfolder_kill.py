"""A run that is killed at any moment and started again ends with the record of an undisturbed one."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core_bench.errors import UserError
from core_bench.results import RunFolder, strip_times
from core_bench.runfolder import load_record, load_rows

N_SAMPLES = 300
SETTINGS = {"what": "kill test"}

# Rows are long (as those of a detection run are) so that a kill can fall into the middle of a write, and the record is
# written every few rows so that it can fall into that too. Times differ from run to run, as measured ones do.
CHILD = f"""
import sys, time
from core_bench.results import RunFolder, build_record

run = dict(id="r", model="m", checkpoint="c", checkpoint_hash="h", mode="dense", seed=0, command="c", settings={{}})
environment = dict(versions={{}}, commit=None, device="cpu", threads=1, dtype="float32", attention="sdpa")

def record(rows, complete):
    return build_record(run=run, environment=environment, rows=rows, plans={{"t": {{"dense": {{}}}}}},
                        headline={{"t": "accuracy"}}, baseline="dense", complete=complete)

with RunFolder.open(sys.argv[1], {SETTINGS!r}) as folder:
    for i in range({N_SAMPLES}):
        if ("t", str(i), "dense", None) in folder.done:
            continue
        failure = "broken" if i % 11 == 0 else None
        folder.append(dict(task="t", id=str(i), cluster=str(i // 3), arm="dense", draw=None, prediction="x" * 20000,
                           target=i, scores={{}} if failure else {{"accuracy": float(i % 7 != 0)}}, failure=failure,
                           times={{"language_ms": 1000 * time.perf_counter() % 50 + 1}}))
        if i % 10 == 0:
            folder.write_record(record(folder.rows, False))
        time.sleep(0.004)
    folder.write_record(record(folder.rows, True))
"""


def start(out: Path) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(out)],
        env={"PYTHONPATH": root},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )


def finish(out: Path) -> None:
    child = start(out)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors.decode()


def wait_for_rows(samples: Path, child: subprocess.Popen[bytes], more_than: int) -> None:
    deadline = time.monotonic() + 30
    while child.poll() is None and time.monotonic() < deadline:
        if samples.exists() and samples.stat().st_size > more_than:
            return
        time.sleep(0.001)


def test_ten_kills_leave_the_record_of_an_undisturbed_run(tmp_path: Path) -> None:
    finish(tmp_path / "whole")
    out = tmp_path / "killed"
    samples, rng = out / "samples.jsonl", random.Random(5)
    kept = []
    for _ in range(10):
        before = samples.stat().st_size if samples.exists() else 0
        child = start(out)
        wait_for_rows(samples, child, before)
        time.sleep(rng.uniform(0, 0.03))
        child.kill()
        child.communicate(timeout=10)
        assert child.returncode != 0, "it was over before it could be killed: give it more samples"
        kept.append(len(load_rows(samples)))
    assert kept == sorted(set(kept)), "every start must go on where the last one stopped"
    assert kept[-1] < N_SAMPLES
    finish(out)
    assert strip_times(load_record(out / "record.json")) == strip_times(load_record(tmp_path / "whole" / "record.json"))
    assert [row["id"] for row in load_rows(samples)] == [str(i) for i in range(N_SAMPLES)]


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    child = start(out)
    try:
        wait_for_rows(out / "samples.jsonl", child, 0)
        with pytest.raises(UserError, match="another process is working there"):
            RunFolder.open(out, SETTINGS)
    finally:
        child.kill()
        child.communicate(timeout=10)
    with RunFolder.open(out, SETTINGS) as folder:
        assert 0 < len(folder.rows) < N_SAMPLES
