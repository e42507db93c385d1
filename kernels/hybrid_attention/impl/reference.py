"""The oracle: every mask and every softmax written out, O(N x M) memory, any floating dtype.

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core_bench.kernels.hybrid_attention.call import Call


def visible_BHNM(
    n_queries: int,
    n_keys: int,
    *,
    modes: Sequence[str],
    window: int,
    sink: int,
    q_offset: int,
    kv_range_B2: Sequence[tuple[int, int]],
    blind_keys_BM: Tensor | None,
    device: torch.device,
) -> Tensor:
    """The definition, as a bool mask [B, H, N, M]: which key each query of each head sees."""
    start_B11, end_B11 = torch.tensor(kv_range_B2, device=device).T[:, :, None, None]
    i_N1 = torch.arange(q_offset, q_offset + n_queries, device=device)[:, None]
    j_M = torch.arange(n_keys, device=device)
    causal_BNM = (start_B11 <= j_M) & (j_M < end_B11) & (j_M <= i_N1)
    by_mode = {
        "full": causal_BNM,
        "stream": causal_BNM & ((i_N1 - j_M < window) | (j_M - start_B11 < sink)),
        "off": torch.zeros_like(causal_BNM),
    }
    if blind_keys_BM is not None:
        by_mode["blind"] = causal_BNM & ~blind_keys_BM.to(device)[:, None, :]
    return torch.stack([by_mode[mode] for mode in modes], dim=1)


def hybrid_attention_reference(call: Call) -> Tensor:
    """Computes in float32 (float64 for float64 inputs); returns [B, H, N, D] in the dtype of q."""
    n_heads, n_queries = call.q_BHND.shape[1:3]
    group = n_heads // call.k_BKMD.shape[1]
    dtype = torch.float64 if call.q_BHND.dtype == torch.float64 else torch.float32
    q = call.q_BHND.to(dtype)
    k_BHMD = call.k_BKMD.to(dtype).repeat_interleave(group, dim=1)
    v_BHMD = call.v_BKMD.to(dtype).repeat_interleave(group, dim=1)
    mask = visible_BHNM(
        n_queries,
        call.k_BKMD.shape[2],
        modes=call.modes,
        window=call.window,
        sink=call.sink,
        q_offset=call.q_offset,
        kv_range_B2=call.kv_range_B2,
        blind_keys_BM=call.blind_keys_BM,
        device=q.device,
    )
    scores_BHNM = (q @ k_BHMD.transpose(-1, -2) * call.scale).masked_fill(~mask, float("-inf"))
    # A row that sees nothing has the maximum -inf; any finite value in its place leaves exp(-inf) = 0 everywhere.
    top_BHN1 = scores_BHNM.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
    weights_BHNM = torch.exp(scores_BHNM - top_BHN1)
    total_BHN1 = weights_BHNM.sum(-1, keepdim=True)
    probs_BHNM = weights_BHNM / torch.where(total_BHN1 > 0, total_BHN1, torch.ones_like(total_BHN1))
    return (probs_BHNM @ v_BHMD).to(call.q_BHND.dtype)
