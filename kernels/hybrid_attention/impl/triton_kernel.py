"""The Triton kernel of the op: one program computes one block of queries of one head, whatever the head's mode.

Positions are counted from the row's first real key. Of the tiles of BLOCK_N keys a head needs, from low to high:

    sink, whole | sink, cut | window, lower edge | window, inside | upper edge (causal, end of the real keys)
     unmasked      masked          masked             unmasked         masked

A full head has a window without end, a silenced one needs no tile, and for a blind one every tile is masked. The
unmasked tiles are walked first, then the masked ones; a tile outside all of this is never read.

Shape suffixes: B batch, H query heads, N queries, M keys, D head size, Q queries of a block, L keys of a tile.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

OFF, STREAM, FULL, BLIND = (tl.constexpr(code) for code in range(4))
ENDLESS = tl.constexpr(1 << 30)


@triton.jit
def _tile(  # noqa: PLR0913
    first_l: Any,
    acc_a: Any,
    acc_b: Any,
    total_Q: Any,
    top_Q: Any,
    qa: Any,
    qb: Any,
    ka_ptrs: Any,
    kb_ptrs: Any,
    va_ptrs: Any,
    vb_ptrs: Any,
    blind_ptr: Any,
    x_Q: Any,
    n_real: Any,
    window: Any,
    sink: Any,
    is_blind: Any,
    ka_in: Any,
    kb_in: Any,
    va_in: Any,
    vb_in: Any,
    stride_km: Any,
    stride_vm: Any,
    stride_blind_m: Any,
    log2_scale: Any,
    MASKED: tl.constexpr,
    HAS_BLIND: tl.constexpr,
    HAS_DB: tl.constexpr,
    HAS_EB: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> Any:
    """One step of online softmax over the keys first_l .. first_l + BLOCK_N; the sums so far go in and come out."""
    l_L = first_l + tl.arange(0, BLOCK_N)
    k_step = first_l.to(tl.int64) * stride_km
    v_step = first_l.to(tl.int64) * stride_vm
    # Head sizes that fill their tiles need no load mask inside; at the edges keys that are not real are never read.
    in_L = l_L < n_real
    if MASKED:
        ka = tl.load(ka_ptrs + k_step, mask=ka_in & in_L[None, :], other=0.0)
    elif EVEN:
        ka = tl.load(ka_ptrs + k_step)
    else:
        ka = tl.load(ka_ptrs + k_step, mask=ka_in, other=0.0)
    scores = tl.dot(qa, ka, input_precision=PRECISION)
    if HAS_DB:
        if MASKED:
            kb = tl.load(kb_ptrs + k_step, mask=kb_in & in_L[None, :], other=0.0)
        elif EVEN:
            kb = tl.load(kb_ptrs + k_step)
        else:
            kb = tl.load(kb_ptrs + k_step, mask=kb_in, other=0.0)
        scores = tl.dot(qb, kb, scores, input_precision=PRECISION)
    scores = scores * log2_scale
    if MASKED:
        gap = x_Q[:, None] - l_L[None, :]
        see = in_L[None, :] & (gap >= 0) & ((gap < window) | (l_L[None, :] < sink))
        if HAS_BLIND:
            hidden_L = tl.load(blind_ptr + l_L * stride_blind_m, mask=in_L & is_blind, other=0)
            see = see & (hidden_L == 0)[None, :]
        scores = tl.where(see, scores, float("-inf"))
    new_top_Q = tl.maximum(top_Q, tl.max(scores, 1))
    if MASKED:
        # A row that has seen nothing yet: any finite value in place of -inf leaves exp2(-inf) = 0 instead of NaN.
        base_Q = tl.where(new_top_Q == float("-inf"), 0.0, new_top_Q)
    else:
        base_Q = new_top_Q
    weights = tl.exp2(scores - base_Q[:, None])
    shrink_Q = tl.exp2(top_Q - base_Q)
    total_Q = total_Q * shrink_Q + tl.sum(weights, 1)
    acc_a = acc_a * shrink_Q[:, None]
    if MASKED:
        va = tl.load(va_ptrs + v_step, mask=va_in & in_L[:, None], other=0.0)
    elif EVEN:
        va = tl.load(va_ptrs + v_step)
    else:
        va = tl.load(va_ptrs + v_step, mask=va_in, other=0.0)
    weights = weights.to(va.dtype)
    acc_a = tl.dot(weights, va, acc_a, input_precision=PRECISION)
    if HAS_EB:
        if MASKED:
            vb = tl.load(vb_ptrs + v_step, mask=vb_in & in_L[:, None], other=0.0)
        elif EVEN:
            vb = tl.load(vb_ptrs + v_step)
        else:
            vb = tl.load(vb_ptrs + v_step, mask=vb_in, other=0.0)
        acc_b = tl.dot(weights, vb, acc_b * shrink_Q[:, None], input_precision=PRECISION)
    return acc_a, acc_b, total_Q, new_top_Q


@triton.jit(do_not_specialize=["n_long", "window", "sink", "q_offset", "N", "B"])
def hybrid_attention_kernel(  # noqa: PLR0913
    q_ptr: Any,
    k_ptr: Any,
    v_ptr: Any,
    out_ptr: Any,
    heads_ptr: Any,  # int32 [2, H]: the heads, those with the most work first; their modes
    range_ptr: Any,  # int32 [B, 2]: first real key and the end of the real keys
    blind_ptr: Any,  # uint8 [B, M], read for blind heads only
    stride_qb: Any,
    stride_qh: Any,
    stride_qn: Any,
    stride_qd: Any,
    stride_kb: Any,
    stride_kh: Any,
    stride_km: Any,
    stride_kd: Any,
    stride_vb: Any,
    stride_vh: Any,
    stride_vm: Any,
    stride_vd: Any,
    stride_ob: Any,
    stride_oh: Any,
    stride_on: Any,
    stride_od: Any,
    stride_blind_b: Any,
    stride_blind_m: Any,
    n_long: Any,  # the first n_long heads of the table see without end
    window: Any,
    sink: Any,
    q_offset: Any,
    N: Any,
    B: Any,
    log2_scale: Any,  # scale x log2(e), positive
    H: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,  # head size of the values
    DA: tl.constexpr,  # D is split into DA + DB, E into EA + EB: powers of two, DB = 0 where one tile does
    DB: tl.constexpr,
    EA: tl.constexpr,
    EB: tl.constexpr,
    HAS_BLIND: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    # Which block of which head: heads without end before the others, and of each the last block (most keys) first.
    pid = tl.program_id(0)
    n_blocks = tl.cdiv(N, BLOCK_M)
    n_first = n_long * B * n_blocks
    is_long = pid < n_first
    nth = tl.where(is_long, pid, pid - n_first)
    width = tl.where(is_long, n_long, H - n_long) * B
    block = n_blocks - 1 - nth // width
    slot = (nth % width) // B + tl.where(is_long, 0, n_long)
    b = (nth % B).to(tl.int64)
    head = tl.load(heads_ptr + slot).to(tl.int64)
    mode = tl.load(heads_ptr + H + slot)
    start = tl.load(range_ptr + 2 * b)
    n_real = tl.maximum(tl.load(range_ptr + 2 * b + 1) - start, 0)

    n_Q = block * BLOCK_M + tl.arange(0, BLOCK_M)
    x_Q = n_Q + (q_offset - start)
    x_low = block * BLOCK_M + q_offset - start
    x_high = tl.minimum((block + 1) * BLOCK_M, N) - 1 + q_offset - start
    window = tl.where(mode == STREAM, window, ENDLESS)
    sink = tl.where(mode == STREAM, sink, 0)

    # Tile numbers; the ranges of the drawing above.
    reach = tl.where(mode == OFF, 0, tl.maximum(tl.minimum(n_real, x_high + 1), 0))
    n_tiles = tl.cdiv(reach, BLOCK_N)
    n_safe = tl.where(mode == BLIND, 0, tl.maximum(tl.minimum(reach, x_low + 1), 0) // BLOCK_N)
    win_first = tl.minimum(tl.maximum(x_low - window + 1, 0) // BLOCK_N, n_tiles)
    win_inside = tl.minimum(tl.cdiv(tl.maximum(x_high - window + 1, 0), BLOCK_N), n_tiles)
    win_upper = tl.maximum(win_inside, n_safe)
    sink_whole = tl.minimum(tl.minimum(sink // BLOCK_N, win_first), n_safe)
    sink_end = tl.maximum(tl.minimum(tl.cdiv(sink, BLOCK_N), win_first), sink_whole)

    DB_SIZE: tl.constexpr = DB if DB > 0 else 16
    EB_SIZE: tl.constexpr = EB if EB > 0 else 16
    EVEN: tl.constexpr = (DA + DB == D) and (EA + EB == E)
    da = tl.arange(0, DA)
    db = DA + tl.arange(0, DB_SIZE)
    ea = tl.arange(0, EA)
    eb = EA + tl.arange(0, EB_SIZE)
    l_L = tl.arange(0, BLOCK_N)
    q_base = q_ptr + b * stride_qb + head * stride_qh + (block * BLOCK_M).to(tl.int64) * stride_qn
    row_Q = tl.arange(0, BLOCK_M)[:, None]
    in_Q = n_Q[:, None] < N
    qa = tl.load(q_base + row_Q * stride_qn + da[None, :] * stride_qd, mask=in_Q & (da[None, :] < D), other=0.0)
    qb = qa
    if DB > 0:
        qb = tl.load(q_base + row_Q * stride_qn + db[None, :] * stride_qd, mask=in_Q & (db[None, :] < D), other=0.0)
    k_base = k_ptr + b * stride_kb + (head // GROUP) * stride_kh + start.to(tl.int64) * stride_km
    v_base = v_ptr + b * stride_vb + (head // GROUP) * stride_vh + start.to(tl.int64) * stride_vm
    ka_ptrs = k_base + da[:, None] * stride_kd + l_L[None, :] * stride_km
    kb_ptrs = k_base + db[:, None] * stride_kd + l_L[None, :] * stride_km
    va_ptrs = v_base + l_L[:, None] * stride_vm + ea[None, :] * stride_vd
    vb_ptrs = v_base + l_L[:, None] * stride_vm + eb[None, :] * stride_vd
    blind_base = blind_ptr + b * stride_blind_b + start.to(tl.int64) * stride_blind_m
    ka_in = da[:, None] < D
    kb_in = db[:, None] < D
    va_in = ea[None, :] < E
    vb_in = eb[None, :] < E

    acc_a = tl.zeros([BLOCK_M, EA], dtype=tl.float32)
    acc_b = tl.zeros([BLOCK_M, EB_SIZE], dtype=tl.float32)
    total_Q = tl.zeros([BLOCK_M], dtype=tl.float32)
    top_Q = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    for t in tl.range(0, sink_whole + win_upper - win_inside):
        tile = tl.where(t < sink_whole, t, t - sink_whole + win_inside)
        acc_a, acc_b, total_Q, top_Q = _tile(
            tile * BLOCK_N, acc_a, acc_b, total_Q, top_Q, qa, qb, ka_ptrs, kb_ptrs, va_ptrs, vb_ptrs, blind_base,
            x_Q, n_real, window, sink, False, ka_in, kb_in, va_in, vb_in, stride_km, stride_vm, stride_blind_m,
            log2_scale, False, False, DB > 0, EB > 0, EVEN, PRECISION, BLOCK_N,
        )  # fmt: skip
    n_sink = sink_end - sink_whole
    n_lower = n_sink + win_inside - win_first
    for t in tl.range(0, n_lower + n_tiles - win_upper, num_stages=1):
        tile = tl.where(t < n_sink, sink_whole + t, tl.where(t < n_lower, win_first - n_sink, win_upper - n_lower) + t)
        acc_a, acc_b, total_Q, top_Q = _tile(
            tile * BLOCK_N, acc_a, acc_b, total_Q, top_Q, qa, qb, ka_ptrs, kb_ptrs, va_ptrs, vb_ptrs, blind_base,
            x_Q, n_real, window, sink, mode == BLIND, ka_in, kb_in, va_in, vb_in, stride_km, stride_vm,
            stride_blind_m, log2_scale, True, HAS_BLIND, DB > 0, EB > 0, EVEN, PRECISION, BLOCK_N,
        )  # fmt: skip

    total_Q = tl.where(total_Q == 0.0, 1.0, total_Q)  # saw nothing: the sum is zero, and so is the result
    o_base = out_ptr + b * stride_ob + head * stride_oh + (block * BLOCK_M).to(tl.int64) * stride_on
    o_ptrs = o_base + row_Q * stride_on + ea[None, :] * stride_od
    tl.store(o_ptrs, (acc_a / total_Q[:, None]).to(out_ptr.dtype.element_ty), mask=in_Q & (ea[None, :] < E))
    if EB > 0:
        o_ptrs = o_base + row_Q * stride_on + eb[None, :] * stride_od
        tl.store(o_ptrs, (acc_b / total_Q[:, None]).to(out_ptr.dtype.element_ty), mask=in_Q & (eb[None, :] < E))
