"""Causal and streaming attention on the CPU, from parts that each bring the log-sum-exp of their scores.

Torch's CPU flash kernel returns it (a private operator, there since torch 2.2), so that attention to a key set is the
merge of attention to its pieces, exact up to rounding (the online softmax of Milakov and Gimelshein 2018). Three uses:
- a streaming head's window and its sink are two calls, on overlapping views: no key is ever copied or repeated;
- queries behind a cache are one call on the cached keys, unmasked, and one causal call on their own;
- causal attention is cut into squares. The kernel computes 512 keys at a time, also those that are not yet visible:
  squares of about 128 waste less, which is felt below 2K. And it deals out its query blocks to threads in runs, so that
  of a lone head's triangle one of two threads would get three quarters: squares are equal work.

Shape suffixes: R rows of one padding length, H query heads, K KV heads, N queries, M keys, D head size, T blocks,
Q queries of a block, L keys of a block.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

CHUNK_ROWS = 4096  # streaming queries a call: what is merged still lies in the cache
SHORT, LEAST_SQUARE = 1600, 96  # up to this length squares pay, down to this size; measured on AVX-512 cores
LEAST_SHARE = 512  # squares for balance alone are no smaller

Part = tuple[Tensor, Tensor]  # output [.., N, D] and log-sum-exp of its scores [.., N], float32 or float64

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def part(q: Tensor, k: Tensor, v: Tensor, scale: float, *, causal: bool = False, mask: Tensor | None = None) -> Part:
    """One kernel call; query heads are a multiple of KV heads, and every query must see a key."""
    out, lse = _flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    return out, lse


def merged(a: Part, b: Part, into: Tensor | None = None) -> Tensor:
    """The output over both key sets, written to `into` if given."""
    weight = torch.sigmoid(b[1] - a[1]).unsqueeze(-1)
    if a[0].dtype == weight.dtype:
        return torch.lerp(a[0], b[0], weight, out=into) if into is not None else torch.lerp(a[0], b[0], weight)
    exact = torch.lerp(a[0].to(weight.dtype), b[0].to(weight.dtype), weight)
    return exact.to(a[0].dtype) if into is None else into.copy_(exact)


def causal(q_RHND: Tensor, k_RKMD: Tensor, v_RKMD: Tensor, scale: float) -> Part:
    """Plain causal attention of the last N of M positions."""
    N, M = q_RHND.shape[2], k_RKMD.shape[2]
    if N == 1:
        return part(q_RHND, k_RKMD, v_RKMD, scale)
    if N == M:
        levels = _levels(q_RHND.shape[0] * q_RHND.shape[1], N)
        return _squares(q_RHND, k_RKMD, v_RKMD, scale, levels) if levels else part(
            q_RHND, k_RKMD, v_RKMD, scale, causal=True
        )  # fmt: skip
    old = part(q_RHND, k_RKMD[:, :, : M - N], v_RKMD[:, :, : M - N], scale)
    own = causal(q_RHND, k_RKMD[:, :, M - N :], v_RKMD[:, :, M - N :], scale)
    return merged(old, own), torch.logaddexp(old[1], own[1])


def _levels(problems: int, N: int) -> int:
    """How often to halve: to deal out equal work where the heads alone do not, and to waste less on short prompts."""
    threads, levels = torch.get_num_threads(), 0
    while (problems << levels) % threads and (1 << levels) < 2 * threads and N >> (levels + 1) >= LEAST_SHARE:
        levels += 1
    while N <= SHORT and N >> (levels + 1) >= LEAST_SQUARE:
        levels += 1
    return levels


def _squares(q: Tensor, k: Tensor, v: Tensor, scale: float, levels: int) -> Part:
    """Causal attention in 2^levels diagonal squares and, level by level, the squares below them."""
    R, H, N, _ = q.shape
    out = q.new_empty(R, N, H, q.shape[3]).transpose(1, 2)
    lse = q.new_empty(R, H, N, dtype=torch.promote_types(q.dtype, torch.float32))
    size = N >> levels
    end = size << levels
    for r in range(R):
        q_own, k_own, v_own = (_cut(x[r, :, :end], size) for x in (q, k, v))
        own = part(q_own, k_own, v_own, scale, causal=True)
        _cut(out[r, :, :end], size).copy_(own[0])
        _cut(lse[r, :, :end, None], size).copy_(own[1].unsqueeze(-1))
        for level in range(levels):
            half = size << level
            q_low = _cut(q[r, :, :end], 2 * half)[:, :, half:]
            k_up, v_up = (_cut(x[r, :, :end], 2 * half)[:, :, :half] for x in (k, v))
            out_low = _cut(out[r, :, :end], 2 * half)[:, :, half:]
            lse_low = _cut(lse[r, :, :end, None], 2 * half)[:, :, half:, 0]
            below = part(q_low, k_up, v_up, scale)
            merged((out_low, lse_low), below, into=out_low)
            lse_low.copy_(torch.logaddexp(lse_low, below[1]))
    if end < N:  # fewer than 2^levels queries are left
        out[:, :, end:], lse[:, :, end:] = causal(q[:, :, end:], k, v, scale)
    return out, lse


def _cut(x_HND: Tensor, size: int) -> Tensor:
    """A view [T, H, size, D] of the positions, cut into blocks of `size`."""
    return x_HND.unflatten(1, (-1, size)).transpose(0, 1)


def stream(
    out_RHND: Tensor, q_RHND: Tensor, k_RKMD: Tensor, v_RKMD: Tensor, window: int, sink: int, scale: float
) -> None:
    """Fills `out_RHND` with sink and window attention; needs M > window + sink, N queries the last of M positions."""
    N, M = q_RHND.shape[2], k_RKMD.shape[2]
    plain = max(min(window + sink - (M - N), N), 0)  # queries whose window reaches the sink see every earlier key
    if plain:
        end = M - N + plain
        out_RHND[:, :, :plain] = causal(q_RHND[:, :, :plain], k_RKMD[:, :, :end], v_RKMD[:, :, :end], scale)[0]
    done = plain
    while done < N:
        size = min(_block_size(window), N - done)
        n = min((N - done) // size, max(CHUNK_ROWS // size, 1)) * size
        for out, q, k, v in zip(out_RHND, q_RHND, k_RKMD, v_RKMD, strict=True):
            rows = slice(done, done + n)
            _windows(out[:, rows], q[:, rows], k, v, M - N + done, size, window, sink, scale)
        done += n


def _block_size(window: int) -> int:
    """Queries a block: each also computes, masked, the keys that its neighbours see. Measured best from 128 on: 64."""
    return 64 if window >= 128 else 32


def _windows(
    out: Tensor, q: Tensor, k: Tensor, v: Tensor, first: int, size: int, window: int, sink: int, scale: float
) -> None:
    """Queries [H, n, D] at positions from `first` on, in blocks of `size`; windows and sink do not meet."""
    n = q.shape[1]
    reach = window - 1 + size
    k_TKLD, v_TKLD = (x[:, first - window + 1 : first + n].unfold(1, reach, size).permute(1, 0, 3, 2) for x in (k, v))
    mask_QL = _band(size, window, q.dtype)
    near = part(_cut(q, size), k_TKLD, v_TKLD, scale, mask=mask_QL)
    if not sink:
        _cut(out, size).copy_(near[0])
        return
    far_out, far_lse = part(q[None], k[None, :, :sink], v[None, :, :sink], scale)
    merged(near, (_cut(far_out[0], size), _cut(far_lse[0].unsqueeze(-1), size)[..., 0]), into=_cut(out, size))


@lru_cache(maxsize=64)
def _band(size: int, window: int, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores of a block's queries: 0 for the keys of the own window, else -inf."""
    if size == 1:
        return None
    row = torch.arange(size)[:, None]
    col = torch.arange(window - 1 + size)
    hidden = (col < row) | (col >= row + window)
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
