"""One call of torch's dense attention, for calls in which no head's view is cut: short prompts, mostly.

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def hybrid_attention_dense(
    q_BHND: Tensor,
    k_BKMD: Tensor,
    v_BKMD: Tensor,
    *,
    modes: Sequence[str],
    window: int,
    sink: int,
    q_offset: int,
    kv_range_B2: Sequence[tuple[int, int]],
    blind_keys_BM: Tensor | None,
    scale: float,
) -> Tensor:
    """Returns [B, H, N, D]; NotImplementedError where dense attention is not what the call asks for."""
    N, M = q_BHND.shape[2], k_BKMD.shape[2]
    if not is_dense(modes, window, sink, N, M, q_offset, kv_range_B2):
        raise NotImplementedError("impl: 'dense' takes only calls in which every head sees every earlier key")
    return scaled_dot_product_attention(
        q_BHND, k_BKMD, v_BKMD, is_causal=N > 1, scale=scale, enable_gqa=q_BHND.shape[1] != k_BKMD.shape[1]
    )


def is_dense(
    modes: Sequence[str],
    window: int,
    sink: int,
    n_queries: int,
    n_keys: int,
    q_offset: int,
    kv_range_B2: Sequence[tuple[int, int]],
) -> bool:
    """Whether every head sees every earlier key: a whole prompt or one new token, no padding, no window too short."""
    whole = q_offset + n_queries == n_keys and (q_offset == 0 or n_queries == 1)
    uncut = "stream" not in modes or window + sink >= n_keys
    return whole and uncut and "off" not in modes and "blind" not in modes and set(kv_range_B2) == {(0, n_keys)}
