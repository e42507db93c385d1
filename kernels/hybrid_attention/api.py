"""The op: validates its arguments and hands them to the implementation that was asked for.

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from core_bench.kernels.hybrid_attention.impl.reference import hybrid_attention_reference
from core_bench.kernels.hybrid_attention.impl.sdpa import hybrid_attention_sdpa
from core_bench.kernels.hybrid_attention.validation import check_modes, check_qkv, check_starts, check_visual

IMPLEMENTATIONS = {"reference": hybrid_attention_reference, "sdpa": hybrid_attention_sdpa}


def hybrid_attention(
    q_BHND: Tensor,
    k_BKMD: Tensor,
    v_BKMD: Tensor,
    *,
    modes: Sequence[str],
    window: int,
    sink: int,
    start_B: Tensor | Sequence[int] | None = None,
    visual_BM: Tensor | None = None,
    scale: float | None = None,
    impl: str = "sdpa",
) -> Tensor:
    """Causal attention in which each query head sees what its mode allows; returns [B, H, N, D] in q's dtype.

    The N queries are the last N of the M keys. Query i of row b sees key j iff `start_b <= j <= i` and, by mode,
    - "full": nothing else;
    - "stream": also `i - j < window` or `j - start_b < sink` (tokens; the window counts the query itself);
    - "off": nothing, the output is exactly zero;
    - "blind": also key j is not visual (`visual_BM`, bool), the rest renormalised.
    A query that sees no key gives zeros (padding queries i < start_b too). Query head h reads KV head `h // (H / K)`.
    `scale` multiplies the scores (default 1 / sqrt(D)). `start_B` is best given as host ints.
    Raises ValueError naming the argument, also for an unknown `impl`.
    """
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl: expected one of {', '.join(IMPLEMENTATIONS)}, got {impl!r}")
    check_qkv(q_BHND, k_BKMD, v_BKMD)
    batch, n_heads, _, head_size = q_BHND.shape
    n_keys = k_BKMD.shape[2]
    modes = check_modes(modes, n_heads, window, sink, visual_BM)
    starts = check_starts(start_B, batch, n_keys)
    check_visual(visual_BM, batch, n_keys)
    return IMPLEMENTATIONS[impl](
        q_BHND,
        k_BKMD,
        v_BKMD,
        modes=modes,
        window=window,
        sink=sink,
        start_B=starts,
        visual_BM=visual_BM,
        scale=head_size**-0.5 if scale is None else scale,
    )
