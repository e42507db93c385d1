"""Several processes do the work of one: the same rows and scores, whoever dies in between."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_bench.errors import UserError
from core_bench.runfolder import RunFolder
from core_bench.team import Team, this_team, weight

Launch = Callable[..., "subprocess.Popen[str]"]


@given(costs=st.lists(st.integers(0, 9), max_size=40), size=st.integers(1, 6))
def test_every_item_has_one_process_and_the_dear_ones_are_spread(costs: list[int], size: int) -> None:
    items = list(enumerate(costs))
    shares = [Team(rank, size).share(items, lambda item: item[1]) for rank in range(size)]
    assert sorted(item for share in shares for item in share) == items
    assert all(share == sorted(share) for share in shares), "in their order"
    loads = [sum(cost for _, cost in share) for share in shares]
    assert max(loads) - min(loads) <= 2 * max(costs, default=0)


def test_samples_are_weighed_by_their_files(task: Path) -> None:
    from core_bench.registry import load_tasks

    samples = load_tasks((str(task),), "dense", False)[0].samples("tested", data_dir=None)
    sizes = [(task.parent / f"tested{number}.png").stat().st_size for number in range(4)]
    assert [weight(sample) for sample in samples] == sizes
    (task.parent / "tested2.png").unlink()
    assert weight(samples[2]) == 0


@pytest.mark.parametrize(("environment", "missing"), [({"WORLD_SIZE": "2"}, "RANK=None"), ({"WORLD_SIZE": "x"}, "x")])
def test_half_a_launcher_is_refused(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], missing: str) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    this_team.cache_clear()
    try:
        with pytest.raises(UserError, match=missing):
            this_team()
    finally:
        monkeypatch.undo()
        this_team.cache_clear()
    assert this_team() == Team()


def test_what_another_process_left_is_taken_over_once(tmp_path: Path) -> None:
    """Killed between the copy and the removal, its rows stand in both files."""
    row = {"task": "t", "id": "1", "cluster": "1", "arm": "dense", "draw": None, "failure": "no"}
    with RunFolder.open(tmp_path / "out", {"a": 1}) as folder:
        folder.append(row)
    both = [row, {**row, "id": "2"}]
    left = tmp_path / "out" / "samples.3.jsonl"
    left.write_text("".join(json.dumps(one) + "\n" for one in both) + '{"task": "t", "id": "3", "clu')
    with RunFolder.open(tmp_path / "out", {"a": 1}) as folder:
        assert folder.rows == both
    assert not left.exists()
    with RunFolder.open(tmp_path / "out", {"a": 1}) as folder:
        folder.arrange(lambda one: -int(one["id"]))
        folder.append({**row, "id": "0"})
    with RunFolder.open(tmp_path / "out", {"a": 1}) as folder:
        assert [one["id"] for one in folder.rows] == ["2", "1", "0"]


@pytest.fixture
def launch(checkpoint: Path, task: Path, tmp_path: Path) -> Launch:
    """launch(processes, mode, out, *flags): torchrun, or python alone for one process. 8 samples, 24 if dense."""
    lines = (task.parent / "tested.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    more = [{**row, "id": f"{row['id']}-{copy}"} for copy in range(6) for row in rows]
    for split in ("found", "tested"):
        (task.parent / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in more))

    def start(processes: int, mode: str, out: str, *flags: str) -> subprocess.Popen[str]:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        words = [*(launcher if processes > 1 else []), "-m", "core_bench", "--model", "qwen3vl", "--device", "cpu"]
        words += ["--checkpoint", str(checkpoint), "--mode", mode, "--tasks", str(task), "--allow-overlap"]
        environment = {**os.environ, "CORE_BENCH_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
        words += [] if mode == "dense" else ["--limit", "8"]
        command = [sys.executable, *words, "--out", str(tmp_path / out), *flags]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=environment, **pipes)

    return start


def untimed(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    return [{**row, "times": None} for row in rows]


def metrics(folder: Path) -> dict[str, Any]:
    record = json.loads((folder / "record.json").read_text())
    assert record["run"]["complete"]
    arms = {arm: body["metrics"] for task in record["tasks"].values() for arm, body in task["arms"].items()}
    return {"arms": arms, "ram": record.get("ram")}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["detect", "dense", "ablate", "hybrid"])
def test_two_processes_give_the_scores_of_one(launch: Launch, tmp_path: Path, mode: str) -> None:
    flags: list[str] = []
    if mode in ("ablate", "hybrid"):
        assert launch(2, "detect", "found").wait(timeout=300) == 0
        flags = ["--heads", str(tmp_path / "found" / "heads.tsv")]
    for processes, out in ((2, "two"), (1, "one")):
        printed, said = (run := launch(processes, mode, out, *flags)).communicate(timeout=300)
        assert run.returncode == 0, said
        assert printed.count("pictures: n ") == 1, "the leader alone prints"
        note = "2 processes share one device, so prefill is not timed"
        assert (note in said) == (processes == 2 and mode in ("dense", "hybrid"))
    assert untimed(tmp_path / "two") == untimed(tmp_path / "one")
    assert metrics(tmp_path / "two") == metrics(tmp_path / "one")
    assert sorted(path.name for path in (tmp_path / "two").glob("samples*")) == ["samples.jsonl"]


@pytest.mark.slow
def test_a_mistake_is_told_once(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    run = launch(2, "dense", "out")
    said = run.communicate(timeout=300)[1]
    assert run.returncode != 0
    assert sum("core_bench: error: --out" in line for line in said.splitlines()) == 1, said


@pytest.mark.slow
def test_killed_processes_lose_and_repeat_nothing(launch: Launch, tmp_path: Path) -> None:
    """One of 2 processes is killed again and again, and at last 3 finish, against an undisturbed run."""
    whole = launch(1, "dense", "whole")
    said = whole.communicate(timeout=300)[1]
    assert whole.returncode == 0, said
    dice, out = random.Random(5), tmp_path / "killed"
    for attempt in range(4):
        run = launch(2, "dense", "killed")
        wait_for_rows(out, min(23, count(out) + dice.randint(1, 4)), run)
        victims = children(run.pid)
        if run.poll() is None and victims:
            os.kill(victims[attempt % len(victims)], signal.SIGKILL)
        began = time.monotonic()
        run.communicate(timeout=60)
        assert time.monotonic() - began < 60
        if run.returncode == 0:
            break
        before = {tuple(sorted(row.items())) for row in rows_so_far(out)}
        assert len(before) == count(out), "no row twice"
    last = launch(3, "dense", "killed")
    said = last.communicate(timeout=300)[1]
    assert last.returncode == 0, said
    assert untimed(out) == untimed(tmp_path / "whole")
    assert metrics(out) == metrics(tmp_path / "whole")


def rows_so_far(out: Path) -> list[dict[str, Any]]:
    lines = [line for path in out.glob("samples*.jsonl") for line in path.read_text().splitlines(keepends=True)]
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [{"id": row["id"], "arm": row["arm"], "prediction": row.get("prediction")} for row in rows]


def count(out: Path) -> int:
    return len({(row["id"], row["arm"]) for row in rows_so_far(out)})


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


def wait_for_rows(out: Path, n: int, run: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 240
    while count(out) < n and run.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
