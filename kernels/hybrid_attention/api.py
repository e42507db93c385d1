"""The op: validates its arguments and hands them to the implementation that was asked for, or that suits the call.

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core_bench.kernels.hybrid_attention.backends import choose, load
from core_bench.kernels.hybrid_attention.validation import (
    check_blind,
    check_modes,
    check_offset,
    check_qkv,
    check_ranges,
)


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
    check_qkv(q_BHND, k_BKMD, v_BKMD)
    batch, n_heads, n_queries, head_size = q_BHND.shape
    n_keys = k_BKMD.shape[2]
    modes = check_modes(heads, n_heads, window, sink, blind_keys_BM)
    offset = check_offset(q_offset, n_queries, n_keys)
    ranges = check_ranges(kv_range_B2, batch, n_keys)
    check_blind(blind_keys_BM, batch, n_keys)
    if impl == "auto":
        impl = choose(
            modes, n_queries=n_queries, n_keys=n_keys, window=window, sink=sink, head_size=head_size,
            dtype=q_BHND.dtype, device=q_BHND.device, q_offset=offset, kv_range_B2=ranges,
        )  # fmt: skip
        if impl == "triton" and torch.is_grad_enabled() and any(x.requires_grad for x in (q_BHND, k_BKMD, v_BKMD)):
            impl = "sdpa"  # the kernel has no backward pass
    out_BHND: Tensor = load(impl, q_BHND.device)(
        q_BHND,
        k_BKMD,
        v_BKMD,
        modes=modes,
        window=window,
        sink=sink,
        q_offset=offset,
        kv_range_B2=ranges,
        blind_keys_BM=blind_keys_BM if "blind" in modes else None,
        scale=head_size**-0.5 if scale is None else scale,
    )
    return out_BHND
