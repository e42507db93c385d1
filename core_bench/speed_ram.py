"""`speed --what ram`: what it costs to measure attention mass beside a prefill, in time and in peak memory.

Both passes are the language model's prefill of one prompt; the second also collects, in every layer, the mass of the
last `ROWS` tokens on one evidence region and 8 placebos, as `--mode detect` does.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

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
    # Resident memory wavers by some MiB from pass to pass: the higher of two.
    peaks = {name: _higher([peak_bytes(work, device) for _ in range(2)]) for name, work in works.items()}
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
    plain, mass = peaks["plain"], peaks["mass"]
    known = plain is not None and mass is not None
    return row | {
        "time_ratio": 1 / row["speedup"],
        "plain_peak_bytes": plain,
        "extra_peak_bytes": mass - plain if known else None,  # type: ignore[operator]
        "extra_peak": (mass - plain) / plain if known and plain else None,  # type: ignore[operator]
    }


def _higher(found: list[int | None]) -> int | None:
    known = [value for value in found if value is not None]
    return max(known) if known else None


def make_probe(n: int) -> MassProbe:
    """The last `ROWS` positions as query tokens, and sets of `SET_SIZE` keys spread over the prompt of `n` tokens."""
    step = max(1, (n - SET_SIZE) // SETS)
    sets = [range(s * step, min(n, s * step + SET_SIZE)) for s in range(SETS) if s * step < n]
    return MassProbe(rows=range(max(0, n - ROWS), n), sets=sets)


def peak_bytes(work: Callable[[], object], device: torch.device) -> int | None:
    """How far memory rose above where it stood before: allocator on CUDA, resident memory on Linux, else None."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not clear.exists():
        return None
    _return_freed_memory()
    try:
        clear.write_text("5")  # the high-water mark starts anew
    except OSError:
        return None
    before = _status_bytes(status, "VmRSS")
    work()
    return _status_bytes(status, "VmHWM") - before


def _return_freed_memory() -> None:
    """glibc keeps what was freed, so that a second pass would seem to need nothing; another C library may not."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status_bytes(status: Path, name: str) -> int:
    """A memory line of /proc/self/status, which counts in kB."""
    line = next(line for line in status.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def columns() -> list[Column]:
    return [
        ("tokens", lambda r: r["tokens"]),
        ("rows", lambda r: r["heads"]),
        ("plain prefill ms", lambda r: f"{r['dense_ms']:.1f}"),
        ("with mass ms", lambda r: f"{r['ms']:.1f}"),
        ("time", lambda r: f"{r['time_ratio']:.2f}x"),
        ("IQR", lambda r: f"{r['spread']:.2f}"),
        ("prefill's peak MiB", lambda r: _mib(r["plain_peak_bytes"])),
        ("extra peak MiB", lambda r: _mib(r["extra_peak_bytes"])),
        ("extra peak", lambda r: "-" if r["extra_peak"] is None else f"{r['extra_peak']:.1%}"),
    ]


def _mib(count: int | None) -> str:
    return "-" if count is None else f"{count / MIB:.1f}"
