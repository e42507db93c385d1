"""The op: validates its arguments and hands them to the implementation that was asked for, or that suits the call.

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from core_bench.kernels.hybrid_attention.backends import choose, load
from core_bench.kernels.hybrid_attention.call import Call, Ranges, wants_gradients
from core_bench.kernels.hybrid_attention.validation import (
    as_ranges,
    check_blind,
    check_modes,
    check_offset,
    check_ranges,
    check_same_kind,
    check_shapes,
)


class _Checked(NamedTuple):
    """What follows from a call's shapes and settings alone."""

    modes: tuple[str, ...]
    q_offset: int
    kv_range_B2: Ranges
    impl: str
    causal: bool
    grouped: bool
    scale: float


def hybrid_attention(
    q_BHND: Tensor,
    k_BKMD: Tensor,
    v_BKMD: Tensor,
    heads: Sequence[str],
    *,
    window: int,
    sink: int,
    scale: float | None = None,
    q_offset: int | None = None,
    kv_range_B2: Tensor | Sequence[Sequence[int]] | None = None,
    blind_keys_BM: Tensor | None = None,
    impl: str = "auto",
) -> Tensor:
    """Causal attention in which each query head sees what its mode allows; returns [B, H, N, D] in q's dtype.

    `heads`: one mode a query head. Query n stands at position i = q_offset + n (default: the queries are the last N of
    the M positions). Query i of row b, with [start_b, end_b) = kv_range_B2[b] (default: all M keys are real), sees key
    j iff `start_b <= j < end_b` and `j <= i` and, by mode,
    - "full": nothing else;
    - "stream": also `i - j < window` or `j - start_b < sink` (tokens; the window counts the query itself);
    - "off": nothing, the output is exactly zero;
    - "blind": also key j is not in `blind_keys_BM` (bool), the rest renormalised.
    A query that sees no key gives zeros (padding queries i < start_b too). Query head h reads KV head `h // (H / K)`.
    `scale` multiplies the scores (default 1 / sqrt(D)). Ranges are best given as host ints. Any strides will do.

    `impl`: "reference" (the oracle, O(N x M) memory), "sdpa" (torch only), "flex" (FlexAttention), "triton" (CUDA), or
    "auto", which takes for each call what `choose` says ("sdpa" for "triton" where gradients are wanted). All mean the
    same, to the token. Raises ValueError naming the argument, also for an unknown `impl`; RuntimeError with the reason
    where that implementation cannot run.
    """
    check_same_kind(q_BHND, k_BKMD, v_BKMD)
    if blind_keys_BM is not None:
        check_blind(blind_keys_BM, q_BHND.shape, k_BKMD.shape)
    ranges = None if kv_range_B2 is None else as_ranges(kv_range_B2)
    found = _checked(
        q_BHND.shape, k_BKMD.shape, v_BKMD.shape, q_BHND.dtype, q_BHND.device, tuple(heads), window, sink, q_offset,
        ranges, blind_keys_BM is not None, impl,
    )  # fmt: skip
    if found.impl == "dense":
        return scaled_dot_product_attention(
            q_BHND, k_BKMD, v_BKMD, is_causal=found.causal, scale=scale, enable_gqa=found.grouped
        )
    name = found.impl
    if name == "triton" and impl == "auto" and wants_gradients(q_BHND, k_BKMD, v_BKMD):
        name = "sdpa"  # the kernel has no backward pass
    return load(name, q_BHND.device)(
        Call(
            q_BHND=q_BHND,
            k_BKMD=k_BKMD,
            v_BKMD=v_BKMD,
            modes=found.modes,
            window=window,
            sink=sink,
            q_offset=found.q_offset,
            kv_range_B2=found.kv_range_B2,
            blind_keys_BM=blind_keys_BM if "blind" in found.modes else None,
            scale=found.scale if scale is None else scale,
        )
    )


@lru_cache(maxsize=4096)
def _checked(
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    v_shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    modes: tuple[str, ...],
    window: int,
    sink: int,
    q_offset: int | None,
    ranges: Ranges | None,
    blind: bool,
    impl: str,
) -> _Checked:
    """Checks once what the layers of a model, and its calls at one length, have in common; raises ValueError."""
    check_shapes(q_shape, k_shape, v_shape)
    batch, n_heads, n_queries, head_size = q_shape
    n_kv_heads, n_keys = k_shape[1:3]
    check_modes(modes, n_heads, window, sink, blind)
    offset = check_offset(q_offset, n_queries, n_keys)
    ranges = check_ranges(ranges, batch, n_keys)
    if impl == "auto":
        impl = choose(
            modes, n_queries=n_queries, n_keys=n_keys, window=window, sink=sink, head_size=head_size, dtype=dtype,
            device=device, q_offset=offset, kv_range_B2=ranges,
        )  # fmt: skip
    return _Checked(modes, offset, ranges, impl, n_queries > 1, n_heads != n_kv_heads, head_size**-0.5)
