"""One checked call of the op, as every implementation takes it.

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Ranges = tuple[tuple[int, int], ...]  # of each row, [start, end) of its real keys


@dataclass(frozen=True, eq=False, kw_only=True)
class Call:
    """Tensors of one dtype on one device, and who sees what; the words are those of `hybrid_attention`."""

    q_BHND: Tensor
    k_BKMD: Tensor
    v_BKMD: Tensor
    modes: tuple[str, ...]
    window: int
    sink: int
    q_offset: int
    kv_range_B2: Ranges
    blind_keys_BM: Tensor | None
    scale: float

    @property
    def wants_gradients(self) -> bool:
        return wants_gradients(self.q_BHND, self.k_BKMD, self.v_BKMD)


def wants_gradients(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def is_dense(
    modes: tuple[str, ...],
    window: int,
    sink: int,
    n_queries: int,
    n_keys: int,
    q_offset: int,
    kv_range_B2: Ranges,
) -> bool:
    """Whether every head sees every earlier key: a whole prompt or one new token, no padding, no window too short."""
    whole = q_offset + n_queries == n_keys and (q_offset == 0 or n_queries == 1)
    uncut = "stream" not in modes or window + sink >= n_keys
    return whole and uncut and "off" not in modes and "blind" not in modes and set(kv_range_B2) == {(0, n_keys)}
