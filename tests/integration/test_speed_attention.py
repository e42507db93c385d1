"""`speed` for one layer's attention, for measuring RAM, and on random checkpoints. No test asserts a speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from core_bench import speed_attention
from core_bench.config import RunConfig
from core_bench.errors import UserError
from core_bench.heads import HeadPlan
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.prefill import LanguagePrefill
from core_bench.randomweights import SIZES, build_random, sizes_of
from core_bench.speed import implementations, run_speed
from core_bench.speed_attention import best_dense, mixes_of, parse_shape, sweep_attention
from core_bench.speed_ram import make_probe, peak_bytes, sweep_ram
from core_bench.speedrows import break_even

COLUMNS = {
    "what", "device", "dtype", "impl", "heads", "tokens", "dense_ms", "ms", "speedup", "ideal", "share_of_ideal",
    "spread", "compile_ms", "chosen",
}  # fmt: skip
FLAGS: dict[str, Any] = {
    "what": "attention", "model": "qwen3vl", "checkpoint": None, "tokens": (64, 96), "keep": "1,50%", "heads": "auto",
    "window": 16, "sink": 2, "device": "cpu", "dtype": None, "attention": "auto,reference", "shape": "4/2x16",
    "budget_s": 5.0, "json_path": None, "seed": 0,
}  # fmt: skip


def test_attention_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "speed.json"
    assert run_speed(**FLAGS | {"json_path": str(out)}) == 0
    printed = capsys.readouterr().out
    assert "4 query / 2 KV heads of 16" in printed
    assert "break-even, 1 (1 of 4), auto" in printed
    record = json.loads(out.read_text())
    assert [(r["tokens"], r["heads"], r["impl"]) for r in record["rows"]] == [
        (n, heads, impl) for n in (64, 96) for heads in ("1 (1 of 4)", "50% (2 of 4)") for impl in ("auto", "reference")
    ]
    for row in record["rows"]:
        assert set(row) >= COLUMNS
        n, full = row["tokens"], 1 if row["heads"].startswith("1 ") else 2
        causal, streaming = n * (n + 1) / 2, 18 * 19 / 2 + (n - 18) * 18
        assert row["ideal"] == pytest.approx(4 * causal / (full * causal + (4 - full) * streaming))
        assert row["speedup"] == pytest.approx(row["dense_ms"] / row["ms"])
        assert row["share_of_ideal"] == pytest.approx(row["speedup"] / row["ideal"])
        assert row["impl"] == "auto" or row["chosen"] == "reference"
        assert row["dense_impl"].startswith("sdpa")
    assert record["run"]["shape"] == "4/2x16"


def test_the_attention_sweep_stops_at_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    def quadratic(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, failed: dict[str, str]) -> Any:
        failed["odd"] = "no such kernel"
        return "made up", lambda: None, float(q.shape[2] ** 2)

    monkeypatch.setattr(speed_attention, "best_dense", quadratic)
    shape = parse_shape("4/2x16")
    mixes = mixes_of({"hybrid:1": RunConfig(model="qwen3vl", mode="hybrid", keep="1").hybrid_arms()["hybrid:1"]}, 4, 0)
    rows, notes = sweep_attention(
        shape, mixes, ["sdpa"], [300, 100, 20], window=8, sink=2, device="cpu", dtype="float32", budget_s=20.0, seed=0
    )
    assert [row["tokens"] for row in rows] == [20, 100]
    assert notes == [
        "stopped at 300 tokens: one dense call takes more than 20 s (--budget)",
        "dense baseline odd did not run: no such kernel",
    ]


def test_a_dense_baseline_that_fails_is_a_reason_never_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("no kernel\nlong story")

    x = torch.zeros(1, 1, 4, 8)
    monkeypatch.setattr(speed_attention, "dense_candidates", lambda q, k, v: [("a", broken), ("b", lambda: None)])
    failed: dict[str, str] = {}
    assert best_dense(x, x, x, failed)[0] == "b"
    assert failed == {"a": "no kernel"}
    monkeypatch.setattr(speed_attention, "dense_candidates", lambda q, k, v: [("a", broken)])
    with pytest.raises(UserError, match="no dense attention runs"):
        best_dense(x, x, x, {})


def test_break_even_is_the_length_from_which_on_it_is_faster() -> None:
    def rows(*speedups: float) -> list[dict[str, Any]]:
        return [{"heads": "1", "impl": "sdpa", "tokens": 2**i, "speedup": s} for i, s in enumerate(speedups)]

    assert break_even(rows(0.9, 1.1, 0.9, 1.1, 2.0)) == {("1", "sdpa"): 8}
    assert break_even(rows(1.2, 1.1)) == {("1", "sdpa"): 1}
    assert break_even(rows(1.2, 0.9)) == {("1", "sdpa"): None}
    assert break_even([]) == {}


def test_the_list_all_is_what_can_run_here() -> None:
    names = implementations("all", "cpu")
    assert names[0] == "auto"
    assert "sdpa" in names
    assert "reference" not in names
    assert implementations("sdpa,sdpa,reference", "cpu") == ["sdpa", "reference"]


@pytest.mark.parametrize("name", ["Qwen3-VL-4B", "LLaVA-OneVision-7B", "InternVL3.5-8B"])
def test_random_checkpoints_are_read_by_language_prefill(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One class of decoder each, thinned: the real widths take gigabytes."""
    sizes = SIZES[name]
    thin = {"hidden": 64, "intermediate": 96, "heads": sizes.heads // 4, "kv_heads": sizes.kv_heads // 4}
    if sizes.family == "qwen2":  # head size is hidden / heads there
        thin["hidden"] = thin["heads"] * 16
    if sizes.family != "qwen3_vl":
        thin["head_size"] = 16
    monkeypatch.setitem(SIZES, name, type(sizes)(**sizes.__dict__ | thin))
    made = build_random(f"random:{name}:2", device="cpu", dtype="float32", vocab=512)
    assert (made.shape.n_layers, made.shape.n_heads, made.shape.n_kv_heads) == (
        2,
        sizes.heads // 4,
        sizes.kv_heads // 4,
    )
    inputs = made.inputs(40)
    assert tuple(inputs["input_ids"].shape) == (1, 40)
    prefill = LanguagePrefill(made.model, inputs)
    plan = HeadPlan.hybrid(made.shape, [(0, 1)], window=8, sink=2)
    prefill.verify(HeadPlan.empty(made.shape))
    prefill.verify(plan)
    assert not torch.equal(prefill.logits(plan), prefill.logits(HeadPlan.empty(made.shape)))


def test_random_sizes_count_the_published_parameters() -> None:
    """Embedding, attention and MLP weights from the table, against the sizes in the models' names (text side)."""
    billions = {"Qwen3-VL-4B": 4.0, "Qwen3-VL-8B": 8.2, "Qwen3-VL-32B": 32.8, "LLaVA-OneVision-7B": 7.6}
    for name, expected in billions.items():
        s, layers = sizes_of(f"random:{name}")
        attention = s.hidden * s.head_size * (2 * s.heads + 2 * s.kv_heads)
        total = layers * (attention + 3 * s.hidden * s.intermediate) + s.vocab * s.hidden * (1 if s.tied else 2)
        assert total / 1e9 == pytest.approx(expected, rel=0.02), name
    assert sizes_of("random:Qwen3-VL-32B:3")[1] == 3


def test_random_prefill_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    name = "Qwen3-VL-4B"
    thin = {"hidden": 64, "intermediate": 96, "heads": 4, "kv_heads": 2, "vocab": 512}
    monkeypatch.setitem(SIZES, name, type(SIZES[name])(**SIZES[name].__dict__ | thin))
    flags = FLAGS | {"what": "prefill", "checkpoint": f"random:{name}:2", "shape": None, "attention": "auto"}
    assert run_speed(**flags) == 0
    printed = capsys.readouterr().out
    assert "heads random (seed 0)" in printed
    assert "50% (4 of 8)" in printed


def test_ram_rows_compare_a_prefill_with_and_without_the_probe(tiny_model: Any, tiny_processor: Any) -> None:
    wrapper = Qwen3VL(tiny_model, tiny_processor)
    (row,), notes = sweep_ram(wrapper, [300], budget_s=5.0)
    assert notes == []
    assert row["heads"] == "32 query tokens"
    assert row["time_ratio"] == pytest.approx(row["ms"] / row["dense_ms"])
    assert set(row) >= COLUMNS - {"chosen"}
    assert row["plain_peak_bytes"] > 0
    assert row["extra_peak"] == pytest.approx(row["extra_peak_bytes"] / row["plain_peak_bytes"])


def test_the_probe_of_a_short_prompt_stays_inside_it() -> None:
    for n in (1, 5, 33, 400):
        probe = make_probe(n)
        probe.begin(1, n, 1)
        assert len(probe.rows) == min(n, 32)
        assert all(len(keys) > 0 for keys in probe.sets)


def test_peak_memory_is_the_most_that_tensors_took_at_once() -> None:
    """Two of three MiB at a time, beside one that was there before; what is freed again counts."""
    before = [torch.empty(1 << 20, dtype=torch.uint8)]

    def work() -> None:
        first = torch.empty(1 << 20, dtype=torch.uint8)
        second = torch.empty(1 << 20, dtype=torch.uint8)
        del first
        before.clear()
        before.append(second)
        torch.empty(1 << 20, dtype=torch.uint8)

    assert 2 << 20 <= peak_bytes(work, torch.device("cpu")) < 2.01 * (1 << 20)


def test_the_mass_of_a_long_prompt_takes_no_memory_that_grows_with_it(tiny_model: Any, tiny_processor: Any) -> None:
    rows, _ = sweep_ram(Qwen3VL(tiny_model, tiny_processor), [512, 2048], budget_s=5.0)
    short, long = (row["extra_peak_bytes"] for row in rows)
    assert long < 2 * max(short, 1 << 16)
    assert long < 0.1 * rows[1]["plain_peak_bytes"]
