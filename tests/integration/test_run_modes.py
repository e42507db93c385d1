"""The four modes from command line to record: rows, records, tables, and what a second call does."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core_bench import cli, headtables
from core_bench.board.schema import check_record
from core_bench.heads import HeadScores
from core_bench.results import strip_times, verify_record
from core_bench.tables import render_tables

Bench = Callable[..., Any]
DRAWS = 5


def turned(names: list[Any], by: int) -> list[Any]:
    by %= len(names)
    return names[by:] + names[:by]


def value(arm: dict[str, Any], metric: str = "exact_match") -> float:
    return float(arm["metrics"][metric]["value"])


def make_two_answers_right(rows: list[dict[str, Any]], task: Path) -> None:
    """Take the model's own answers for the right ones of two samples, and no answer of the others."""
    said = dict([(row["id"], row["prediction"]) for row in rows if not row["unparsed"]][:2])
    assert len(said) == 2
    path = task.parent / "tested.jsonl"
    docs = [json.loads(line) for line in path.read_text().splitlines()]
    for doc in docs:
        doc["answer"] = said.get(doc["id"], "never said")
    path.write_text("".join(json.dumps(doc) + "\n" for doc in docs))


def test_detect_then_ablate(bench: Bench, task: Path) -> None:
    found = bench("detect", "--tasks", task, out="found")
    assert found.code == 0
    check_record(found.record)
    assert found.record["run"]["complete"]
    assert [(row["id"], row["arm"]) for row in found.rows] == [(f"found{i}", "detect") for i in range(3)]
    scores = HeadScores.read_tsv(found.folder / "heads.tsv")
    assert (scores.ram == HeadScores.read_tsv(found.folder / "heads.pictures.tsv").ram).all()
    np.testing.assert_allclose(scores.ram, found.record["ram"]["pooled"]["ram"], rtol=1e-6)
    np.testing.assert_allclose(scores.ram, np.mean([row["ram"] for row in found.rows], axis=0), rtol=1e-6)
    sidecar = json.loads((found.folder / "heads.json").read_text())
    assert sidecar["samples"] == {"pictures": {"ids": ["found0", "found1", "found2"],
                                               "clusters": ["found0.png", "found1.png", "found2.png"]}}  # fmt: skip
    assert sidecar["checkpoint_hash"] == found.record["run"]["checkpoint_hash"]

    dense = bench("dense", "--tasks", task, out="dense")
    make_two_answers_right(dense.rows, task)
    ran = bench("ablate", "--tasks", task, "--heads", found.folder / "heads.tsv", "--ablate", "top:25%,random:25%")
    assert ran.code == 0
    _check_ablation(ran, scores)


def _check_ablation(ran: Any, scores: HeadScores) -> None:
    record, rows = ran.record, ran.rows
    check_record(record)
    verify_record(record, rows)
    arms = record["tasks"]["pictures"]["arms"]
    assert list(arms) == ["none", "top:25%", "random:25%"]
    assert arms["none"]["plan"] == {}
    assert "delta" not in arms["none"]
    top = scores.top(12)
    assert arms["top:25%"]["plan"]["off"] == [list(head) for head in sorted(top)]
    assert arms["top:25%"]["plan"]["hold"] == "always"
    assert len(arms["random:25%"]["draws"]) == DRAWS
    for draw in arms["random:25%"]["draws"]:
        off = {tuple(head) for head in draw["plan"]["off"]}
        assert len(off) == 12
        assert not off & set(top)

    assert value(arms["none"]) == 0.5, "half of the right answers are the model's own"
    assert 0 <= value(arms["top:25%"]) < 0.5, "a quarter of the heads silenced says something else"
    drawn = [row for row in rows if row["arm"] == "random:25%"]
    assert value(arms["random:25%"]) == pytest.approx(statistics.fmean(r["scores"]["exact_match"] for r in drawn))
    delta = arms["top:25%"]["delta"]["value"]
    assert delta == pytest.approx(value(arms["top:25%"]) - value(arms["none"]))

    order = [("none", None), ("top:25%", None), *(("random:25%", draw) for draw in range(DRAWS))]
    for number in range(4):
        mine = [(row["arm"], row["draw"]) for row in rows if row["id"] == f"tested{number}"]
        assert mine == turned(order, number), "the order of the arms turns from sample to sample"
    for text in ("pictures", "none", "top:25%", "random:25% x5", "exact_match"):
        assert text in ran.tables
    assert "speed-up" not in ran.tables
    assert all(set(row["times"]) == {"generate_ms", "media_ms", "sample_ms"} for row in rows)


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_timed_modes(bench: Bench, task: Path, mode: str) -> None:
    flags: list[Any] = ["--tasks", task]
    if mode == "hybrid":
        bench("detect", "--tasks", task, out="found")
        table = task.parent.parent / "outs" / "found" / "heads.tsv"
        flags += ["--heads", table, "--keep", "10%,bottom:5", "--window", "8", "--sink", "2"]
    ran = bench(mode, *flags)
    assert ran.code == 0
    verify_record(ran.record, ran.rows)
    arms = ran.record["tasks"]["pictures"]["arms"]
    names = {"dense": ["dense"], "hybrid": ["dense", "hybrid:10%", "hybrid:bottom:5"]}[mode]
    assert list(arms) == names
    for arm in arms.values():
        assert arm["prefill"]["language_ms"]["median"] > 0
        assert arm["prefill"]["vision_ms"] > 0
        assert arm["prefill"]["n"] == arm["n_scored"] == 4
    assert "prefill ms" in ran.tables
    for name in names[1:]:
        plan = arms[name]["plan"]
        assert (plan["window"], plan["sink"], plan["hold"], len(plan["full"])) == (8, 2, "prefill", 5)
        assert arms[name]["prefill"]["speedup"]["value"] > 0
        assert arms[name]["delta"]["value"] == 0, "nothing is right in either arm"
        assert name in ran.tables
    for number in range(4):
        mine = [row["arm"] for row in ran.rows if row["id"] == f"tested{number}"]
        assert mine == turned(names, number)


def test_a_model_spread_over_devices_answers_as_on_one(
    bench: Bench, task: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine with one device accelerate puts all there: the flag is carried through."""
    one = bench("dense", "--tasks", task)
    words = ["--model", "qwen3vl", "--checkpoint", checkpoint, "--mode", "dense", "--tasks", task]
    spread = tmp_path / "spread"
    assert cli.main([str(word) for word in (*words, "--device-map", "auto", "--out", spread)]) == 0, capsys.readouterr()
    rows = [json.loads(line) for line in (spread / "samples.jsonl").read_text().splitlines()]
    assert [row["prediction"] for row in rows] == [row["prediction"] for row in one.rows]
    assert json.loads((spread / "settings.json").read_text())["device_map"] == "auto"


def test_a_finished_run_prints_its_tables_again_and_measures_nothing(
    bench: Bench, task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench("dense", "--tasks", task)
    files = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in first.folder.iterdir()}

    def measure(*_: Any) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("core_bench.evaluate._work", measure)
    again = bench("dense", "--tasks", task)
    assert (again.code, again.tables) == (0, first.tables)
    assert first.tables.rstrip("\n") == render_tables(first.record)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in first.folder.iterdir()} == files


def test_the_same_command_gives_the_same_record(bench: Bench, task: Path) -> None:
    bench("detect", "--tasks", task, out="found")
    table = task.parent.parent / "outs" / "found" / "heads.tsv"
    flags = ("--tasks", task, "--heads", table, "--ablate", "top:10%,random:10%")
    one, two = bench("ablate", *flags, out="one"), bench("ablate", *flags, out="two")
    # Somebody may commit to the source tree in between.
    records = [strip_times(ended.record) | {"environment": None} for ended in (one, two)]
    assert records[0] == records[1]
    assert (one.folder / "settings.json").read_bytes() == (two.folder / "settings.json").read_bytes()
    assert [{**row, "times": None} for row in one.rows] == [{**row, "times": None} for row in two.rows]
    other = bench("ablate", *flags, "--seed", "1", out="other")
    arms = [ended.record["tasks"]["pictures"]["arms"]["random:10%"]["draws"] for ended in (one, other)]
    assert arms[0] != arms[1], "the seed draws other random heads"


def test_generated_task_with_controls(bench: Bench, generated: Path, cache: Path) -> None:
    """Heads are detected first, on generated data too; said, cached and found again; controls beside the arms."""
    data = ("--tasks", "core_refcocog_tiny", "--limit", "2", "--data-dir", generated)
    flags = (*data, "--ablate", "top:5%", "--max-new-tokens", "1")
    first = bench("ablate", *flags)
    assert first.code == 0
    assert any("no table fits this checkpoint, so they are detected first" in line for line in first.said)
    table = next(cache.glob("heads/*/heads.tsv"))
    assert any(f"heads: {table}" in line for line in first.said)
    assert first.record["run"]["heads"]["where"] == f"cache:{table.relative_to(cache).as_posix()}"
    controls = first.record["tasks"]["core_refcocog_tiny"]["controls"]
    assert controls["chance"] == 0.125
    assert controls["image_blind"]["n"] == 2
    assert "image-blind" in first.tables
    assert "partial: limit 2" in first.tables

    written = table.read_bytes(), table.stat().st_mtime_ns
    second = bench("ablate", *flags, "--off", "blind", out="second")
    assert not any("detected first" in line for line in second.said)
    assert (table.read_bytes(), table.stat().st_mtime_ns) == written
    assert second.record["run"]["heads"] == first.record["run"]["heads"]
    assert second.record["tasks"]["core_refcocog_tiny"]["arms"]["top:5%"]["plan"]["off_kind"] == "blind"


def test_a_detection_of_other_settings_that_was_cut_short_does_not_block(
    bench: Bench, generated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from core_bench import detect

    measure_sample = detect.measure_sample
    done: list[Any] = []

    def three_then_stop(*given: Any) -> Any:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(given)
        return measure_sample(*given)

    monkeypatch.setattr(detect, "measure_sample", three_then_stop)
    flags = ("--tasks", "core_refcocog_tiny", "--data-dir", generated, "--limit", "2", "--ablate", "top:5%")
    assert bench("ablate", *flags, "--max-pixels", "65536").code == 130
    assert bench("ablate", *flags).code == 130, "started anew, with its own pixel budget"
    assert len(done) == 3


def test_a_checkpoint_without_a_table_needs_the_data_that_heads_are_found_on(bench: Bench, task: Path) -> None:
    """Not generated pictures in place of it, where the run itself has other tasks."""
    ran = bench("ablate", "--tasks", task, "--ablate", "top:5%")
    assert ran.code == 2
    assert any("detected first" in line for line in ran.said)
    assert "get " in ran.said[-1]
    assert "--data-dir DIR" in ran.said[-1]


def test_an_earlier_detection_beside_it_is_used(bench: Bench, task: Path) -> None:
    found = bench("detect", "--tasks", task, out="found")
    ran = bench("ablate", "--tasks", task, "--ablate", "top:5%")
    assert ran.code == 0
    assert f"core_bench: heads: {found.folder / 'heads.tsv'}" in ran.said


def test_a_detection_is_compared_with_the_table_that_is_known(bench: Bench, task: Path) -> None:
    cached = bench("detect", "--tasks", task, out="first")
    assert not any("rank correlation" in line for line in cached.said), "nothing to compare with"
    known = headtables.cache_folder(cached.record["run"]["checkpoint_hash"], "question", 0.0)
    shutil.copytree(cached.folder, known, ignore=shutil.ignore_patterns(".lock"))
    again = bench("detect", "--tasks", task, "--limit", "2", out="second")
    assert any("rank correlation" in line and "of the top 5 heads shared" in line for line in again.said)
    same = bench("detect", "--tasks", task, out="third")
    assert any("rank correlation 1.00, 5 of the top 5 heads shared" in line for line in same.said)
