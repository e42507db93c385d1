"""Torch alone: heads of one mode are computed together, on the CPU by its flash kernel, elsewhere by masked blocks.

Streaming heads cost time and memory linear in N: a query i < window + sink sees every earlier key, so these queries
are plain causal attention; the later ones are cut into blocks, all of the same shape.

Left padding is cut off before anything is computed: what is left is an unpadded problem.

Shape suffixes: B batch, R rows of one key range, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from core_bench.kernels.hybrid_attention.call import Call, is_dense, wants_gradients
from core_bench.kernels.hybrid_attention.impl import flash_cpu, gathered
from core_bench.kernels.hybrid_attention.impl.gathered import masked


def hybrid_attention_sdpa(call: Call) -> Tensor:
    """Returns [B, H, N, D] in the dtype of q: a view of contiguous [B, N, H, D], which is what transformers wants."""
    q_BHND, k_BKMD, v_BKMD, q_offset, kv_range_B2 = (
        call.q_BHND,
        call.k_BKMD,
        call.v_BKMD,
        call.q_offset,
        call.kv_range_B2,
    )
    B, H, N, D = q_BHND.shape
    if is_dense(call.modes, call.window, call.sink, N, k_BKMD.shape[2], q_offset, kv_range_B2):
        return _causal(q_BHND, k_BKMD, v_BKMD, call.scale)
    # Zeros are for padding queries and heads that see nothing; where there are none, every row is filled below.
    inside = all(start <= q_offset and q_offset + N <= end for start, end in kv_range_B2)
    filled = inside and {"full", "stream"}.issuperset(call.modes)
    new = q_BHND.new_empty if filled else q_BHND.new_zeros
    out_BHND = new(B, N, H, D).transpose(1, 2)
    for start, end in sorted(set(kv_range_B2)):
        rows = [b for b in range(B) if kv_range_B2[b] == (start, end)]
        pick: list[int] | slice = slice(None) if len(rows) == B else rows
        out = out_BHND[pick]
        # Queries at positions below `start` are padding and stay zero. Those in [start, end) are the last of the keys
        # up to their own. Those from `end` on (right padding, or no key yet) see a fixed set of keys, or part of it.
        first, last = (min(max(edge - q_offset, 0), N) for edge in (start, end))
        if first < last:
            _unpadded(out[:, :, first:last], _part(call, pick, slice(first, last), slice(start, q_offset + last)))
        if last < N and start < end:
            _beyond(out[:, :, last:], _part(call, pick, slice(last, N), slice(start, end)))
        if len(rows) < B:
            out_BHND[pick] = out
    return out_BHND


def _part(call: Call, rows: list[int] | slice, queries: slice, keys: slice) -> Call:
    """The call for these rows, queries and keys alone; positions count from the first key left."""
    blind_BM = call.blind_keys_BM
    q = call.q_BHND[rows][:, :, queries]
    k, v = (x[rows][:, :, keys] for x in (call.k_BKMD, call.v_BKMD))
    return replace(
        call,
        q_BHND=q,
        k_BKMD=k,
        v_BKMD=v,
        q_offset=call.q_offset + queries.start - keys.start,
        kv_range_B2=((0, k.shape[2]),) * len(q),
        blind_keys_BM=None if blind_BM is None else blind_BM[rows][:, keys],
    )


def _unpadded(out_RHND: Tensor, call: Call) -> None:
    """Fills `out_RHND` for queries that are the last of the keys."""
    q, k, v, modes, window, sink, scale = (
        call.q_BHND, call.k_BKMD, call.v_BKMD, call.modes, call.window, call.sink, call.scale
    )  # fmt: skip
    R, H = q.shape[:2]
    group = H // k.shape[1]
    heads = {mode: [h for h in range(H) if modes[h] == mode] for mode in ("full", "stream", "blind")}
    if window + sink >= k.shape[2]:  # every window reaches the first key
        heads["full"], heads["stream"] = sorted(heads["full"] + heads["stream"]), []
    for mode in ("full", "stream"):
        for picked, kv in _buckets(heads[mode], group, even_only=mode == "full"):
            q_, k_, v_ = _take(q, picked), _take(k, kv), _take(v, kv)
            if mode == "full":
                _put(out_RHND, picked, _causal(q_, k_, v_, scale))
            elif not _on_cpu(q, k, v):
                q_RKCND = q_.unflatten(1, (len(kv), -1))
                _put(out_RHND, picked, gathered.stream(q_RKCND, k_, v_, window, sink, scale).flatten(1, 2))
            elif _is_run(picked):
                flash_cpu.stream(_take(out_RHND, picked), q_, k_, v_, window, sink, scale)
            else:
                flash_cpu.stream(out := torch.empty_like(q_), q_, k_, v_, window, sink, scale)
                _put(out_RHND, picked, out)
    if blind := heads["blind"]:
        assert call.blind_keys_BM is not None  # checked by the op
        kv = [h // group for h in blind]
        for r in range(R):
            kpos = (~call.blind_keys_BM[r]).nonzero().flatten()
            out = _blind(_take(q[r : r + 1], blind), _take(k[r : r + 1], kv), _take(v[r : r + 1], kv), kpos, scale)
            _put(out_RHND[r : r + 1], blind, out)


def _beyond(out_RHND: Tensor, call: Call) -> None:
    """Fills `out_RHND` for queries to which every key is earlier."""
    q, k, v, window, sink = call.q_BHND, call.k_BKMD, call.v_BKMD, call.window, call.sink
    R, H, N, _ = q.shape
    M = k.shape[2]
    group = H // k.shape[1]
    i_N1 = torch.arange(call.q_offset, call.q_offset + N, device=q.device)[:, None]
    j_M = torch.arange(M, device=q.device)
    for h, mode in enumerate(call.modes):
        if mode == "off":
            continue
        for r in range(R):
            keys_M = torch.ones(M, dtype=torch.bool, device=q.device)
            if mode == "stream":
                keys_M = (j_M < sink) | (j_M > call.q_offset - window)
            elif mode == "blind":
                assert call.blind_keys_BM is not None
                keys_M = ~call.blind_keys_BM[r]
            j = keys_M.nonzero().flatten()
            mask = ((i_N1 - j < window) | (j < sink)) if mode == "stream" else None
            rows = N if mask is None else int(mask.any(1).sum())
            if len(j) and rows:
                out_RHND[r, h, :rows] = scaled_dot_product_attention(
                    q[r, h, :rows][None], k[r, h // group, j][None], v[r, h // group, j][None],
                    attn_mask=None if mask is None else mask[:rows], scale=call.scale,
                )[0]  # fmt: skip


def _buckets(heads: list[int], group: int, *, even_only: bool) -> Iterator[tuple[list[int], list[int]]]:
    """Splits `heads` so that in a bucket each KV head serves equally many: (query heads, their KV heads).

    With `even_only`, uneven heads stay together, and a KV head is named once for each of its query heads: for full
    heads copied KV costs little against N x N scores.
    """
    by_kv: dict[int, list[int]] = {}
    for h in heads:
        by_kv.setdefault(h // group, []).append(h)
    counts = sorted({len(hs) for hs in by_kv.values()})
    if even_only and len(counts) > 1:
        yield heads, [h // group for h in heads]
        return
    for count in counts:
        kv = [x for x, hs in by_kv.items() if len(hs) == count]
        yield [h for x in kv for h in by_kv[x]], kv


def _on_cpu(*tensors: Tensor) -> bool:
    """Whether to merge by log-sum-exp: on the CPU, and without gradients, which that output does not have."""
    return tensors[0].device.type == "cpu" and not wants_gradients(*tensors)


def _is_run(heads: list[int]) -> bool:
    return heads == list(range(heads[0], heads[0] + len(heads)))


def _take(x: Tensor, heads: list[int]) -> Tensor:
    """x[:, heads]; a view where the heads are a run."""
    return x[:, heads[0] : heads[0] + len(heads)] if _is_run(heads) else x[:, heads]


def _put(out: Tensor, heads: list[int], value: Tensor) -> None:
    if _is_run(heads):
        out[:, heads[0] : heads[0] + len(heads)] = value
    else:
        out[:, heads] = value


def _causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Plain causal attention of the last N of M positions; query heads are a multiple of KV heads."""
    if _on_cpu(q, k, v):
        return flash_cpu.causal(q, k, v, scale)[0]
    group = q.shape[1] // k.shape[1]
    k_all, v_all = (x.repeat_interleave(group, 1) if group > 1 else x for x in (k, v))
    return gathered.causal(q, k_all, v_all, scale)


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
        out[:, :, dead:] = masked(q[:, :, dead:], k[:, :, kpos], v[:, :, kpos], kpos, first, scale)
    return out
