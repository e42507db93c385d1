"""The speed command: what it measures and prints. No test asserts a speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core_bench.arms import Arm
from core_bench.errors import UserError
from core_bench.heads import HeadPlan
from core_bench.model_wrappers.base import ModelWrapper
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.prefill import LanguagePrefill
from core_bench.prompts import prompt_of
from core_bench.speed import run_speed
from core_bench.speed_prefill import columns, measure, sweep
from core_bench.speedrows import render

COLUMNS = {
    "what", "device", "dtype", "impl", "heads", "tokens", "dense_ms", "ms", "speedup", "ideal", "share_of_ideal",
    "spread", "compile_ms", "amdahl",
}  # fmt: skip


FLAGS: dict[str, Any] = {
    "what": "attention", "model": "qwen3vl", "checkpoint": None, "tokens": (64,), "keep": "10%", "heads": "auto",
    "window": None, "sink": None, "device": "cpu", "dtype": None, "attention": "auto", "shape": None, "budget_s": 1.0,
    "json_path": None, "seed": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def wrapper(tiny_model: Any, tiny_processor: Any) -> Qwen3VL:
    return Qwen3VL(tiny_model, tiny_processor)


@pytest.fixture(scope="module")
def arms(wrapper: Qwen3VL) -> list[Arm]:
    shape = wrapper.shape
    return [
        Arm(name="dense", plan=HeadPlan.empty(shape)),
        Arm(name="hybrid:2", plan=HeadPlan.hybrid(shape, [(0, 0), (3, 1)], window=16, sink=2)),
    ]


@pytest.mark.parametrize("tokens", [64, 256, 700, 1500])
def test_the_prompt_has_about_the_tokens_asked_for(wrapper: Qwen3VL, tmp_path: Path, tokens: int) -> None:
    prepared = prompt_of(wrapper, tokens, tmp_path)
    assert abs(prepared.token_map.length - tokens) <= 24
    assert prepared.token_map.length == prepared.inputs["input_ids"].shape[1]


@pytest.mark.parametrize("tokens", [500, 2000])
def test_the_prompt_is_as_near_as_pictures_allow(untrained: ModelWrapper, tmp_path: Path, tokens: int) -> None:
    """Of LLaVA-OneVision one picture alone has more tokens than two."""
    length = prompt_of(untrained, tokens, tmp_path).token_map.length
    step = {"qwen3vl": 16, "llava_onevision": 65, "internvl": 8 * 16}[untrained.FAMILY]  # one row, tile, row of tiles
    assert abs(length - tokens) <= step


def test_rows_are_verified_interleaved_and_consistent(
    wrapper: Qwen3VL, arms: list[Arm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prompt_of(wrapper, 256, tmp_path)
    prefill = LanguagePrefill(wrapper.model, wrapper.device_inputs(prepared))
    calls: list[tuple[str, bool]] = []
    verify = prefill.verify

    def noted_verify(plan: HeadPlan) -> None:
        calls.append(("verify", plan.is_empty))
        verify(plan)

    def time_ms(plan: HeadPlan) -> float:
        calls.append(("time", plan.is_empty))
        return 30.0 if plan.is_empty else 10.0

    monkeypatch.setattr(prefill, "verify", noted_verify)
    monkeypatch.setattr(prefill, "time_ms", time_ms)
    monkeypatch.setattr(prefill, "attention_share", lambda plan: 0.75)
    n = prepared.token_map.length
    (row,) = measure(prefill, arms, n, rounds=3)
    dense_then_hybrid = [("time", True), ("time", False)]
    assert calls[:2] == [("verify", True), ("verify", False)]
    assert calls[2:] == dense_then_hybrid + dense_then_hybrid[::-1] + dense_then_hybrid
    assert set(row) >= COLUMNS
    kept = 2 * n * (n + 1) // 2 + 46 * (18 * 19 // 2 + (n - 18) * 18)
    assert row["ideal"] == pytest.approx(48 * n * (n + 1) / 2 / kept)
    assert row["ideal"] > 1
    assert row["amdahl"] == pytest.approx(1 / (0.25 + 0.75 / row["ideal"]))
    assert (row["dense_ms"], row["ms"], row["speedup"], row["spread"]) == (30.0, 10.0, 3.0, 0.0)
    assert row["share_of_ideal"] == pytest.approx(3.0 / row["amdahl"])


def test_the_sweep_stops_at_the_budget(wrapper: Qwen3VL, arms: list[Arm], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LanguagePrefill, "time_ms", lambda self, plan: float(self.inputs["input_ids"].shape[1] ** 2))
    monkeypatch.setattr(LanguagePrefill, "verify", lambda self, plan: None)
    rows, notes = sweep(wrapper, arms, [700, 128, 256], budget_s=100.0)  # 256 tokens: about 66 s, 700: about 490 s
    assert [round(row["tokens"], -1) for row in rows] == [130, 260]
    assert len(notes) == 1
    assert notes[0].startswith("stopped at 700 tokens")
    assert sweep(wrapper, arms, [700], budget_s=1.0)[0] == []


def test_a_row_that_is_not_faster_is_flagged() -> None:
    row = dict.fromkeys(COLUMNS | {"attention_share", "vision_ms", "window", "sink", "chosen"}, 1.0) | {"heads": "2"}
    assert "1.00x NOT FASTER" in render("prefill", [row], columns(), [])
    assert "NOT FASTER" not in render("prefill", [row | {"speedup": 1.5}], columns(), [])
    assert "unbounded" in render("prefill", [row | {"ideal": None}], columns(), ["stopped at 9 tokens"])
    assert render("prefill", [], columns(), ["stopped at 9 tokens"]) == "prefill\nstopped at 9 tokens"


def test_the_command_prints_a_table_and_writes_json(
    wrapper: Qwen3VL, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a saved checkpoint, as a user would name one."""
    folder = tmp_path / "model"
    wrapper.model.save_pretrained(folder)
    wrapper.processor.save_pretrained(folder)
    out = tmp_path / "speed.json"
    code = run_speed(
        what="prefill",
        model="qwen3vl",
        checkpoint=str(folder),
        tokens=(128,),
        keep="10%,5",
        heads="auto",
        window=16,
        sink=2,
        device="cpu",
        dtype=None,
        attention="sdpa",
        shape=None,
        budget_s=60.0,
        json_path=str(out),
        seed=3,
    )
    printed = capsys.readouterr().out
    assert code == 0
    assert "heads random (seed 3)" in printed
    assert "10% (5 of 48)" in printed
    record = json.loads(out.read_text())
    assert [row["heads"] for row in record["rows"]] == ["10% (5 of 48)", "5 (5 of 48)"]
    assert all(set(row) >= COLUMNS for row in record["rows"])
    assert record["run"]["checkpoint_hash"]


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--json"):
        run_speed(**FLAGS | {"json_path": str(tmp_path / "missing" / "x.json")})
    for change, said in (
        ({"attention": "sdpa,fast"}, r"--attention: expected one of .*, got 'fast'"),
        ({"attention": "triton"}, r"--attention triton: .*cannot run on cpu"),
        ({"what": "prefill", "shape": "8/2x64"}, r"--shape 8/2x64"),
        ({"shape": "8/3x64"}, r"--shape: expected .*32/8x128, got '8/3x64'"),
        ({"shape": "8x64"}, r"got '8x64'"),
        ({"keep": "9", "shape": "8/2x64"}, r"--keep: expected at most"),
        ({"checkpoint": "some/model"}, r"--checkpoint: expected random:NAME"),
        ({"what": "prefill", "checkpoint": "random:Qwen3-VL-4"}, r"did you mean 'Qwen3-VL-4B'"),
        ({"what": "prefill", "checkpoint": "random:Qwen3-VL-4B:37"}, r"expected 1 to 36 layers"),
        ({"what": "prefill", "checkpoint": "random:Qwen3-VL-4B:x"}, r"expected 1 to 36 layers"),
    ):
        with pytest.raises(UserError, match=said):
            run_speed(**FLAGS | change)
