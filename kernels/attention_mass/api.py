"""The op: validates its arguments and hands them to the implementation that was asked for.

Shape suffixes: B batch, H query heads, K KV heads, R queries (rows), M keys, D head size, S key sets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core_bench.kernels.attention_mass.impl.reference import attention_mass_reference
from core_bench.kernels.attention_mass.impl.tiled import attention_mass_tiled

IMPLEMENTATIONS = {"reference": attention_mass_reference, "tiled": attention_mass_tiled}


def attention_mass(
    q_BHRD: Tensor,
    k_BKMD: Tensor,
    *,
    rows_R: Sequence[int],
    sets_SM: Tensor,
    kv_range_B2: Sequence[Sequence[int]] | None = None,
    scale: float | None = None,
    impl: str = "tiled",
) -> Tensor:
    """Softmax mass of each query on each key set, float32 [B, H, R, S].

    The softmax runs over all keys j with start_b <= j <= rows_R[r] and j < end_b, where [start_b, end_b) =
    kv_range_B2[b] are the real keys (default: all). `q_BHRD` holds only the queries asked for, and
    `rows_R` their positions among the M keys; both q and k as attention sees them (after norms and rotary embedding).
    `sets_SM` is bool. A query before start_b sees nothing: mass 0. Query head h reads KV head `h // (H / K)`.
    Computed in float32 ("reference": float64); extra memory of "tiled" is O(H x R x tile), whatever M. Raises
    ValueError naming the argument.
    """
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl: expected one of {', '.join(IMPLEMENTATIONS)}, got {impl!r}")
    if q_BHRD.ndim != 4 or k_BKMD.ndim != 4:
        raise ValueError(f"q_BHRD, k_BKMD: expected 4 dimensions, got {tuple(q_BHRD.shape)} and {tuple(k_BKMD.shape)}")
    B, H, R, D = q_BHRD.shape
    K, M = k_BKMD.shape[1:3]
    if k_BKMD.shape[0] != B or k_BKMD.shape[3] != D or K == 0 or H % K:
        raise ValueError(
            f"k_BKMD: expected batch {B}, head size {D}, a divisor of {H} heads; got {tuple(k_BKMD.shape)}"
        )
    rows = [int(r) for r in rows_R]
    if not R or len(rows) != R or any(not 0 <= r < M for r in rows):
        raise ValueError(f"rows_R: expected {R} positions in [0, {M}), got {rows}")
    if sets_SM.dtype != torch.bool or sets_SM.ndim != 2 or sets_SM.shape[1] != M:
        raise ValueError(f"sets_SM: expected bool of shape (sets, {M}), got {sets_SM.dtype} {tuple(sets_SM.shape)}")
    ranges = [(0, M)] * B if kv_range_B2 is None else [(int(start), int(end)) for start, end in kv_range_B2]
    if len(ranges) != B or any(not 0 <= start <= end <= M for start, end in ranges):
        raise ValueError(f"kv_range_B2: expected {B} pairs with 0 <= start <= end <= {M}, got {ranges}")
    return IMPLEMENTATIONS[impl](
        q_BHRD, k_BKMD, rows_R=rows, sets_SM=sets_SM, kv_range_B2=ranges, scale=D**-0.5 if scale is None else scale
    )
