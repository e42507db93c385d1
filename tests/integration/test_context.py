"""The context sweep: a hybrid run for each task and length, resumable cell by cell, in one table and one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core_bench import evaluate, running
from core_bench.bundled.context import cells, main, render
from core_bench.bundled.generate import ensure
from core_bench.errors import UserError
from core_bench.registry import load_tasks
from core_bench.results import verify_record
from core_bench.runfolder import load_record, load_rows

TASK = "core_refcocog_tiny"


def rows_in(folder: Path) -> list[str]:
    return (folder / "annotations.jsonl").read_text(encoding="utf-8").splitlines()


def test_first_items_of_a_split(tmp_path: Path) -> None:
    """eval@80:3 is eval@80:5 without its last two items, pictures and names included."""
    few, more = (ensure("refcocog", f"eval@80:{n}", tmp_path) for n in (3, 5))
    assert few != more
    assert rows_in(few) == rows_in(more)[:3]
    assert len(rows_in(more)) == 5
    for picture in few.glob("*.png"):
        assert picture.name.startswith("eval@80-")
        assert picture.read_bytes() == (more / picture.name).read_bytes()
    for nonsense in ("eval@80:", "eval@80:0", "eval@80:x", "eval:3"):
        with pytest.raises(UserError, match="expected"):
            ensure("refcocog", nonsense, tmp_path)


def test_every_task_at_every_length() -> None:
    specs = load_tasks([TASK, "core_mmlongbench_doc_tiny"], "hybrid", True)
    found = [(cell.name, cell.n) for cell in cells(specs, [512, 256], [3, 9])]
    other = "core_mmlongbench_doc_tiny"
    assert found == [(f"{TASK}-256", 9), (f"{other}-256", 9), (f"{TASK}-512", 3), (f"{other}-512", 3)]
    assert {cell.n for cell in cells(specs, [512, 256], [4])} == {4}


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--tokens", "256,512", "--n", "1,2,3"], "--n: expected one number or one for each of 2 lengths, got 3"),
        (["--tokens", "256,256"], "--tokens: expected every length once"),
        (["--tasks", "core_refcocog"], "core_refcocog"),
        (["--keep", "500%"], "--keep"),
    ],
)
def test_mistakes_in_one_line(
    flags: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--tasks", TASK, "--out", str(tmp_path / "out"), *flags]) == 2
    said = capsys.readouterr().err
    assert said.startswith("context: error: ")
    assert reason in said
    assert said.count("\n") == 1


def test_sweep_stops_resumes_and_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORE_BENCH_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out"
    words = ["--tasks", TASK, "--tokens", "160,80", "--n", "2,3", "--keep", "10%", "--out", str(out)]
    generate = running.generate
    asked: list[str] = []

    def counted(*args: Any) -> tuple[str, int | None]:
        if len(asked) == 8:
            asked.append("stop")
            raise KeyboardInterrupt
        asked.append(args[4].name)
        return generate(*args)

    monkeypatch.setattr(running, "generate", counted)
    monkeypatch.setattr(evaluate, "image_blind", None)  # a control would be an error: the sweep leaves them out
    assert main(words) == 130
    assert "goes on from" in capsys.readouterr().err
    stopped = load_record(out / f"{TASK}-160" / "record.json")
    assert not stopped["run"]["complete"]
    assert [row["tokens"] for row in json.loads((out / "context.json").read_text())["rows"]] == [80]

    assert main(words) == 0
    table = capsys.readouterr().out
    assert len(asked) == 1 + 2 * (3 + 2), "what was done before is not done again"
    found = json.loads((out / "context.json").read_text())
    assert [(row["tokens"], row["n"]) for row in found["rows"]] == [(80, 3), (160, 2)]
    for row in found["rows"]:
        assert abs(row["prompt_median"] - row["tokens"]) <= 0.15 * row["tokens"]
        assert list(row["arms"]) == ["dense", "10%"]
        assert row["arms"]["dense"]["speedup"] is None
        assert row["arms"]["10%"]["speedup"]["n"] == row["n"]
        assert row["arms"]["10%"]["heads"] == 5
        folder = out / f"{TASK}-{row['tokens']}"
        record = load_record(folder / "record.json")
        verify_record(record, load_rows(folder / "samples.jsonl"))
        settings = record["run"]["settings"]
        assert settings["max_pixels"] >= 2 * 32 * 32 * row["tokens"], "no cap may shrink a clip of two frames a token"
        task = record["tasks"][TASK]
        assert row["arms"]["10%"]["score"] == task["arms"]["hybrid:10%"]["metrics"]["accuracy"]
        assert row["arms"]["10%"]["delta"] == task["arms"]["hybrid:10%"]["delta"]
        assert task.get("controls") is None
    assert found["run"]["keep"] == "10%"
    assert (found["run"]["window"], found["run"]["sink"]) == (record["run"]["settings"]["window"], 4)

    assert main(words) == 0
    assert capsys.readouterr().out == table == render(found["rows"]) + "\n"
    assert len(asked) == 11
    assert table.count("x") >= 2
    assert max(map(len, table.splitlines())) <= 120
