"""Which implementations there are, which can run on a device, and which one `auto` takes.

An implementation is imported when it is first asked for: this package imports without Triton and without a compiler.
Its module may define `why_not(device) -> str | None`: the reason why it cannot run there, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from core_bench.kernels.hybrid_attention.call import Call, Ranges, is_dense
from core_bench.kernels.hybrid_attention.impl.flash_cpu import SHORT

SQUARES_FROM = 512  # tokens from which "sdpa" beats torch's dense attention on the CPU, up to SHORT
_HERE = "core_bench.kernels.hybrid_attention.impl"
IMPLEMENTATIONS = {
    "reference": f"{_HERE}.reference:hybrid_attention_reference",
    "sdpa": f"{_HERE}.sdpa:hybrid_attention_sdpa",
    "flex": f"{_HERE}.flex:hybrid_attention_flex",
    "triton": f"{_HERE}.triton:hybrid_attention_triton",
}


def why_not(name: str, device: torch.device | str) -> str | None:
    """The reason why implementation `name` cannot run on `device`; None if it can."""
    try:
        module = import_module(IMPLEMENTATIONS[name].partition(":")[0])
    except ImportError as error:
        return f"cannot be imported ({error})"
    ask: Callable[[torch.device], str | None] | None = getattr(module, "why_not", None)
    return None if ask is None else ask(torch.device(device))


def available(device: torch.device | str) -> tuple[str, ...]:
    """The implementations that can run on `device`, the oracle first."""
    return tuple(name for name in IMPLEMENTATIONS if why_not(name, device) is None)


def check_impl(name: str, device: torch.device | str) -> None:
    """ValueError for an unknown name ("auto" is known), RuntimeError with the reason for one that cannot run."""
    if name == "auto":
        return
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"impl: expected one of auto, {', '.join(IMPLEMENTATIONS)}, got {name!r}")
    reason = why_not(name, device)
    if reason is not None:
        raise RuntimeError(f"impl: {name!r} cannot run on {device}: {reason}")


@lru_cache(maxsize=64)
def load(name: str, device: torch.device) -> Callable[[Call], Tensor]:
    """The function behind a name; raises what `check_impl` raises."""
    check_impl(name, device)
    module, _, function = IMPLEMENTATIONS[name].partition(":")
    found: Any = getattr(import_module(module), function)
    return found


def describe(name: str, device: torch.device | str) -> str:
    """A name as records give it: for "auto", with what `choose` takes on this device where a view is cut."""
    if name != "auto":
        return name
    cut = choose(
        ("full", "stream"), n_queries=4096, n_keys=4096, window=1, sink=0, head_size=64, dtype=torch.float32,
        device=torch.device(device),
    )  # fmt: skip
    return f"auto ({cut}; dense where no view is cut)"


@lru_cache(maxsize=4096)
def choose(
    modes: tuple[str, ...],
    *,
    n_queries: int,
    n_keys: int,
    window: int,
    sink: int,
    head_size: int,
    dtype: torch.dtype,
    device: torch.device,
    q_offset: int | None = None,
    kv_range_B2: Ranges | None = None,
) -> str:
    """The implementation that `auto` takes for such a call.

    - "dense", torch's own attention, where every head sees every earlier key (a prompt no longer than window + sink, a
      decode step, a plan of full heads) and there is no padding. On the CPU not from 512 to 1,600 tokens, where "sdpa"
      computes fewer masked keys and was measured faster.
    - "triton" on CUDA, where it can run with this dtype and head size.
    - "sdpa" otherwise: on the CPU at any length beyond window + sink; the measured break-even is in docs/kernels.md.
    """
    offset = n_keys - n_queries if q_offset is None else q_offset
    ranges = kv_range_B2 or ((0, n_keys),)
    squares = device.type == "cpu" and SQUARES_FROM <= n_queries <= SHORT
    if not squares and is_dense(modes, window, sink, n_queries, n_keys, offset, ranges):
        return "dense"
    if (
        device.type == "cuda"
        and dtype != torch.float64
        and 16 <= head_size <= 256
        and why_not("triton", device) is None
    ):
        return "triton"
    return "sdpa"
