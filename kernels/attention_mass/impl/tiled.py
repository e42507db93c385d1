"""Tile by tile over the keys with a running log-sum-exp, float32: memory O(heads x rows x tile), any length.

What a tile adds to a row's total and to each set is rescaled as the row's highest score so far grows (the online
softmax of Milakov and Gimelshein 2018, arXiv 1805.02867); the values are the set indicators.

Shape suffixes: B batch, H query heads, K KV heads, C query heads of a KV head, R queries (rows), M keys, T keys of a
tile, D head size, S key sets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

TILE = 512  # keys


def attention_mass_tiled(
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
    K, device = k_BKMD.shape[1], q_BHRD.device
    q_BKXD = (q_BHRD.float() * scale).reshape(B, K, H // K * R, -1)  # the heads of a group read the same keys
    row_R1 = torch.tensor(rows_R, device=device)[:, None]
    start_B11, end_B11 = torch.tensor(kv_range_B2, device=device).T[:, :, None, None]
    top = torch.full((B, K, H // K, R, 1), float("-inf"), device=device)
    total = torch.zeros_like(top)
    mass = top.new_zeros(B, K, H // K, R, sets_SM.shape[0])
    stop = min(max(rows_R) + 1, max(end for _, end in kv_range_B2))
    for j in range(min(start for start, _ in kv_range_B2), stop, TILE):
        tile = slice(j, min(j + TILE, stop))
        j_T = torch.arange(tile.start, tile.stop, device=device)
        unseen_BRT = (j_T < start_B11) | (j_T >= end_B11) | (j_T > row_R1)
        scores = (q_BKXD @ k_BKMD[:, :, tile].float().mT).unflatten(2, (-1, R))  # [B, K, C, R, T]
        scores.masked_fill_(unseen_BRT[:, None, None], float("-inf"))
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        # A row that has seen nothing yet has the top -inf: any finite number in its place leaves exp(-inf) = 0.
        finite = higher.clamp(min=torch.finfo(torch.float32).min)
        keep = (top - finite).exp_()
        weights = scores.sub_(finite).exp_()
        total = total * keep + weights.sum(-1, keepdim=True)
        mass = mass * keep + weights @ sets_SM[:, tile].to(device=device, dtype=torch.float32).T
        top = higher
    return (mass / total.where(total > 0, 1.0)).flatten(1, 2)
