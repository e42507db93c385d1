"""Checks of the arguments of `hybrid_attention`; every violation raises ValueError naming the argument.

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MODES = ("full", "stream", "off", "blind")


def check_qkv(q_BHND: Tensor, k_BKMD: Tensor, v_BKMD: Tensor) -> None:
    """Shapes, dtypes and devices fit; query heads are a multiple of KV heads; there are no more queries than keys."""
    for name, x in (("q_BHND", q_BHND), ("k_BKMD", k_BKMD), ("v_BKMD", v_BKMD)):
        if x.ndim != 4:
            raise ValueError(f"{name}: expected 4 dimensions, got shape {tuple(x.shape)}")
        if x.dtype != q_BHND.dtype or x.device != q_BHND.device:
            raise ValueError(f"{name}: expected {q_BHND.dtype} on {q_BHND.device} like q, got {x.dtype} on {x.device}")
    B, H, N, D = q_BHND.shape
    K, M = k_BKMD.shape[1:3]
    if k_BKMD.shape[0] != B or k_BKMD.shape[3] != D:
        raise ValueError(f"k_BKMD: expected batch {B} and head size {D} like q, got shape {tuple(k_BKMD.shape)}")
    if v_BKMD.shape[:3] != k_BKMD.shape[:3]:
        raise ValueError(f"v_BKMD: expected {tuple(k_BKMD.shape[:3])} like k, got shape {tuple(v_BKMD.shape)}")
    if K == 0 or H % K:
        raise ValueError(f"q_BHND: expected a multiple of {K} KV heads, got {H} query heads")
    if N > M:
        raise ValueError(f"q_BHND: expected at most {M} queries (one a key), got {N}")


def check_modes(
    modes: Sequence[str], n_heads: int, window: int, sink: int, visual_BM: Tensor | None
) -> tuple[str, ...]:
    """One known mode a head, window >= 1 where a head streams, sink >= 0, visual keys given where a head is blind."""
    modes = tuple(modes)
    if len(modes) != n_heads:
        raise ValueError(f"modes: expected {n_heads} (one a query head), got {len(modes)}")
    unknown = sorted(set(modes) - set(MODES))
    if unknown:
        raise ValueError(f"modes: expected {', '.join(MODES)}, got {unknown[0]!r}")
    if "stream" in modes and window < 1:
        raise ValueError(f"window: expected at least 1 (the query itself), got {window}")
    if "stream" in modes and sink < 0:
        raise ValueError(f"sink: expected 0 or more, got {sink}")
    if "blind" in modes and visual_BM is None:
        raise ValueError("visual_BM: expected the visual keys because a head is blind, got None")
    return modes


def check_starts(start_B: Tensor | Sequence[int] | None, batch: int, n_keys: int) -> tuple[int, ...]:
    """First real key of each row as ints in [0, n_keys]; None means 0 everywhere. A tensor is copied to the host."""
    if start_B is None:
        return (0,) * batch
    starts = tuple(int(s) for s in (start_B.tolist() if isinstance(start_B, Tensor) else start_B))
    if len(starts) != batch:
        raise ValueError(f"start_B: expected {batch} (one a row), got {len(starts)}")
    if any(not 0 <= s <= n_keys for s in starts):
        raise ValueError(f"start_B: expected values in [0, {n_keys}], got {starts}")
    return starts


def check_visual(visual_BM: Tensor | None, batch: int, n_keys: int) -> None:
    if visual_BM is None:
        return
    if visual_BM.dtype != torch.bool or tuple(visual_BM.shape) != (batch, n_keys):
        raise ValueError(
            f"visual_BM: expected bool of shape {(batch, n_keys)}, got {visual_BM.dtype} {tuple(visual_BM.shape)}"
        )
