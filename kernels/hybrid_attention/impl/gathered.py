"""Causal and streaming attention by masks and gathered keys, for devices whose kernels keep their log-sum-exp.

Each block of streaming queries attends to [the sink keys | the keys its windows reach] under one small mask that all
blocks share. The query heads of a GQA group are folded into the query axis, so KV is never repeated for them.

Shape suffixes: R rows of one padding length, K KV heads, C query heads folded onto a KV head, N queries, M keys,
D head size, T blocks, Q queries of a block, L keys of a block.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

MASKED_ROWS = 512  # queries a call where the mask has to be written out (chunked prefill, blind heads)
COPY_ELEMENTS = 1 << 26  # keys gathered for the blocks of one call, in elements: bounds the extra memory


def causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Plain causal attention of the last N of M positions; q and k have equally many heads."""
    N, M = q.shape[2], k.shape[2]
    if N == M or N == 1:
        return scaled_dot_product_attention(q, k, v, is_causal=N > 1, scale=scale)
    return masked(q, k, v, torch.arange(M, device=k.device), M - N, scale)


def masked(q: Tensor, k: Tensor, v: Tensor, kpos_M: Tensor, first: int, scale: float) -> Tensor:
    """Queries at positions first, first + 1, ... see the keys (at ascending positions kpos_M) that are not later.

    Every query must see a key. SDPA's own causal mask is aligned to the first key, so the mask is written out, a few
    rows at a time.
    """
    out = []
    for i in range(0, q.shape[2], MASKED_ROWS):
        rows = q[:, :, i : i + MASKED_ROWS]
        pos_N = torch.arange(first + i, first + i + rows.shape[2], device=q.device)
        mask_NM = kpos_M <= pos_N[:, None]
        last = int(mask_NM[-1].sum())
        mask_NM = mask_NM[:, :last]
        out.append(scaled_dot_product_attention(rows, k[:, :, :last], v[:, :, :last], attn_mask=mask_NM, scale=scale))
    return torch.cat(out, dim=2) if len(out) > 1 else out[0]


def stream(q_RKCND: Tensor, k: Tensor, v: Tensor, window: int, sink: int, scale: float) -> Tensor:
    """Sink and window attention; needs M > window + sink. Returns [R, K, C, N, D]."""
    R, K, C, N, D = q_RKCND.shape
    M = k.shape[2]
    reach = window + sink
    out = q_RKCND.new_empty(R, K, C, N, v.shape[-1])
    plain = max(min(reach - (M - N), N), 0)  # queries at positions below `reach` see every earlier key
    if plain:
        heads = torch.arange(K, device=q_RKCND.device).repeat_interleave(C)
        end = M - N + plain
        k_plain, v_plain = k[:, heads, :end], v[:, heads, :end]
        out[..., :plain, :] = causal(q_RKCND[..., :plain, :].flatten(1, 2), k_plain, v_plain, scale).unflatten(
            1, (K, C)
        )
    size = min(_block_size(window), N - plain)
    done = plain
    while done < N:
        size = min(size, N - done)
        per_block = R * K * (sink + window - 1 + size) * D
        T = min((N - done) // size, max(COPY_ELEMENTS // per_block, 1))
        rows = slice(done, done + T * size)
        q_block = q_RKCND[..., rows, :].unflatten(3, (T, size)).transpose(2, 3).reshape(R * K, T, C * size, D)
        first = M - N + done
        k_block, v_block = (_gather(x, first, T, size, window, sink) for x in (k, v))
        mask_QL = _block_mask(C, size, window, sink, k.device)
        o = scaled_dot_product_attention(q_block, k_block, v_block, attn_mask=mask_QL, scale=scale)
        out[..., rows, :] = o.view(R, K, T, C, size, -1).transpose(2, 3).flatten(3, 4)
        done += T * size
    return out


def _block_size(window: int) -> int:
    """Queries a block: half the window, so that a block reads 1.5 windows; 64 was measured best for small windows."""
    return min(max(window // 2 // 64 * 64, 64), 512)


def _gather(x_RKMD: Tensor, first: int, T: int, size: int, window: int, sink: int) -> Tensor:
    """Keys of T blocks of `size` queries from position `first` on: [R * K, T, sink + window - 1 + size, D]."""
    reached = x_RKMD[:, :, first - window + 1 : first + T * size]
    windows = reached.unfold(2, window - 1 + size, size).transpose(-1, -2)
    sinks = x_RKMD[:, :, :sink].unsqueeze(2).expand(-1, -1, T, -1, -1)
    return torch.cat([sinks, windows], dim=3).flatten(0, 1)


@lru_cache(maxsize=64)
def _block_mask(C: int, size: int, window: int, sink: int, device: torch.device) -> Tensor | None:
    """Which gathered key each query of a block sees: [C * size, sink + window - 1 + size] bool, for all blocks."""
    if size == 1:
        return None  # one query: its window and the sink are all that was gathered
    row = torch.arange(size, device=device)[:, None]
    col = torch.arange(window - 1 + size, device=device)
    band = (col >= row) & (col < row + window)
    sinks = torch.ones(size, sink, dtype=torch.bool, device=device)
    return torch.cat([sinks, band], dim=1).repeat(C, 1)
