"""Checks of the arguments of `hybrid_attention`; every violation raises ValueError naming the argument.

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core_bench.kernels.hybrid_attention.call import Ranges

MODES = ("full", "stream", "off", "blind")


def check_same_kind(q_BHND: Tensor, k_BKMD: Tensor, v_BKMD: Tensor) -> None:
    """One dtype, one device."""
    dtype, device = q_BHND.dtype, q_BHND.device
    if k_BKMD.dtype is dtype is v_BKMD.dtype and k_BKMD.device == device == v_BKMD.device:
        return
    name, x = ("k_BKMD", k_BKMD) if (k_BKMD.dtype, k_BKMD.device) != (dtype, device) else ("v_BKMD", v_BKMD)
    raise ValueError(f"{name}: expected {dtype} on {device} like q, got {x.dtype} on {x.device}")


def check_shapes(q_shape: tuple[int, ...], k_shape: tuple[int, ...], v_shape: tuple[int, ...]) -> None:
    """Shapes fit; query heads are a multiple of KV heads; nothing is empty."""
    for name, shape in (("q_BHND", q_shape), ("k_BKMD", k_shape), ("v_BKMD", v_shape)):
        if len(shape) != 4:
            raise ValueError(f"{name}: expected 4 dimensions, got shape {tuple(shape)}")
    B, H, N, D = q_shape
    K, M = k_shape[1:3]
    if k_shape[0] != B or k_shape[3] != D:
        raise ValueError(f"k_BKMD: expected batch {B} and head size {D} like q, got shape {tuple(k_shape)}")
    if v_shape != k_shape:
        raise ValueError(f"v_BKMD: expected {tuple(k_shape)} like k, got shape {tuple(v_shape)}")
    if K == 0 or H % K:
        raise ValueError(f"q_BHND: expected a multiple of {K} KV heads, got {H} query heads")
    if 0 in (B, N, M, D):
        raise ValueError(f"q_BHND, k_BKMD: expected no empty dimension, got {tuple(q_shape)}, {tuple(k_shape)}")


def check_modes(modes: tuple[str, ...], n_heads: int, window: int, sink: int, blind: bool) -> None:
    """One known mode a head, window >= 1 where a head streams, sink >= 0, blind keys given where a head is blind."""
    if len(modes) != n_heads:
        raise ValueError(f"heads: expected {n_heads} modes (one a query head), got {len(modes)}")
    unknown = sorted(set(modes) - set(MODES))
    if unknown:
        raise ValueError(f"heads: expected {', '.join(MODES)}, got {unknown[0]!r}")
    if "stream" in modes and window < 1:
        raise ValueError(f"window: expected at least 1 (the query itself), got {window}")
    if "stream" in modes and sink < 0:
        raise ValueError(f"sink: expected 0 or more, got {sink}")
    if "blind" in modes and not blind:
        raise ValueError("blind_keys_BM: expected the keys that blind heads do not see, got None")


def check_offset(q_offset: int | None, n_queries: int, n_keys: int) -> int:
    """Position of the first query, 0 or more; None means that the queries are the last of the keys."""
    if q_offset is None:
        if n_queries > n_keys:
            raise ValueError(f"q_BHND: expected at most {n_keys} queries (one a key) without q_offset, got {n_queries}")
        return n_keys - n_queries
    if q_offset < 0:
        raise ValueError(f"q_offset: expected 0 or more, got {q_offset}")
    return int(q_offset)


def as_ranges(kv_range_B2: Tensor | Sequence[Sequence[int]]) -> Ranges:
    """Pairs of ints. A tensor is copied to the host."""
    given = kv_range_B2.tolist() if isinstance(kv_range_B2, Tensor) else kv_range_B2
    if any(len(pair) != 2 for pair in given):
        raise ValueError(f"kv_range_B2: expected pairs (start, end), one a row, got {given}")
    return tuple((int(start), int(end)) for start, end in given)


def check_ranges(ranges: Ranges | None, batch: int, n_keys: int) -> Ranges:
    """[start, end) of each row's real keys; None means all keys."""
    if ranges is None:
        return ((0, n_keys),) * batch
    if len(ranges) != batch:
        raise ValueError(f"kv_range_B2: expected {batch} pairs (start, end), one a row, got {ranges}")
    if any(not 0 <= start <= end <= n_keys for start, end in ranges):
        raise ValueError(f"kv_range_B2: expected 0 <= start <= end <= {n_keys}, got {ranges}")
    return ranges


def check_blind(blind_keys_BM: Tensor, q_shape: tuple[int, ...], k_shape: tuple[int, ...]) -> None:
    """Bool, one row a batch row."""
    expected = (*q_shape[:1], *k_shape[2:3])
    if blind_keys_BM.dtype != torch.bool or tuple(blind_keys_BM.shape) != expected:
        raise ValueError(
            f"blind_keys_BM: expected bool of shape {expected}, got {blind_keys_BM.dtype} {tuple(blind_keys_BM.shape)}"
        )
