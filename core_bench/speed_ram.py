"""`speed --what ram`: what it costs to measure attention mass beside a prefill, in time and in peak memory.

Both passes are the language model's prefill of one prompt; the second also collects, in every layer, the mass of the
last `ROWS` tokens on one evidence region and 8 placebos, as `--mode detect` does.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import torch
from torch.autograd.profiler import profile

from core_bench.heads import HeadPlan
from core_bench.model_wrappers.base import ModelWrapper
from core_bench.prefill import LanguagePrefill
from core_bench.probes import MassProbe
from core_bench.progress import track
from core_bench.prompts import Timed, prompt_inputs
from core_bench.randomweights import RandomModel
from core_bench.speedrows import Column, Row, in_turns, measured

ROWS, SETS, SET_SIZE = 32, 9, 32
MIB = 1 << 20


def sweep_ram(
    wrapper: ModelWrapper | RandomModel, tokens: Sequence[int], *, budget_s: float
) -> tuple[list[Row], list[str]]:
    """Rows for each length, shortest first, and notes. It stops where one plain prefill exceeds `budget_s` seconds."""
    rows: list[Row] = []
    last: Timed | None = None
    with tempfile.TemporaryDirectory() as folder:
        for length in track(sorted(set(tokens)), "speed"):
            if last is None or last.expected_s(length) <= budget_s:
                inputs = prompt_inputs(wrapper, length, Path(folder))
                prefill = LanguagePrefill(wrapper.model, inputs)
                last = Timed(inputs["input_ids"].shape[1], prefill.time_ms(HeadPlan.empty(wrapper.shape)) / 1e3)
            if last.expected_s(length) > budget_s:
                note = f"stopped at {length} tokens: one prefill takes more than {budget_s:g} s (--budget)"
                return rows, [note]
            rows.append(_measure(wrapper, prefill, last, budget_s))
    return rows, []


def _measure(wrapper: ModelWrapper | RandomModel, prefill: LanguagePrefill, size: Timed, budget_s: float) -> Row:
    plan, n, device = HeadPlan.empty(wrapper.shape), size.tokens, prefill.device
    probe = make_probe(n)
    works: dict[str, Callable[[], object]] = {
        "plain": lambda: prefill.time_ms(plan),
        "mass": lambda: prefill.time_ms(plan, probe),
    }
    for work in works.values():
        work()
    peaks = {name: peak_bytes(work, device) for name, work in works.items()}
    times = in_turns(works, max(3, min(15, int(budget_s / size.seconds / 2))), device)
    row: Row = {
        "what": "ram",
        "device": str(device),
        "dtype": str(wrapper.model.dtype).removeprefix("torch."),
        "impl": "attention_mass",
        "heads": f"{len(probe.rows)} query tokens",
        "tokens": n,
        "ideal": 1.0,
        "compile_ms": 0.0,
    }
    row |= measured(times["plain"], times["mass"], 1.0)
    extra = peaks["mass"] - peaks["plain"]
    return row | {
        "time_ratio": 1 / row["speedup"],
        "plain_peak_bytes": peaks["plain"],
        "extra_peak_bytes": extra,
        "extra_peak": extra / peaks["plain"],
    }


def make_probe(n: int) -> MassProbe:
    """The last `ROWS` positions as query tokens, and sets of `SET_SIZE` keys spread over the prompt of `n` tokens."""
    step = max(1, (n - SET_SIZE) // SETS)
    sets = [range(s * step, min(n, s * step + SET_SIZE)) for s in range(SETS) if s * step < n]
    return MassProbe(rows=range(max(0, n - ROWS), n), sets=sets)


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """How far the tensors in memory rose above where they stood before, by torch's own count of what it allocates."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    with _silent_stderr(), profile(profile_memory=True) as recorded:
        work()
    events = [event for event in recorded.kineto_results.events() if event.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(accumulate(sizes, initial=0))


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """The profiler says there, from C++, that there is no GPU and that older tensors are freed; errors still raise."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def columns() -> list[Column]:
    return [
        ("tokens", lambda r: r["tokens"]),
        ("rows", lambda r: r["heads"]),
        ("plain prefill ms", lambda r: f"{r['dense_ms']:.1f}"),
        ("with mass ms", lambda r: f"{r['ms']:.1f}"),
        ("time", lambda r: f"{r['time_ratio']:.2f}x"),
        ("IQR", lambda r: f"{r['spread']:.2f}"),
        ("prefill's peak MiB", lambda r: f"{r['plain_peak_bytes'] / MIB:.1f}"),
        ("extra peak MiB", lambda r: f"{r['extra_peak_bytes'] / MIB:.1f}"),
        ("extra peak", lambda r: f"{r['extra_peak']:.1%}"),
    ]
