"""Checks of the arguments of `hybrid_attention`; every violation raises ValueError naming the argument.

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MODES = ("full", "stream", "off", "blind")


def check_qkv(q_BHND: Tensor, k_BKMD: Tensor, v_BKMD: Tensor) -> None:
    """Shapes, dtypes and devices fit; query heads are a multiple of KV heads; nothing is empty."""
    for name, x in (("q_BHND", q_BHND), ("k_BKMD", k_BKMD), ("v_BKMD", v_BKMD)):
        if x.ndim != 4:
            raise ValueError(f"{name}: expected 4 dimensions, got shape {tuple(x.shape)}")
        if x.dtype != q_BHND.dtype or x.device != q_BHND.device:
            raise ValueError(f"{name}: expected {q_BHND.dtype} on {q_BHND.device} like q, got {x.dtype} on {x.device}")
    B, H, N, D = q_BHND.shape
    K, M = k_BKMD.shape[1:3]
    if k_BKMD.shape[0] != B or k_BKMD.shape[3] != D:
        raise ValueError(f"k_BKMD: expected batch {B} and head size {D} like q, got shape {tuple(k_BKMD.shape)}")
    if v_BKMD.shape != k_BKMD.shape:
        raise ValueError(f"v_BKMD: expected {tuple(k_BKMD.shape)} like k, got shape {tuple(v_BKMD.shape)}")
    if K == 0 or H % K:
        raise ValueError(f"q_BHND: expected a multiple of {K} KV heads, got {H} query heads")
    if 0 in (B, N, M, D):
        raise ValueError(
            f"q_BHND, k_BKMD: expected no empty dimension, got {tuple(q_BHND.shape)}, {tuple(k_BKMD.shape)}"
        )


def check_modes(
    heads: Sequence[str], n_heads: int, window: int, sink: int, blind_keys_BM: Tensor | None
) -> tuple[str, ...]:
    """One known mode a head, window >= 1 where a head streams, sink >= 0, blind keys given where a head is blind."""
    modes = tuple(heads)
    if len(modes) != n_heads:
        raise ValueError(f"heads: expected {n_heads} modes (one a query head), got {len(modes)}")
    unknown = sorted(set(modes) - set(MODES))
    if unknown:
        raise ValueError(f"heads: expected {', '.join(MODES)}, got {unknown[0]!r}")
    if "stream" in modes and window < 1:
        raise ValueError(f"window: expected at least 1 (the query itself), got {window}")
    if "stream" in modes and sink < 0:
        raise ValueError(f"sink: expected 0 or more, got {sink}")
    if "blind" in modes and blind_keys_BM is None:
        raise ValueError("blind_keys_BM: expected the keys that blind heads do not see, got None")
    return modes


def check_offset(q_offset: int | None, n_queries: int, n_keys: int) -> int:
    """Position of the first query, 0 or more; None means that the queries are the last of the keys."""
    if q_offset is None:
        if n_queries > n_keys:
            raise ValueError(f"q_BHND: expected at most {n_keys} queries (one a key) without q_offset, got {n_queries}")
        return n_keys - n_queries
    if q_offset < 0:
        raise ValueError(f"q_offset: expected 0 or more, got {q_offset}")
    return int(q_offset)


def check_ranges(
    kv_range_B2: Tensor | Sequence[Sequence[int]] | None, batch: int, n_keys: int
) -> tuple[tuple[int, int], ...]:
    """[start, end) of each row's real keys as ints; None means all keys. A tensor is copied to the host."""
    if kv_range_B2 is None:
        return ((0, n_keys),) * batch
    given = kv_range_B2.tolist() if isinstance(kv_range_B2, Tensor) else kv_range_B2
    if len(given) != batch or any(len(pair) != 2 for pair in given):
        raise ValueError(f"kv_range_B2: expected {batch} pairs (start, end), one a row, got {given}")
    ranges = tuple((int(start), int(end)) for start, end in given)
    if any(not 0 <= start <= end <= n_keys for start, end in ranges):
        raise ValueError(f"kv_range_B2: expected 0 <= start <= end <= {n_keys}, got {ranges}")
    return ranges


def check_blind(blind_keys_BM: Tensor | None, batch: int, n_keys: int) -> None:
    """Bool, one row a batch row."""
    if blind_keys_BM is None:
        return
    if blind_keys_BM.dtype != torch.bool or tuple(blind_keys_BM.shape) != (batch, n_keys):
        raise ValueError(
            f"blind_keys_BM: expected bool of shape {(batch, n_keys)}, "
            f"got {blind_keys_BM.dtype} {tuple(blind_keys_BM.shape)}"
        )
