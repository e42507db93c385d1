"""`speed --what attention`: one layer's attention on random numbers, by length, head mix and implementation.

The baseline is the device's best dense attention, looked for at every length: SDPA with grouped KV heads or with KV
repeated, each of its CUDA backends by itself, and FlashAttention where it is installed. Ideal: dense over visible
(query, key) pairs, counted.

Shape suffixes: B batch, H query heads, K KV heads, N queries, D head size.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from core_bench.errors import UserError
from core_bench.heads import ArmSpec, HeadPlan, HeadShape, k_for
from core_bench.kernels.hybrid_attention import choose, hybrid_attention
from core_bench.prefill import ideal_speedup
from core_bench.progress import track
from core_bench.speedrows import COMPILED, Row, finite, in_turns, measured, timed_ms

_CUDA_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


@dataclass(frozen=True)
class AttentionShape:
    """Heads of one layer."""

    heads: int
    kv_heads: int
    head_size: int

    def __str__(self) -> str:
        return f"{self.heads}/{self.kv_heads}x{self.head_size}"


@dataclass(frozen=True)
class Mix:
    """Which heads of the layer are full, under the words that asked for them."""

    name: str
    full: frozenset[int]
    heads: int

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple("full" if h in self.full else "stream" for h in range(self.heads))

    def __str__(self) -> str:
        return f"{self.name} ({len(self.full)} of {self.heads})"


def parse_shape(text: str) -> AttentionShape:
    """ "32/8x128" is 32 query heads on 8 KV heads of size 128; UserError for anything else."""
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)x([1-9]\d*)", text)
    shape = AttentionShape(*map(int, match.groups())) if match else None
    if shape is None or shape.heads % shape.kv_heads:
        raise UserError(f"--shape: expected query heads / KV heads x head size such as 32/8x128, got {text!r}")
    return shape


def mixes_of(arms: dict[str, ArmSpec], heads: int, seed: int) -> list[Mix]:
    """One mix an arm of --keep: which heads are full is drawn, seeded, since a layer alone has no head table."""
    found = []
    for arm in arms.values():
        if arm.kind == "file":
            raise UserError("--keep: expected shares or counts with --what attention, got a head list")
        full = random.Random(seed).sample(range(heads), k_for(arm.amount, heads, "--keep"))
        found.append(Mix(arm.amount, frozenset(full), heads))
    return found


def dense_candidates(q: Tensor, k: Tensor, v: Tensor) -> Iterator[tuple[str, Callable[[], object]]]:
    """Ways to compute dense causal attention on this device, by name. Some may fail when called."""
    group = q.shape[1] // k.shape[1]

    def sdpa() -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=group > 1)

    def repeated() -> Tensor:
        keys, values = (x.repeat_interleave(group, dim=1) for x in (k, v))
        return scaled_dot_product_attention(q, keys, values, is_causal=True)

    yield "sdpa", sdpa
    if group > 1:
        yield "sdpa, KV repeated", repeated
    if q.device.type == "cuda":
        for name, backend in _CUDA_BACKENDS.items():
            yield f"sdpa, {name}", _with_backend(backend, sdpa)
        if find_spec("flash_attn") is not None:
            yield "flash_attn", _flash_attn(q, k, v)


def _with_backend(backend: SDPBackend, work: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        with sdpa_kernel(backend):
            work()

    return run


def _flash_attn(q: Tensor, k: Tensor, v: Tensor) -> Callable[[], object]:
    from flash_attn import flash_attn_func  # type: ignore[import-not-found, unused-ignore]

    q_BNHD, k_BNKD, v_BNKD = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    return lambda: flash_attn_func(q_BNHD, k_BNKD, v_BNKD, causal=True)


def best_dense(q: Tensor, k: Tensor, v: Tensor, failed: dict[str, str]) -> tuple[str, Callable[[], object], float]:
    """Name, call and milliseconds of the fastest candidate; one that cannot run is named in `failed` with why."""
    best: tuple[str, Callable[[], object], float] | None = None
    for name, work in dense_candidates(q, k, v):
        if name in failed:
            continue
        try:
            first = timed_ms(work, q.device)
        except RuntimeError as error:
            failed[name] = str(error).strip().splitlines()[0]
            continue
        ms = min(first, timed_ms(work, q.device), timed_ms(work, q.device))
        if best is None or ms < best[2]:
            best = (name, work, ms)
    if best is None:
        raise UserError(f"speed: no dense attention runs on {q.device}: {failed}")
    return best


def sweep_attention(
    shape: AttentionShape,
    mixes: Sequence[Mix],
    impls: Sequence[str],
    tokens: Sequence[int],
    *,
    window: int,
    sink: int,
    device: str,
    dtype: str,
    budget_s: float,
    seed: int,
) -> tuple[list[Row], list[str]]:
    """Rows for each length in turn, shortest first, and notes: where the sweep stopped, which baseline could not run.

    It stops at the length where one dense call takes, or by linear growth alone would take, more than `budget_s`.
    """
    rows: list[Row] = []
    failed: dict[str, str] = {}
    notes: list[str] = []
    dense_s, at = 0.0, 1
    with torch.inference_mode():
        for length in track(sorted(set(tokens)), "speed"):
            expected_s = dense_s * length / at
            if expected_s <= budget_s:
                q, k, v = _inputs(shape, length, device, dtype, seed)
                dense_name, dense, dense_ms = best_dense(q, k, v, failed)
                expected_s = dense_s = dense_ms / 1e3
                at = length
            if expected_s > budget_s:
                notes.append(f"stopped at {length} tokens: one dense call takes more than {budget_s:g} s (--budget)")
                break
            for mix in mixes:
                new = _measure(q, k, v, mix, impls, dense, window=window, sink=sink, rounds=_rounds(dense_s, budget_s))
                rows += [row | {"shape": str(shape), "dense_impl": dense_name} for row in new]
    notes += [f"dense baseline {name} did not run: {reason}" for name, reason in failed.items()]
    return rows, notes


def _rounds(dense_s: float, budget_s: float) -> int:
    """Two seconds of dense calls, between 5 and 100; 3 where one takes a good part of the budget."""
    return 3 if dense_s > budget_s / 5 else max(5, min(100, int(2 / dense_s)))


def _inputs(shape: AttentionShape, length: int, device: str, dtype: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator(device).manual_seed(seed)
    sizes = [(1, heads, length, shape.head_size) for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
    q, k, v = (torch.randn(size, generator=generator, device=device, dtype=getattr(torch, dtype)) for size in sizes)
    return q, k, v


def _measure(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mix: Mix,
    impls: Sequence[str],
    dense: Callable[[], object],
    *,
    window: int,
    sink: int,
    rounds: int,
) -> list[Row]:
    """One row an implementation; dense and all of them take turns."""
    n = q.shape[2]

    def call(impl: str) -> Callable[[], object]:
        return lambda: hybrid_attention(q, k, v, mix.modes, window=window, sink=sink, impl=impl)

    works: dict[str, Callable[[], object]] = {"": dense} | {impl: call(impl) for impl in impls}
    first_ms = {name: timed_ms(work, q.device) for name, work in works.items()}
    for work in works.values():
        work()
    times = in_turns(works, rounds, q.device)
    plan = HeadPlan.hybrid(HeadShape(1, mix.heads, k.shape[1]), [(0, h) for h in mix.full], window, sink)
    ideal = ideal_speedup(plan, n)
    rows = []
    for impl in impls:
        chosen = impl if impl != "auto" else _chosen(mix.modes, q, n, window, sink)
        row: dict[str, Any] = {
            "what": "attention",
            "device": str(q.device),
            "dtype": str(q.dtype).removeprefix("torch."),
            "impl": impl,
            "chosen": chosen,
            "heads": str(mix),
            "window": window,
            "sink": sink,
            "tokens": n,
            "ideal": finite(ideal),
            "compile_ms": 0.0,
        }
        row |= measured(times[""], times[impl], ideal)
        if chosen in COMPILED:
            row["compile_ms"] = max(0.0, first_ms[impl] - row["ms"])
        rows.append(row)
    return rows


def _chosen(modes: tuple[str, ...], q: Tensor, n: int, window: int, sink: int) -> str:
    return choose(
        modes, n_queries=n, n_keys=n, window=window, sink=sink, head_size=q.shape[3], dtype=q.dtype, device=q.device
    )
