"""The op: validates its arguments and hands them to the implementation that was asked for.

Shape suffixes: B batch, H query heads, K KV heads, R queries (rows), M keys, D head size, S key sets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core_bench.kernels.attention_mass.impl.reference import attention_mass_reference
from core_bench.kernels.attention_mass.impl.rows import attention_mass_rows

IMPLEMENTATIONS = {"reference": attention_mass_reference, "rows": attention_mass_rows}


def attention_mass(
    q_BHRD: Tensor,
    k_BKMD: Tensor,
    *,
    rows_R: Sequence[int],
    sets_SM: Tensor,
    start_B: Tensor | Sequence[int] | None = None,
    scale: float | None = None,
    impl: str = "rows",
) -> Tensor:
    """Softmax mass of each query on each key set, float32 [B, H, R, S].

    The softmax runs over all keys j with start_b <= j <= rows_R[r]. `q_BHRD` holds only the queries asked for, and
    `rows_R` their positions among the M keys; both q and k as attention sees them (after norms and rotary embedding).
    `sets_SM` is bool. A query before start_b sees nothing: mass 0. Query head h reads KV head `h // (H / K)`. Memory
    O(H x R x M). Raises ValueError naming the argument.
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
    if len(rows) != R or any(not 0 <= r < M for r in rows):
        raise ValueError(f"rows_R: expected {R} positions in [0, {M}), got {rows}")
    if sets_SM.dtype != torch.bool or sets_SM.ndim != 2 or sets_SM.shape[1] != M:
        raise ValueError(f"sets_SM: expected bool of shape (sets, {M}), got {sets_SM.dtype} {tuple(sets_SM.shape)}")
    starts = [0] * B if start_B is None else [int(s) for s in start_B]
    if len(starts) != B or any(not 0 <= s <= M for s in starts):
        raise ValueError(f"start_B: expected {B} values in [0, {M}], got {starts}")
    return IMPLEMENTATIONS[impl](
        q_BHRD, k_BKMD, rows_R=rows, sets_SM=sets_SM, start_B=starts, scale=D**-0.5 if scale is None else scale
    )
