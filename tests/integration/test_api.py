"""The Python path: load, find_heads, apply."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import core_bench
from core_bench.errors import SampleError, UserError
from core_bench.heads import HeadPlan, HeadScores
from core_bench.taskspec import TaskSpec

Bench = Callable[..., Any]


@pytest.fixture
def wrapper(checkpoint: Path, cache: Path) -> Any:
    return core_bench.load("qwen3vl", str(checkpoint), device="cpu")


def samples_of(task: Path, split: str) -> list[Any]:
    return TaskSpec.from_file(task).samples(split)


def test_find_heads_is_the_table_of_a_detection_run(bench: Bench, wrapper: Any, task: Path) -> None:
    table = HeadScores.read_tsv(bench("detect", "--tasks", task).folder / "heads.tsv")
    for found in (
        core_bench.find_heads(wrapper, [str(task)]),
        core_bench.find_heads(wrapper, samples=samples_of(task, "found")),
    ):
        assert found.n == table.n == 3
        for name in ("ram", "stderr", "chance", "sink_corrected"):
            np.testing.assert_allclose(getattr(found, name), getattr(table, name), rtol=1e-6, atol=1e-12)
        assert found.ranking() == table.ranking()


def test_limit_and_seed(bench: Bench, wrapper: Any, task: Path) -> None:
    table = HeadScores.read_tsv(bench("detect", "--tasks", task, "--limit", "2", "--seed", "3").folder / "heads.tsv")
    by_name = core_bench.find_heads(wrapper, [str(task)], limit=2, seed=3)
    own = core_bench.find_heads(wrapper, samples=samples_of(task, "found"), limit=2, seed=3)
    assert by_name.n == own.n == 2
    for found in (by_name, own):
        np.testing.assert_allclose(found.ram, table.ram, rtol=1e-6)
        np.testing.assert_allclose(found.sink_corrected, table.sink_corrected, rtol=1e-6, atol=1e-12)


def test_find_heads_writes_nothing(wrapper: Any, task: Path, cache: Path) -> None:
    core_bench.find_heads(wrapper, [str(task)], limit=1)
    assert not cache.exists()


def test_find_heads_says_why_there_are_none(wrapper: Any, task: Path) -> None:
    lines = task.parent / "found.jsonl"
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    lines.write_text("".join(json.dumps({**row, "evidence": []}) + "\n" for row in rows))
    with pytest.raises((SampleError, UserError), match="no sample could be measured"):
        core_bench.find_heads(wrapper, [str(task)])
    with pytest.raises(UserError, match="limit"):
        core_bench.find_heads(wrapper, [str(task)], limit=0)


def test_apply_changes_logits_and_restores_them(wrapper: Any, task: Path) -> None:
    scores = core_bench.find_heads(wrapper, [str(task)], limit=2)
    inputs = wrapper.device_inputs(wrapper.prepare(samples_of(task, "tested")[0]))

    def logits() -> torch.Tensor:
        with torch.inference_mode():
            return wrapper.model(**inputs).logits

    stock = logits()
    for plan in (
        HeadPlan.hybrid(wrapper.shape, scores.top(5), window=4, sink=1),
        HeadPlan.ablation(wrapper.shape, scores.top(5)),
        HeadPlan.ablation(wrapper.shape, scores.top(5), kind="blind"),
    ):
        with core_bench.apply(wrapper.model, plan):
            assert not torch.allclose(logits(), stock)
            told = wrapper.model.generate(**inputs, max_new_tokens=2, do_sample=False)
        assert told.shape[1] == inputs["input_ids"].shape[1] + 2
        assert torch.equal(logits(), stock)
    with core_bench.apply(wrapper.model, HeadPlan.empty(wrapper.shape)):
        assert torch.equal(logits(), stock)


def test_load_refuses_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'qwen3vl'"):
        core_bench.load("qwen3v")
    with pytest.raises(UserError, match=r"no config\.json"):
        core_bench.load("qwen3vl", str(tmp_path))
    with pytest.raises(UserError, match="--dtype"):
        core_bench.load("qwen3vl", str(tmp_path), dtype="int4")


def test_loading_is_silent_where_stderr_is_no_terminal(checkpoint: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    before = logging.is_progress_bar_enabled()
    core_bench.load("qwen3vl", str(checkpoint), device="cpu")
    assert capfd.readouterr() == ("", "")
    assert logging.is_progress_bar_enabled() == before
