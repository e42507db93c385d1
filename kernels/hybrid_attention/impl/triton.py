"""One Triton launch for all heads of all rows: each program reads its head's mode and walks only the tiles it needs.

Nothing is gathered, copied or merged, and nothing but the result is allocated. float32 inputs are multiplied in full
float32 (no TF32), half-precision ones with float32 sums. Inputs may have any strides. A head size that is no power of
two is split into two powers of two (80 = 64 + 16) or padded to the next, whichever computes less.

Needs a CUDA device, or `TRITON_INTERPRET=1` set before Python starts (slow; for tests).

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from core_bench.kernels.hybrid_attention.impl.triton_kernel import BLIND, FULL, OFF, STREAM, hybrid_attention_kernel

MODE_CODES = {"off": OFF.value, "stream": STREAM.value, "full": FULL.value, "blind": BLIND.value}
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class Config:
    """How a launch is cut: queries a program, keys a tile, warps, stages of the load pipeline."""

    block_m: int
    block_n: int
    warps: int
    stages: int


# Configurations measured to be the best on a GPU: (device name, head size) -> Config, half precision. None was measured
# yet: `scripts/gpu_check.sh` tries candidates and prints the line that belongs here.
TUNED: dict[tuple[str, int], Config] = {}

INTERPRETED = Config(32, 32, 4, 1)


def split(size: int) -> tuple[int, int]:
    """A head size as two powers of two (or one and 0), at least 16 each, that cover it with the least in all."""
    padded = max(16, 1 << (size - 1).bit_length())
    first = padded // 2
    second = max(16, 1 << max(size - first - 1, 0).bit_length())
    return (first, second) if first >= 16 and first + second < padded else (padded, 0)


def config_for(capability: tuple[int, int], device_name: str, head_size: int, itemsize: int, n_queries: int) -> Config:
    """The configuration of a launch: the tuned one, else a default that fits registers and shared memory there.

    `capability` as torch.cuda.get_device_capability gives it. Shared memory a block: 163 KiB on 8.0, 227 KiB on 9.0 and
    10.0, 99 KiB on 8.6, 8.9 and 12.0. Few queries (decoding) take few rows a block.
    """
    if itemsize == 2 and n_queries > 32 and (device_name, head_size) in TUNED:
        return TUNED[device_name, head_size]
    width = sum(split(head_size))
    large = capability in ((8, 0), (9, 0), (10, 0), (10, 3))
    if itemsize == 4:  # multiplied in full float32, outside the tensor cores
        config = Config(64, 32, 4, 2) if width <= 128 else Config(32, 32, 4, 1)
    elif not large:
        config = (
            Config(128, 64, 8, 2) if width <= 64 else Config(64, 32, 4, 2) if width <= 160 else Config(64, 32, 8, 1)
        )
    elif capability[0] == 8:
        config = (
            Config(128, 64, 4, 3) if width <= 64 else Config(128, 64, 8, 3) if width <= 128 else Config(64, 32, 4, 2)
        )
    elif width <= 128:
        config = Config(128, 128, 8, 2) if width > 64 else Config(128, 64, 4, 3)
    else:
        config = Config(128, 64, 8, 2)
    if n_queries <= 32:
        config = Config(16 if n_queries <= 16 else 32, min(config.block_n, 64), 4, config.stages)
    return config


@lru_cache(maxsize=256)
def _head_table(modes: tuple[str, ...], device: torch.device) -> tuple[Tensor, int]:
    """int32 [2, H]: heads, those that see without end first, and their modes; and how many these are."""
    rank = {"full": 0, "blind": 0, "stream": 1, "off": 2}
    order = sorted(range(len(modes)), key=lambda h: rank[modes[h]])
    table = torch.tensor([order, [MODE_CODES[modes[h]] for h in order]], dtype=torch.int32, device=device)
    return table, sum(mode in ("full", "blind") for mode in modes)


@lru_cache(maxsize=256)
def _range_table(kv_range_B2: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    return torch.tensor(kv_range_B2, dtype=torch.int32, device=device)


def arguments(
    q_BHND: Tensor,
    k_BKMD: Tensor,
    v_BKMD: Tensor,
    out_BHND: Tensor,
    *,
    modes: tuple[str, ...],
    window: int,
    sink: int,
    q_offset: int,
    kv_range_B2: tuple[tuple[int, int], ...],
    blind_keys_BM: Tensor | None,
    scale: float,
    config: Config,
) -> dict[str, Any]:
    """Everything the kernel is called with, by the names of its parameters."""
    B, H, N, D = q_BHND.shape
    K, M, E = v_BKMD.shape[1:]
    table, n_long = _head_table(modes, q_BHND.device)
    blind = (
        blind_keys_BM.to(q_BHND.device).view(torch.uint8) if "blind" in modes and blind_keys_BM is not None else None
    )
    strides = {
        f"stride_{name}{axis}": stride
        for name, axes, x in (
            ("q", "bhnd", q_BHND),
            ("k", "bhmd", k_BKMD),
            ("v", "bhmd", v_BKMD),
            ("o", "bhnd", out_BHND),
        )
        for axis, stride in zip(axes, x.stride(), strict=True)
    }
    DA, DB = split(D)
    EA, EB = split(E)
    return {
        "q_ptr": q_BHND,
        "k_ptr": k_BKMD,
        "v_ptr": v_BKMD,
        "out_ptr": out_BHND,
        "heads_ptr": table,
        "range_ptr": _range_table(kv_range_B2, q_BHND.device),
        "blind_ptr": table if blind is None else blind,
        **strides,
        "stride_blind_b": 0 if blind is None else blind.stride(0),
        "stride_blind_m": 0 if blind is None else blind.stride(1),
        "n_long": n_long,
        "window": min(window, M + N),  # further than any key; keeps the kernel's sums within 32 bits
        "sink": min(sink, M),
        "q_offset": q_offset,
        "N": N,
        "B": B,
        "log2_scale": scale * LOG2_E,
        "H": H,
        "GROUP": H // K,
        "D": D,
        "E": E,
        "DA": DA,
        "DB": DB,
        "EA": EA,
        "EB": EB,
        "HAS_BLIND": blind is not None,
        "PRECISION": "ieee" if q_BHND.dtype == torch.float32 else "tf32",
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
    }


def unavailable(q_BHND: Tensor) -> str | None:
    """Why these inputs cannot be computed here, or None."""
    if q_BHND.dtype not in DTYPES:
        return f"triton: expected float16, bfloat16 or float32, got {q_BHND.dtype}"
    interpreted = not isinstance(hybrid_attention_kernel, JITFunction)
    if not q_BHND.is_cuda and not interpreted:
        return f"triton: needs a CUDA device (or TRITON_INTERPRET=1), got inputs on {q_BHND.device}"
    if interpreted and q_BHND.dtype == torch.bfloat16:
        return "triton: the interpreter multiplies bfloat16 wrongly, expected float16 or float32"
    return None


def hybrid_attention_triton(
    q_BHND: Tensor,
    k_BKMD: Tensor,
    v_BKMD: Tensor,
    *,
    modes: tuple[str, ...],
    window: int,
    sink: int,
    q_offset: int,
    kv_range_B2: Sequence[tuple[int, int]],
    blind_keys_BM: Tensor | None,
    scale: float,
    config: Config | None = None,
) -> Tensor:
    """Returns [B, H, N, D] in the dtype of q: a view of contiguous [B, N, H, D]. Raises ValueError with the reason
    where these inputs cannot be computed here. `config` overrides how the launch is cut."""
    if reason := unavailable(q_BHND):
        raise ValueError(reason)
    B, H, N, D = q_BHND.shape
    out_BHND = q_BHND.new_empty(B, N, H, v_BKMD.shape[-1]).transpose(1, 2)
    if out_BHND.numel() == 0:
        return out_BHND
    if scale <= 0:  # the kernel's maximum is taken before scaling: the sign moves into the queries
        q_BHND, scale = (q_BHND * 0, 1.0) if scale == 0 else (-q_BHND, -scale)
    if config is None and q_BHND.is_cuda:
        device = torch.cuda.get_device_properties(q_BHND.device)
        head_size = max(D, v_BKMD.shape[-1])
        config = config_for((device.major, device.minor), device.name, head_size, q_BHND.element_size(), N)
    config = config or INTERPRETED
    call = arguments(
        q_BHND,
        k_BKMD,
        v_BKMD,
        out_BHND,
        modes=modes,
        window=window,
        sink=sink,
        q_offset=q_offset,
        kv_range_B2=tuple((int(start), int(end)) for start, end in kv_range_B2),
        blind_keys_BM=blind_keys_BM,
        scale=scale,
        config=config,
    )
    grid = (B * H * math.ceil(N / config.block_m),)
    with torch.cuda.device_of(q_BHND):
        hybrid_attention_kernel[grid](**call, num_warps=config.warps, num_stages=config.stages)
    return out_BHND
