"""The fast path on torch's scaled_dot_product_attention: heads of one mode are computed together.

Streaming heads cost time and memory linear in N: a query i < window + sink sees every earlier key, so these queries
are plain causal attention; the later ones are cut into blocks, and each block attends to [the sink keys | the keys its
windows reach] under one small mask that all blocks share. The query heads of a GQA group are folded into the query
axis, so KV is never repeated for them.

Left padding is cut off before anything is computed: what is left is an unpadded problem, and so there is one code path.

Shape suffixes: B batch, R rows of one padding length, H query heads, K KV heads, C query heads folded onto a KV head,
N queries, M keys, D head size, T blocks, Q queries of a block, L keys of a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

MASKED_ROWS = 512  # queries a call where the mask has to be written out (chunked prefill, blind heads)
COPY_ELEMENTS = 1 << 26  # keys gathered for the blocks of one call, in elements: bounds the extra memory


def hybrid_attention_sdpa(
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
    """Returns [B, H, N, D] in the dtype of q: a view of contiguous [B, N, H, D], which is what transformers wants."""
    B, H, N, D = q_BHND.shape
    out_BHND = q_BHND.new_zeros(B, N, H, D).transpose(1, 2)
    for start, end in sorted(set(kv_range_B2)):
        rows = [b for b in range(B) if kv_range_B2[b] == (start, end)]
        pick: list[int] | slice = slice(None) if len(rows) == B else rows
        q, k, v, out = (x[pick] for x in (q_BHND, k_BKMD, v_BKMD, out_BHND))
        blind = None if blind_keys_BM is None else blind_keys_BM[pick]
        options: dict[str, Any] = {"modes": modes, "window": window, "sink": sink, "scale": scale}
        # Queries at positions below `start` are padding and stay zero. Those in [start, end) are the last of the keys
        # up to their own. Those from `end` on (right padding, or no key yet) see a fixed set of keys, or part of it.
        first, last = (min(max(edge - q_offset, 0), N) for edge in (start, end))
        if first < last:
            seen = slice(start, q_offset + last)
            _unpadded(
                out[:, :, first:last], q[:, :, first:last], k[:, :, seen], v[:, :, seen],
                visual_RM=None if blind is None else blind[:, seen], **options,
            )  # fmt: skip
        if last < N and start < end:
            seen = slice(start, end)
            _beyond(
                out[:, :, last:], q[:, :, last:], k[:, :, seen], v[:, :, seen], past=q_offset + last - end,
                visual_RM=None if blind is None else blind[:, seen], **options,
            )  # fmt: skip
        if len(rows) < B:
            out_BHND[pick] = out
    return out_BHND


def _unpadded(
    out_RHND: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    modes: Sequence[str],
    window: int,
    sink: int,
    visual_RM: Tensor | None,
    scale: float,
) -> None:
    """Fills `out_RHND` for queries that are the last of the keys."""
    R, H, N, _ = q.shape
    group = H // k.shape[1]
    heads = {mode: [h for h in range(H) if modes[h] == mode] for mode in ("full", "stream", "blind")}
    if window + sink >= k.shape[2]:  # every window reaches the first key
        heads["full"], heads["stream"] = sorted(heads["full"] + heads["stream"]), []
    if full := heads["full"]:
        kv = [h // group for h in full]
        _put(out_RHND, full, _causal(_take(q, full), _take(k, kv), _take(v, kv), scale))
    for folded, kv, C in _buckets(heads["stream"], group):
        q_RKCND = _take(q, folded).unflatten(1, (len(kv), C))
        _put(out_RHND, folded, _stream(q_RKCND, _take(k, kv), _take(v, kv), window, sink, scale).flatten(1, 2))
    if blind := heads["blind"]:
        assert visual_RM is not None  # checked by the op
        kv = [h // group for h in blind]
        for r in range(R):
            kpos = (~visual_RM[r]).nonzero().flatten()
            out = _blind(_take(q[r : r + 1], blind), _take(k[r : r + 1], kv), _take(v[r : r + 1], kv), kpos, scale)
            _put(out_RHND[r : r + 1], blind, out)


def _beyond(
    out_RHND: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    past: int,
    modes: Sequence[str],
    window: int,
    sink: int,
    visual_RM: Tensor | None,
    scale: float,
) -> None:
    """Fills `out_RHND` for queries at positions M + past, M + past + 1, ...: every key is earlier than they are."""
    R, H, N, _ = q.shape
    M = k.shape[2]
    group = H // k.shape[1]
    i_N1 = torch.arange(M + past, M + past + N, device=q.device)[:, None]
    j_M = torch.arange(M, device=q.device)
    for h, mode in enumerate(modes):
        if mode == "off":
            continue
        for r in range(R):
            keys_M = torch.ones(M, dtype=torch.bool, device=q.device)
            if mode == "stream":
                keys_M = (j_M < sink) | (j_M > M + past - window)
            elif mode == "blind":
                assert visual_RM is not None
                keys_M = ~visual_RM[r]
            j = keys_M.nonzero().flatten()
            mask = ((i_N1 - j < window) | (j < sink)) if mode == "stream" else None
            rows = N if mask is None else int(mask.any(1).sum())
            if len(j) and rows:
                out_RHND[r, h, :rows] = scaled_dot_product_attention(
                    q[r, h, :rows][None], k[r, h // group, j][None], v[r, h // group, j][None],
                    attn_mask=None if mask is None else mask[:rows], scale=scale,
                )[0]  # fmt: skip


def _buckets(heads: Sequence[int], group: int) -> Iterator[tuple[list[int], list[int], int]]:
    """Splits `heads` by how many of them share a KV head: (query heads, their KV heads, query heads a KV head)."""
    by_kv: dict[int, list[int]] = {}
    for h in heads:
        by_kv.setdefault(h // group, []).append(h)
    for count in sorted({len(hs) for hs in by_kv.values()}):
        kv = [x for x, hs in by_kv.items() if len(hs) == count]
        yield [h for x in kv for h in by_kv[x]], kv, count


def _take(x: Tensor, heads: list[int]) -> Tensor:
    """x[:, heads]; a view where the heads are a run."""
    if heads == list(range(heads[0], heads[0] + len(heads))):
        return x[:, heads[0] : heads[0] + len(heads)]
    return x[:, heads]


def _put(out: Tensor, heads: list[int], value: Tensor) -> None:
    if heads == list(range(heads[0], heads[0] + len(heads))):
        out[:, heads[0] : heads[0] + len(heads)] = value
    else:
        out[:, heads] = value


def _causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Plain causal attention of the last N of M positions; q and k have equally many heads."""
    N, M = q.shape[2], k.shape[2]
    if N == M or N == 1:
        return scaled_dot_product_attention(q, k, v, is_causal=N > 1, scale=scale)
    return _masked(q, k, v, torch.arange(M, device=k.device), M - N, scale)


def _masked(q: Tensor, k: Tensor, v: Tensor, kpos_M: Tensor, first: int, scale: float) -> Tensor:
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


def _blind(q: Tensor, k: Tensor, v: Tensor, kpos: Tensor, scale: float) -> Tensor:
    """Attention to the keys at `kpos` only. Queries before the first of them see nothing: zeros."""
    N, M = q.shape[2], k.shape[2]
    if len(kpos) == M:
        return _causal(q, k, v, scale)
    out = q.new_zeros(*q.shape[:3], v.shape[-1])
    if len(kpos) == 0:
        return out
    first = max(int(kpos[0]), M - N)
    dead = first - (M - N)
    if dead < N:
        out[:, :, dead:] = _masked(q[:, :, dead:], k[:, :, kpos], v[:, :, kpos], kpos, first, scale)
    return out


def _stream(q_RKCND: Tensor, k: Tensor, v: Tensor, window: int, sink: int, scale: float) -> Tensor:
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
        out[..., :plain, :] = _causal(q_RKCND[..., :plain, :].flatten(1, 2), k_plain, v_plain, scale).unflatten(
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
