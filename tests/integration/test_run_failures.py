"""Samples that cannot be evaluated: recorded with their reason, and the run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core_bench.results import verify_record

Bench = Callable[..., Any]


def test_a_missing_file_is_one_recorded_failure(bench: Bench, task: Path) -> None:
    (task.parent / "tested1.png").unlink()
    ran = bench("dense", "--tasks", task)
    assert ran.code == 0
    failed = [row for row in ran.rows if row["failure"] is not None]
    assert [row["id"] for row in failed] == ["tested1"]
    assert str(task.parent / "tested1.png") in failed[0]["failure"]
    body = ran.record["tasks"]["pictures"]
    assert (body["n"], body["n_failed"], body["arms"]["dense"]["n_scored"]) == (4, 1, 3)
    assert "failed 1" in ran.tables
    assert bench("dense", "--tasks", task, "--strict").code == 1, "strictness is no setting: the same folder"
    assert bench("dense", "--tasks", task).code == 0


def test_a_task_without_a_scored_sample(bench: Bench, task: Path) -> None:
    for path in task.parent.glob("tested*.png"):
        path.unlink()
    ran = bench("dense", "--tasks", task)
    assert ran.code == 1
    assert ran.record["run"]["complete"]
    assert ran.record["tasks"]["pictures"]["arms"]["dense"]["n_scored"] == 0
    verify_record(ran.record, ran.rows)


def test_every_arm_records_the_failure(bench: Bench, task: Path) -> None:
    found = bench("detect", "--tasks", task, out="found")
    (task.parent / "tested0.png").write_bytes(b"not a picture")
    ran = bench("ablate", "--tasks", task, "--heads", found.folder / "heads.tsv", "--ablate", "top:2,random:2")
    assert ran.code == 0
    assert len([row for row in ran.rows if row["id"] == "tested0" and "tested0.png" in row["failure"]]) == 7
    arms = ran.record["tasks"]["pictures"]["arms"]
    assert {arm["n_failed"] for arm in arms.values()} == {1, 5}
    assert ran.record["tasks"]["pictures"]["n_failed"] == 1
    assert arms["top:2"]["delta"]["n"] == 3


def test_detection_leaves_out_what_it_cannot_measure(bench: Bench, task: Path) -> None:
    lines = task.parent / "found.jsonl"
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    rows[0]["evidence"] = []
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = bench("detect", "--tasks", task)
    assert ran.code == 0
    assert [row["failure"] is None for row in ran.rows] == [False, True, True]
    assert ran.record["ram"]["per_task"]["pictures"]["n"] == 2
    sidecar = json.loads((ran.folder / "heads.json").read_text())
    assert sidecar["samples"]["pictures"]["ids"] == ["found1", "found2"]

    for row in rows:
        row["evidence"] = []
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    none = bench("detect", "--tasks", task, out="none")
    assert none.code == 1
    assert "ram" not in none.record
    assert not (none.folder / "heads.tsv").exists()


def test_phrases_are_asked_for_only_where_there_are_some(bench: Bench, task: Path) -> None:
    ran = bench("detect", "--tasks", task, "--query", "phrase")
    assert ran.code == 1
    assert all("--query phrase" in row["failure"] for row in ran.rows)


def test_a_sample_that_cannot_be_scored(bench: Bench, task: Path) -> None:
    (task.parent / "scoring.py").write_text(
        "from core_bench.errors import SampleError\n"
        "def results(doc, said):\n"
        "    if doc['id'] == 'tested2':\n"
        "        raise SampleError('answer: expected a number, got unknown')\n"
        "    return {'right': 1.0}\n"
    )
    task.write_text(task.read_text() + "process_results: !function scoring.results\nmetric_list: [{metric: right}]\n")
    ran = bench("dense", "--tasks", task)
    assert ran.code == 0
    assert [row["failure"] for row in ran.rows if row["failure"]] == ["answer: expected a number, got unknown"]
    assert ran.record["tasks"]["pictures"]["arms"]["dense"]["metrics"]["right"]["value"] == 1.0


@pytest.mark.parametrize("result", ["{}", "{'right': float('nan')}", "None"])
def test_a_scoring_function_that_gives_nothing_stops_the_run(bench: Bench, task: Path, result: str) -> None:
    (task.parent / "scoring.py").write_text(f"def results(doc, said):\n    return {result}\n")
    task.write_text(task.read_text() + "process_results: !function scoring.results\nmetric_list: [{metric: right}]\n")
    assert f"{task}:" in bench("dense", "--tasks", task).refusal


def test_running_out_of_memory_is_a_failure_of_that_sample_and_arm(
    bench: Bench, task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from core_bench import detect, running

    found = bench("detect", "--tasks", task, out="found")
    generate, calls = running.generate, []

    def sometimes(*args: Any) -> tuple[str, int | None]:
        calls.append(args)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory.\n Tried to allocate 2 GiB")
        return generate(*args)

    monkeypatch.setattr(running, "generate", sometimes)
    ran = bench("hybrid", "--tasks", task, "--heads", found.folder / "heads.tsv", "--keep", "50%")
    assert ran.code == 0
    assert [row["failure"] for row in ran.rows if row["failure"]] == ["CUDA out of memory. Tried to allocate 2 GiB"]
    assert len(ran.rows) == 8

    def never(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(detect, "measure_sample", never)
    assert bench("detect", "--tasks", task, out="again").code == 1


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device that reads at most 16 tokens at once, chunks of 32 and 12; returns the lengths that were tried."""
    import torch
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextDecoderLayer

    from core_bench import memory

    forward, tried = Qwen3VLTextDecoderLayer.forward, []  # type: Any, list[int]

    def limited(layer: Any, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        tried.append(hidden.shape[1])
        if hidden.shape[1] > 16:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(layer, hidden, *args, **kwargs)

    monkeypatch.setattr(memory, "CHUNKS", (32, 12))
    monkeypatch.setattr(Qwen3VLTextDecoderLayer, "forward", limited)
    return tried


@pytest.mark.parametrize("mode", ["detect", "dense"])
def test_a_prompt_too_long_for_the_memory_is_read_in_chunks(
    bench: Bench, task: Path, mode: str, little_memory: list[int]
) -> None:
    ran = bench(mode, "--tasks", task)
    assert ran.code == 0
    assert [row["failure"] for row in ran.rows] == [None] * len(ran.rows)
    assert {row["chunk"] for row in ran.rows} == {12}
    assert {n > 16 for n in little_memory} == {True, False}, "whole prompts were tried too"


def test_chunks_change_no_result(bench: Bench, task: Path, request: pytest.FixtureRequest) -> None:
    """Neither those that were asked for nor those that little memory led to."""
    at_once = {mode: bench(mode, "--tasks", task, out=mode) for mode in ("detect", "dense")}
    asked = {mode: bench(mode, "--tasks", task, "--prefill-chunk", 10, out=f"{mode}2") for mode in at_once}
    request.getfixturevalue("little_memory")
    forced = {mode: bench(mode, "--tasks", task, out=f"{mode}3") for mode in at_once}
    for runs, chunk in ((asked, 10), (forced, 12)):
        assert {row["chunk"] for run in runs.values() for row in run.rows} == {chunk}
        said = [row["prediction"] for row in runs["dense"].rows]
        assert said == [row["prediction"] for row in at_once["dense"].rows]
        for row, one in zip(runs["detect"].rows, at_once["detect"].rows, strict=True):
            np.testing.assert_allclose(row["ram"], one["ram"], atol=1e-5)
            np.testing.assert_allclose(row["placebo"], one["placebo"], atol=1e-5)
    assert all("chunk" not in row for run in at_once.values() for row in run.rows)


@pytest.mark.parametrize("mode", ["detect", "dense", "hybrid"])
def test_numbers_that_are_none_are_a_failure_of_that_sample(
    bench: Bench, task: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN leaves layer 3 for one of the prompts; argmax would make an answer of it."""
    import torch
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextDecoderLayer

    heads = bench("detect", "--tasks", task, out="found").folder / "heads.tsv"
    whole = bench(mode, "--tasks", task, "--heads", heads, out="whole")
    length = max(row["tokens"]["prompt"] for row in whole.rows)
    spoilt = {row["id"] for row in whole.rows if row["tokens"]["prompt"] == length}
    forward = Qwen3VLTextDecoderLayer.forward

    def breaks(layer: Any, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        out = forward(layer, hidden, *args, **kwargs)
        return out * torch.nan if layer.self_attn.layer_idx == 3 and hidden.shape[1] == length else out

    monkeypatch.setattr(Qwen3VLTextDecoderLayer, "forward", breaks)
    ran = bench(mode, "--tasks", task, "--heads", heads)
    failures = {row["id"]: row["failure"] for row in ran.rows if row["failure"]}
    assert failures.keys() == spoilt
    # Layer 3 looks at finite numbers still, layer 4 no longer.
    where = "attention is not finite from layer 4 on" if mode == "detect" else "logits are nan, from layer 3 on"
    assert set(failures.values()) == {f"the model's {where}"}
    assert [row for row in ran.rows if row["id"] not in spoilt]
    if mode != "hybrid":  # times differ
        good = [{**row, "times": None} for row in ran.rows if row["id"] not in spoilt]
        assert good == [{**row, "times": None} for row in whole.rows if row["id"] not in spoilt]


def test_the_commonest_reason_is_said(bench: Bench, task: Path) -> None:
    for name in ("tested0", "tested1"):
        (task.parent / f"{name}.png").write_bytes(b"")
    ran = bench("dense", "--tasks", task)
    assert any("2 samples failed, 1 of them so: " in line and "samples.jsonl" in line for line in ran.said)


@pytest.mark.parametrize("path", ["a\0b.png", "\ud800.png"])
def test_a_path_that_no_file_can_have(bench: Bench, task: Path, path: str) -> None:
    lines = task.parent / "tested.jsonl"
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    rows[0]["image"] = path
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = bench("dense", "--tasks", task)
    assert ran.code == 0
    assert [row["id"] for row in ran.rows if row["failure"]] == [rows[0]["id"]]
