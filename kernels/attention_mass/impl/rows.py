"""Only the rows that were asked for: one float32 product a KV head, memory O(heads x rows x keys), never N x N.

Shape suffixes: B batch, H query heads, K KV heads, C query heads of a KV head, R queries (rows), M keys, D head size,
S key sets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def attention_mass_rows(
    q_BHRD: Tensor, k_BKMD: Tensor, *, rows_R: Sequence[int], sets_SM: Tensor, start_B: Sequence[int], scale: float
) -> Tensor:
    """Returns float32 [B, H, R, S]."""
    K, M = k_BKMD.shape[1:3]
    device = q_BHRD.device
    q_BKCRD = q_BHRD.float().unflatten(1, (K, -1))
    scores = torch.einsum("bkcrd,bkmd->bkcrm", q_BKCRD, k_BKMD.float()) * scale
    j_M = torch.arange(M, device=device)
    rows_R1 = torch.tensor(rows_R, device=device)[:, None]
    start_B11 = torch.tensor(start_B, device=device)[:, None, None]
    seen_BRM = (start_B11 <= j_M) & (j_M <= rows_R1)
    scores.masked_fill_(~seen_BRM[:, None, None], float("-inf"))
    probs = torch.softmax(scores, dim=-1)
    # A row without any visible key has softmax NaN; it has no mass anywhere.
    probs = probs.masked_fill_(~seen_BRM.any(-1)[:, None, None, :, None], 0.0)
    return (probs @ sets_SM.to(device=device, dtype=torch.float32).T).flatten(1, 2)
