"""PyTorch's FlexAttention: one compiled kernel for all heads, the exact rule as a mask function.

Which tiles a head visits is worked out from lengths alone (`tile_rule`), mode by mode, and handed over as block
indices: `create_block_mask` would evaluate the rule on every (query, key) pair first, 64 GiB at 32K tokens on the CPU.
Only tiles that the rule cuts are masked pair by pair.

A compiled kernel belongs to one set of shapes (`dynamic=False`), so lengths are padded up to buckets; window, sink,
offset, modes and key ranges are tensors that the kernel reads, and need no kernel of their own.

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size, T query tiles, C key tiles,
X modes.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from core_bench.kernels.hybrid_attention.call import Call, Ranges

TILE = 128
MODES = ("full", "stream", "off", "blind")
MAX_KERNELS = 256  # compiled kernels kept a process; PyTorch's own limit, 8, is less than a length sweep needs


class Tiles(NamedTuple):
    """How many key tiles each query tile visits, and which, those cut by the rule apart from those wholly visible."""

    cut_count: Tensor
    cut_index: Tensor
    whole_count: Tensor
    whole_index: Tensor


def why_not(device: torch.device) -> str | None:
    """The reason why FlexAttention cannot compile for `device`, if there is one."""
    if device.type == "cuda":
        return None if find_spec("triton") is not None else "it compiles through Triton, which is not installed"
    if device.type != "cpu" or sys.platform == "darwin":
        return f"PyTorch compiles it for CUDA and for x86 CPUs, not for {device.type} on {sys.platform}"
    if "AVX" not in torch.backends.cpu.get_cpu_capability():
        return "PyTorch compiles it for CPUs with AVX2 or AVX-512"
    compilers = (os.environ.get("CXX", ""), "g++", "clang++")
    return None if any(map(shutil.which, compilers)) else "it needs a C++ compiler (g++)"


def hybrid_attention_flex(call: Call) -> Tensor:
    """Returns [B, H, N, D] in the dtype of q: float32, bfloat16 or float16. The first call at new shapes compiles."""
    if call.q_BHND.dtype == torch.float64:
        raise RuntimeError("impl: 'flex' compiles no kernel for float64")
    with torch._dynamo.config.patch(recompile_limit=MAX_KERNELS, accumulated_recompile_limit=MAX_KERNELS):
        return _padded(_compiled(), call)


def hybrid_attention_flex_uncompiled(call: Call) -> Tensor:
    """The same without a kernel, for tests: any floating dtype, O(N x M) memory, block indices are not read."""
    return _padded(_attend, call)


@cache
def _compiled() -> Callable[..., Tensor]:
    compiled: Callable[..., Tensor] = torch.compile(_attend, dynamic=False, fullgraph=True)
    return compiled


def _padded(attend: Callable[..., Tensor], call: Call) -> Tensor:
    """Lengths up to their buckets, head sizes up to a power of two, on to `attend`, and back."""
    device, blind_BM = call.q_BHND.device, call.blind_keys_BM
    N, M, value_size = call.q_BHND.shape[2], call.k_BKMD.shape[2], call.v_BKMD.shape[3]
    n_queries, n_keys = bucket(N), bucket(M)
    rule = (N, M, call.window, call.sink, call.q_offset, call.kv_range_B2)
    tiles = _known_tiles(*rule, device) if blind_BM is None else _ordered(*tile_rule(*rule, blind_BM, device))
    mode_H = torch.tensor([MODES.index(mode) for mode in call.modes], device=device)
    out_BHND = attend(
        _grown(call.q_BHND, n_queries),
        _grown(call.k_BKMD, n_keys),
        _grown(call.v_BKMD, n_keys),
        Tiles(*(x.index_select(1, mode_H) for x in tiles)),
        mode_H,
        torch.tensor([call.window, call.sink, call.q_offset], device=device),
        torch.tensor(call.kv_range_B2, device=device),
        None if blind_BM is None else pad(blind_BM, (0, n_keys - M)),
        call.scale,
    )
    return out_BHND[:, :, :N, :value_size]


def _attend(
    q_BHND: Tensor,
    k_BKMD: Tensor,
    v_BKMD: Tensor,
    tiles: Tiles,
    mode_H: Tensor,
    rule_3: Tensor,
    kv_range_B2: Tensor,
    blind_BM: Tensor | None,
    scale: float,
) -> Tensor:
    def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The definition, for a pair: query number i, key position j."""
        at, start = i + rule_3[2], kv_range_B2[b, 0]
        real = (start <= j) & (j < kv_range_B2[b, 1]) & (j <= at)
        near = (at - j < rule_3[0]) | (j - start < rule_3[1])
        mode = mode_H[h]
        seen = real & ((mode == 0) | ((mode == 1) & near))
        return seen if blind_BM is None else seen | (real & (mode == 3) & ~blind_BM[b, j])

    block_mask = BlockMask.from_kv_blocks(
        *tiles,
        BLOCK_SIZE=TILE,
        mask_mod=sees,
        seq_lengths=(q_BHND.shape[2], k_BKMD.shape[2]),
        compute_q_blocks=False,  # they serve the backward pass
    )
    group = q_BHND.shape[1] // k_BKMD.shape[1]
    options: Any = {} if group & (group - 1) == 0 else {"FORCE_USE_FLEX_ATTENTION": True}  # its decode kernel needs 2^n
    out: Tensor = flex_attention(
        q_BHND,
        k_BKMD,
        v_BKMD,
        block_mask=block_mask,
        scale=scale,
        enable_gqa=group > 1,
        kernel_options=options,
    )
    return out


def bucket(length: int) -> int:
    """`length` rounded up so that few lengths share a kernel: 1, else whole tiles, at most an eighth more."""
    if length == 1:
        return 1
    step = max(TILE, 1 << max(length.bit_length() - 4, 0))
    return -(-length // step) * step


def _grown(x: Tensor, length: int) -> Tensor:
    """Zeros behind `x` [B, heads, n, size] up to `length` and a power of two of at least 16."""
    size = max(16, 1 << (x.shape[3] - 1).bit_length())
    return pad(x, (0, size - x.shape[3], 0, length - x.shape[2]))


@lru_cache(maxsize=8)
def _known_tiles(
    n_queries: int,
    n_keys: int,
    window: int,
    sink: int,
    q_offset: int,
    kv_range_B2: Ranges,
    device: torch.device,
) -> Tiles:
    """Layers of one forward share them, whatever their heads' modes."""
    return _ordered(*tile_rule(n_queries, n_keys, window, sink, q_offset, kv_range_B2, None, device))


def tile_rule(
    n_queries: int,
    n_keys: int,
    window: int,
    sink: int,
    q_offset: int,
    kv_range_B2: Ranges,
    blind_BM: Tensor | None,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """For each mode, which (query tile, key tile) hold a visible pair, and which hold only such: bool [B, X, T, C].

    From the corners of a tile: i - j takes every value between the first query minus the last key and the last query
    minus the first key. Queries and keys that only pad the last tiles count neither way.
    """
    B = len(kv_range_B2)
    first_T1 = q_offset + TILE * torch.arange(-(-bucket(n_queries) // TILE), device=device)[:, None]
    last_T1 = (first_T1 + TILE - 1).clamp(max=q_offset + n_queries - 1)
    low_C = TILE * torch.arange(-(-bucket(n_keys) // TILE), device=device)
    range_B2 = torch.tensor(kv_range_B2, device=device)
    start_B11, end_B11 = range_B2[:, :1, None], range_B2[:, 1:, None]
    # The real keys of each tile, first and last; what the tile holds beyond them makes it a cut one.
    first_key, last_key = torch.maximum(low_C, start_B11), torch.minimum(low_C + TILE, end_B11) - 1
    real = (low_C >= start_B11) & (low_C + TILE <= end_B11)
    some = (first_key <= last_key) & (first_key <= last_T1)
    every = real & (low_C + TILE - 1 <= first_T1)
    near_some = (first_T1 - last_key < window) | (first_key - start_B11 < sink)
    near_every = (last_T1 - low_C < window) | (low_C + TILE - start_B11 <= sink)
    blind_some, blind_every = some, every
    if blind_BM is not None:
        hidden_BC = pad(blind_BM, (0, len(low_C) * TILE - n_keys)).view(B, len(low_C), TILE)
        blind_some = some & ~hidden_BC.all(-1)[:, None]
        blind_every = every & ~hidden_BC.any(-1)[:, None]
    none = torch.zeros_like(some)
    some_BXTC = torch.stack([some, some & near_some, none, blind_some], dim=1)
    every_BXTC = torch.stack([every, every & near_every, none, blind_every], dim=1)
    return some_BXTC, every_BXTC & some_BXTC


def _ordered(some_BXTC: Tensor, every_BXTC: Tensor) -> Tiles:
    """Counts [B, X, T] and indices [B, X, T, C], ascending, as BlockMask wants them."""
    cut, whole = some_BXTC & ~every_BXTC, every_BXTC
    found = []
    for chosen in (cut, whole):
        found += [chosen.sum(-1, dtype=torch.int32), (~chosen).int().argsort(dim=-1, stable=True).int()]
    return Tiles(*found)
