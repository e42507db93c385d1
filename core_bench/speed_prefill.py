"""`speed --what prefill`: the language model's prefill, dense and hybrid side by side, over prompt lengths.

Every arm is first shown bit-identical to the model's full forward under the same plan, which warms it up too; then
the arms take turns. The report puts the ideal beside the measured: the speed-up of attention if only visible (query,
key) pairs cost time, and the Amdahl bound of prefill with the share of time that attention takes in the dense arm.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from core_bench.arms import Arm
from core_bench.attention import language_model
from core_bench.kernels.hybrid_attention import choose
from core_bench.model_wrappers.base import ModelWrapper
from core_bench.prefill import LanguagePrefill, amdahl_bound, ideal_speedup, time_interleaved
from core_bench.progress import track
from core_bench.prompts import Timed, prompt_inputs
from core_bench.randomweights import RandomModel
from core_bench.speedrows import COMPILED, Column, Row, finite, ideal_cell, measured, share_cell, speedup_cell

ROUNDS = 5  # at least 3 where one dense pass takes long
READING = (
    "medians of interleaved passes; IQR of the paired speed-ups. Ideal: dense over visible pairs. "
    "Amdahl bound: prefill with attention at its ideal, from attention's share of the dense pass."
)


def sweep(
    wrapper: ModelWrapper | RandomModel,
    arms: Sequence[Arm],
    tokens: Sequence[int],
    *,
    budget_s: float,
    attention: Sequence[str] = ("auto",),
) -> tuple[list[Row], list[str]]:
    """Rows for each length in turn, shortest first, and a note on where and why the sweep stopped early.

    `arms`: the dense baseline first. It stops at the length where one dense pass takes, or by linear growth alone
    would take, more than `budget_s` seconds.
    """
    rows: list[Row] = []
    last: Timed | None = None
    with tempfile.TemporaryDirectory() as folder:
        for length in track(sorted(set(tokens)), "speed"):
            if last is None or last.expected_s(length) <= budget_s:
                inputs = prompt_inputs(wrapper, length, Path(folder))
                prefills = [LanguagePrefill(wrapper.model, inputs, impl=impl) for impl in attention]
                last = Timed(inputs["input_ids"].shape[1], prefills[0].time_ms(arms[0].plan) / 1e3)
            if last.expected_s(length) > budget_s:
                return rows, [f"stopped at {length} tokens: one dense pass takes more than {budget_s:g} s (--budget)"]
            rounds = max(3, min(ROUNDS, int(budget_s / last.seconds)))
            for prefill in prefills:
                rows += measure(prefill, arms, last.tokens, rounds)
    return rows, []


def measure(prefill: LanguagePrefill, arms: Sequence[Arm], n: int, rounds: int) -> list[Row]:
    """One row for each arm after the first, which is dense: verified, warmed up, then timed in turns."""
    names = [arm.name if arm.draw is None else f"{arm.name}#{arm.draw}" for arm in arms]
    chosen = {name: chosen_impl(prefill, arm, n) for name, arm in zip(names, arms, strict=True)}
    first_ms = {
        name: prefill.time_ms(arm.plan)
        for name, arm in zip(names, arms, strict=True)
        if set(chosen[name].split("+")) & set(COMPILED)
    }
    for arm in arms:
        prefill.verify(arm.plan)
    times = time_interleaved(prefill, {name: arm.plan for name, arm in zip(names, arms, strict=True)}, rounds)
    share = prefill.attention_share(arms[0].plan)
    rows = []
    for name, arm in zip(names[1:], arms[1:], strict=True):
        ideal = ideal_speedup(arm.plan, n)
        bound = amdahl_bound(share, ideal)
        row: Row = {
            "what": "prefill",
            "device": str(prefill.model.device),
            "dtype": str(prefill.model.dtype).removeprefix("torch."),
            "impl": prefill.impl,
            "chosen": chosen[name],
            "heads": f"{name.removeprefix('hybrid:')} ({len(arm.plan.full)} of {arm.plan.shape.size})",
            "window": arm.plan.window,
            "sink": arm.plan.sink,
            "tokens": n,
            "ideal": finite(ideal),
            "amdahl": finite(bound),
            "attention_share": share,
            "vision_ms": prefill.vision_ms,
        }
        row |= measured(times[names[0]], times[name], bound)
        rows.append(row | {"compile_ms": max(0.0, first_ms.get(name, 0.0) - row["ms"])})
    return rows


def chosen_impl(prefill: LanguagePrefill, arm: Arm, n: int) -> str:
    """The implementations that run in the arm's layers, joined by +: what `auto` takes, or the one that was named."""
    if arm.plan.is_empty or prefill.impl != "auto":
        return "stock" if arm.plan.is_empty else prefill.impl
    config = language_model(prefill.model).config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    every = {arm.plan.layer_modes(layer) for layer in range(arm.plan.shape.n_layers)}
    names = {
        choose(
            modes, n_queries=n, n_keys=n, window=arm.plan.window, sink=arm.plan.sink, head_size=size,
            dtype=prefill.model.dtype, device=torch.device(prefill.model.device),
        )
        for modes in every
    }  # fmt: skip
    return "+".join(sorted(names))


def columns() -> list[Column]:
    return [
        ("tokens", lambda r: r["tokens"]),
        ("heads full", lambda r: r["heads"]),
        ("window+sink", lambda r: f"{r['window']}+{r['sink']}"),
        ("impl", lambda r: r["impl"] if r["impl"] == r["chosen"] else f"{r['impl']}: {r['chosen']}"),
        ("dense ms", lambda r: f"{r['dense_ms']:.1f}"),
        ("hybrid ms", lambda r: f"{r['ms']:.1f}"),
        ("speed-up", speedup_cell),
        ("IQR", lambda r: f"{r['spread']:.2f}"),
        ("ideal attention", ideal_cell),
        ("Amdahl bound", lambda r: ideal_cell(r, "amdahl")),
        ("of bound", share_cell),
        ("attention share", lambda r: f"{r['attention_share']:.0%}"),
        ("vision ms", lambda r: f"{r['vision_ms']:.1f}"),
    ]
