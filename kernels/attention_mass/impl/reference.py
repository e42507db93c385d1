"""The oracle: one query of one head at a time, in float64.

Shape suffixes: B batch, H query heads, K KV heads, R queries (rows), M keys, D head size, S key sets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def attention_mass_reference(
    q_BHRD: Tensor,
    k_BKMD: Tensor,
    *,
    rows_R: Sequence[int],
    sets_SM: Tensor,
    kv_range_B2: Sequence[tuple[int, int]],
    scale: float,
) -> Tensor:
    """Returns float32 [B, H, R, S]."""
    B, H, R, _ = q_BHRD.shape
    group = H // k_BKMD.shape[1]
    out = torch.zeros(B, H, R, sets_SM.shape[0], dtype=torch.float64, device=q_BHRD.device)
    for b in range(B):
        for h in range(H):
            for r, position in enumerate(rows_R):
                start, end = kv_range_B2[b]
                seen = slice(start, min(position + 1, end))
                if seen.start >= seen.stop:
                    continue
                scores = k_BKMD[b, h // group, seen].double() @ q_BHRD[b, h, r].double() * scale
                out[b, h, r] = sets_SM[:, seen].double().to(scores.device) @ torch.softmax(scores, dim=0)
    return out.float()
