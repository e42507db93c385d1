"""One Triton launch for all heads of all rows: each program reads its head's mode and walks only the tiles it needs.

Nothing is gathered, copied or merged, and nothing but the result is allocated. float32 inputs are multiplied as three
TF32 products (tf32x3: to float32's rounding, on the tensor cores), half-precision ones with float32 sums. Inputs may
have any strides. A head size that is no power of two is split into two powers of two (80 = 64 + 16) or padded to the
next, whichever computes less.

Needs a CUDA device, or `TRITON_INTERPRET=1` set before Python starts (slow; for tests).

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from core_bench.kernels.hybrid_attention.call import Call, Ranges
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

# Defaults by the head size they go up to, as `split` covers it, chosen by compiling: for 8.0, 8.9 and 9.0 they spill no
# registers in half precision (some bytes at head sizes between 128 and 256 before 9.0), next to none in float32, where
# every product is three.
HALF_9_0 = ((128, Config(128, 64, 8, 3)), (256, Config(128, 32, 8, 3)))
HALF_8_0 = (
    (64, Config(128, 64, 8, 3)),
    (112, Config(128, 32, 8, 3)),
    (128, Config(128, 64, 8, 3)),
    (256, Config(64, 32, 8, 2)),
)
HALF_SMALL = ((64, Config(128, 64, 8, 2)), (128, Config(64, 32, 4, 2)), (256, Config(64, 32, 8, 2)))
FLOAT = ((64, Config(32, 32, 4, 2)), (128, Config(32, 16, 4, 2)), (256, Config(16, 16, 4, 2)))
INTERPRETED = Config(32, 32, 4, 1)
MAX_HEAD_SIZE = 256


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
    table: tuple[tuple[int, Config], ...]
    if itemsize == 4:
        table = FLOAT
    else:
        table = HALF_9_0 if capability[0] in (9, 10) else HALF_8_0 if capability == (8, 0) else HALF_SMALL
    width = sum(split(head_size))
    config = next(config for limit, config in table if width <= limit)
    if n_queries <= 32:
        config = Config(16 if n_queries <= 16 else 32, min(config.block_n, 32), 4, config.stages)
    return config


@lru_cache(maxsize=256)
def _head_table(modes: tuple[str, ...], device: torch.device) -> tuple[Tensor, int]:
    """int32 [2, H]: heads, those that see without end first, and their modes; and how many these are."""
    rank = {"full": 0, "blind": 0, "stream": 1, "off": 2}
    order = sorted(range(len(modes)), key=lambda h: rank[modes[h]])
    table = torch.tensor([order, [MODE_CODES[modes[h]] for h in order]], dtype=torch.int32, device=device)
    return table, sum(mode in ("full", "blind") for mode in modes)


@lru_cache(maxsize=256)
def _range_table(kv_range_B2: Ranges, device: torch.device) -> Tensor:
    return torch.tensor(kv_range_B2, dtype=torch.int32, device=device)


def arguments(call: Call, out_BHND: Tensor, config: Config) -> dict[str, Any]:
    """Everything the kernel is called with, by the names of its parameters; the scale must be positive."""
    q, k, v = call.q_BHND, call.k_BKMD, call.v_BKMD
    B, H, N, D = q.shape
    K, M = k.shape[1:3]
    table, n_long = _head_table(call.modes, q.device)
    blind = None if call.blind_keys_BM is None else call.blind_keys_BM.to(q.device).view(torch.uint8)
    strides = {
        f"stride_{name}{axis}": stride
        for name, axes, x in (("q", "bhnd", q), ("k", "bhmd", k), ("v", "bhmd", v), ("o", "bhnd", out_BHND))
        for axis, stride in zip(axes, x.stride(), strict=True)
    }
    DA, DB = split(D)
    return {
        "q_ptr": q,
        "k_ptr": k,
        "v_ptr": v,
        "out_ptr": out_BHND,
        "heads_ptr": table,
        "range_ptr": _range_table(call.kv_range_B2, q.device),
        "blind_ptr": table if blind is None else blind,
        **strides,
        "stride_blind_b": 0 if blind is None else blind.stride(0),
        "stride_blind_m": 0 if blind is None else blind.stride(1),
        "n_long": n_long,
        "window": min(call.window, call.q_offset + N),  # all keys; keeps the kernel's sums within 32 bits
        "sink": min(call.sink, M),
        "q_offset": call.q_offset,
        "N": N,
        "B": B,
        "log2_scale": call.scale * LOG2_E,
        "H": H,
        "GROUP": H // K,
        "D": D,
        "DA": DA,
        "DB": DB,
        "HAS_BLIND": blind is not None,
        "PRECISION": "tf32x3" if q.dtype == torch.float32 else "tf32",
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
    }


def _interpreted() -> bool:
    return not isinstance(hybrid_attention_kernel, JITFunction)


def why_not(device: torch.device) -> str | None:
    """The reason why the kernel cannot run on `device`, if there is one."""
    if _interpreted():
        return None
    if device.type != "cuda":
        return f"needs a CUDA device (or TRITON_INTERPRET=1, for tests), got {device}"
    if torch.version.cuda is None:
        return "needs an NVIDIA GPU: nobody has tried the kernel on another"
    capability = torch.cuda.get_device_capability(device)
    return (
        None if capability >= (8, 0) else f"needs compute capability 8.0 or later, got {'.'.join(map(str, capability))}"
    )


def hybrid_attention_triton(call: Call, config: Config | None = None) -> Tensor:
    """Returns [B, H, N, D] in the dtype of q: a view of contiguous [B, N, H, D]. `config` sets how the launch is cut.

    ValueError for a dtype that the kernel does not compute (the interpreter multiplies bfloat16 wrongly).
    """
    q_BHND = call.q_BHND
    dtypes = tuple(dtype for dtype in DTYPES if not (_interpreted() and dtype == torch.bfloat16))
    if q_BHND.dtype not in dtypes:
        raise ValueError(f"q_BHND: triton expects {', '.join(map(str, dtypes))}, got {q_BHND.dtype}")
    B, H, N, D = q_BHND.shape
    if D > MAX_HEAD_SIZE:
        raise ValueError(f"q_BHND: triton expects a head size up to {MAX_HEAD_SIZE}, got {D}")
    if call.wants_gradients:
        raise RuntimeError("triton: computes no gradients; use torch.no_grad() or impl='sdpa'")
    out_BHND = q_BHND.new_empty(B, N, H, D).transpose(1, 2)
    if call.scale == 0:  # the kernel's maximum is taken before scaling: zero and the sign move into the queries
        call = replace(call, q_BHND=q_BHND * 0, scale=1.0)
    elif call.scale < 0:
        call = replace(call, q_BHND=-q_BHND, scale=-call.scale)
    if config is None and q_BHND.is_cuda:
        device = torch.cuda.get_device_properties(q_BHND.device)
        config = config_for((device.major, device.minor), device.name, D, q_BHND.element_size(), N)
    config = config or INTERPRETED
    grid = (B * H * math.ceil(N / config.block_m),)
    with torch.cuda.device_of(q_BHND):
        hybrid_attention_kernel[grid](
            **arguments(call, out_BHND, config), num_warps=config.warps, num_stages=config.stages
        )
    return out_BHND
