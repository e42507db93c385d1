"""A detection of two tasks tells how stable the ranking is: the same whether it was interrupted or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from core_bench.results import verify_record


@pytest.fixture
def two(task: Path) -> str:
    """The small task of pictures, and the same data under a second name with other detection samples."""
    other = task.with_name("others.yaml")
    text = task.read_text().replace("task: pictures", "task: others").replace("detect: found", "detect: tested")
    other.write_text(text)
    return f"{task},{other}"


def test_resumed_equals_uninterrupted(bench: Callable, two: str) -> None:
    whole = bench("detect", "--tasks", two)
    assert whole.code == 0
    stability = whole.record["ram"]["stability"]
    assert [pair["tasks"] for pair in stability["pairs"]] == [["others", "pictures"]]
    low, high = stability["pairs"][0]["ci95"]
    assert -1 <= low <= stability["pairs"][0]["value"] <= high <= 1
    assert stability["halves"].keys() == {"others", "pictures"}
    assert "Spearman-Brown" in whole.tables
    assert "of all 2 tasks:" in whole.tables
    verify_record(whole.record, whole.rows)

    lines = (whole.folder / "samples.jsonl").read_text().splitlines(keepends=True)
    (whole.folder / "record.json").unlink()
    (whole.folder / "samples.jsonl").write_text("".join(lines[5:1:-1]))  # rows lost, and the others in another order
    resumed = bench("detect", "--tasks", two)
    assert len(resumed.rows) == len(lines)
    assert resumed.tables == whole.tables
    assert resumed.record["ram"] == whole.record["ram"]
    assert bench("detect", "--tasks", two).tables == whole.tables


def test_changed_figures_are_found(bench: Callable, two: str) -> None:
    done = bench("detect", "--tasks", two)
    record = done.record
    record["ram"]["stability"]["shared"]["expected_by_chance"] += 1
    with pytest.raises(ValueError, match=r"ram\.stability\.shared\.expected_by_chance"):
        verify_record(record, done.rows)
    del record["ram"]["stability"]
    verify_record(record, done.rows)  # records of before did not say


def test_one_task_says_nothing(bench: Callable, task: Path) -> None:
    done = bench("detect", "--tasks", task)
    assert "stability" not in done.record["ram"]
    assert "Spearman" not in done.tables
