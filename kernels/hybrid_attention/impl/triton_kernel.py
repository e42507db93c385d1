"""The Triton kernel of the op: one program computes one block of queries of one head, whatever the head's mode.

Positions are counted from the row's first real key. Of the tiles of BLOCK_N keys a head needs, from low to high:

    sink, whole | sink, cut | window, lower edge | window, inside | upper edge (causal, end of the real keys)
     unmasked      masked          masked             unmasked         masked

A full head has a window without end, a silenced one needs no tile, and for a blind one every tile is masked. The
unmasked tiles are walked first, then the masked ones; a tile outside all of this is never read.

Shape suffixes: B batch, H query heads, N queries, M keys, D head size, Q queries of a block, L keys of a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

OFF, STREAM, FULL, BLIND = (tl.constexpr(code) for code in range(4))
ENDLESS = tl.constexpr(1 << 30)


@triton.jit
def _load(
    base: tl.tensor, offsets: tl.tensor, in_d: tl.tensor, in_l: tl.tensor, MASKED: tl.constexpr, EVEN: tl.constexpr
) -> tl.tensor:
    """A tile of keys or values. Keys that are not real are never read; a tile inside needs none, or the head size's."""
    if MASKED:
        return tl.load(base + offsets, mask=in_d & in_l, other=0.0)
    elif EVEN:
        return tl.load(base + offsets)
    else:
        return tl.load(base + offsets, mask=in_d, other=0.0)


@triton.jit
def _tile(
    tile: tl.tensor,
    acc_a: tl.tensor,
    acc_b: tl.tensor,
    total_Q: tl.tensor,
    top_Q: tl.tensor,
    qa: tl.tensor,
    qb: tl.tensor,
    k_base: tl.tensor,
    v_base: tl.tensor,
    blind_base: tl.tensor,
    x_Q: tl.tensor,
    n_real: tl.tensor,
    window: tl.tensor,
    sink: tl.tensor,
    is_blind: tl.tensor,
    stride_km: tl.tensor,
    stride_kd: tl.tensor,
    stride_vm: tl.tensor,
    stride_vd: tl.tensor,
    stride_blind_m: tl.tensor,
    log2_scale: tl.tensor,
    MASKED: tl.constexpr,
    HAS_BLIND: tl.constexpr,
    D: tl.constexpr,
    DA: tl.constexpr,
    DB: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> tl.tuple:
    """One step of online softmax over one tile of keys; the sums so far go in and come out."""
    EVEN: tl.constexpr = DA + DB == D
    DB_SIZE: tl.constexpr = DB if DB > 0 else 16
    n_L = tl.arange(0, BLOCK_N)
    l_L = tile * BLOCK_N + n_L
    in_L = l_L < n_real
    da = tl.arange(0, DA)
    db = DA + tl.arange(0, DB_SIZE)
    # The way to the tile in 64 bits, as a scalar; the way inside it in 32: half the registers of a tile of pointers.
    k_tile = k_base + tile.to(tl.int64) * BLOCK_N * stride_km
    v_tile = v_base + tile.to(tl.int64) * BLOCK_N * stride_vm
    ka_offsets = da[:, None] * stride_kd + n_L[None, :] * stride_km
    ka = _load(k_tile, ka_offsets, da[:, None] < D, in_L[None, :], MASKED, EVEN)
    scores = tl.dot(qa, ka, input_precision=PRECISION)
    if DB > 0:
        kb_offsets = db[:, None] * stride_kd + n_L[None, :] * stride_km
        kb = _load(k_tile, kb_offsets, db[:, None] < D, in_L[None, :], MASKED, EVEN)
        scores = tl.dot(qb, kb, scores, input_precision=PRECISION)
    if MASKED:
        scores = scores * log2_scale
        gap = x_Q[:, None] - l_L[None, :]
        see = in_L[None, :] & (gap >= 0) & ((gap < window) | (l_L[None, :] < sink))
        if HAS_BLIND:
            hidden_L = tl.load(blind_base + l_L * stride_blind_m, mask=in_L & is_blind, other=0)
            see = see & (hidden_L == 0)[None, :]
        scores = tl.where(see, scores, float("-inf"))
        new_top_Q = tl.maximum(top_Q, tl.max(scores, 1))
        # A row that has seen nothing yet: any finite value in place of -inf leaves exp2(-inf) = 0 instead of NaN.
        base_Q = tl.where(new_top_Q == float("-inf"), 0.0, new_top_Q)
        weights = tl.exp2(scores - base_Q[:, None])
    else:
        new_top_Q = tl.maximum(top_Q, tl.max(scores, 1) * log2_scale)
        base_Q = new_top_Q
        weights = tl.exp2(scores * log2_scale - base_Q[:, None])
    shrink_Q = tl.exp2(top_Q - base_Q)
    total_Q = total_Q * shrink_Q + tl.sum(weights, 1)
    va_offsets = n_L[:, None] * stride_vm + da[None, :] * stride_vd
    va = _load(v_tile, va_offsets, da[None, :] < D, in_L[:, None], MASKED, EVEN)
    weights = weights.to(va.dtype)
    acc_a = tl.dot(weights, va, acc_a * shrink_Q[:, None], input_precision=PRECISION)
    if DB > 0:
        vb_offsets = n_L[:, None] * stride_vm + db[None, :] * stride_vd
        vb = _load(v_tile, vb_offsets, db[None, :] < D, in_L[:, None], MASKED, EVEN)
        acc_b = tl.dot(weights, vb, acc_b * shrink_Q[:, None], input_precision=PRECISION)
    return acc_a, acc_b, total_Q, new_top_Q


@triton.jit(do_not_specialize=["n_long", "window", "sink", "q_offset", "N", "B"])
def hybrid_attention_kernel(
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    out_ptr: tl.tensor,
    heads_ptr: tl.tensor,  # int32 [2, H]: the heads, those with the most work first; their modes
    range_ptr: tl.tensor,  # int32 [B, 2]: first real key and the end of the real keys
    blind_ptr: tl.tensor,  # uint8 [B, M], read for blind heads only
    stride_qb: tl.tensor,
    stride_qh: tl.tensor,
    stride_qn: tl.tensor,
    stride_qd: tl.tensor,
    stride_kb: tl.tensor,
    stride_kh: tl.tensor,
    stride_km: tl.tensor,
    stride_kd: tl.tensor,
    stride_vb: tl.tensor,
    stride_vh: tl.tensor,
    stride_vm: tl.tensor,
    stride_vd: tl.tensor,
    stride_ob: tl.tensor,
    stride_oh: tl.tensor,
    stride_on: tl.tensor,
    stride_od: tl.tensor,
    stride_blind_b: tl.tensor,
    stride_blind_m: tl.tensor,
    n_long: tl.tensor,  # the first n_long heads of the table see without end
    window: tl.tensor,
    sink: tl.tensor,
    q_offset: tl.tensor,
    N: tl.tensor,
    B: tl.tensor,
    log2_scale: tl.tensor,  # scale x log2(e), positive
    H: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DA: tl.constexpr,  # D is covered by DA + DB: powers of two, DB = 0 where one tile does
    DB: tl.constexpr,
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
    da = tl.arange(0, DA)
    db = DA + tl.arange(0, DB_SIZE)
    q_base = q_ptr + b * stride_qb + head * stride_qh + (block * BLOCK_M).to(tl.int64) * stride_qn
    k_base = k_ptr + b * stride_kb + (head // GROUP) * stride_kh + start.to(tl.int64) * stride_km
    v_base = v_ptr + b * stride_vb + (head // GROUP) * stride_vh + start.to(tl.int64) * stride_vm
    blind_base = blind_ptr + b * stride_blind_b + start.to(tl.int64) * stride_blind_m
    row_Q = tl.arange(0, BLOCK_M)[:, None]
    in_Q = n_Q[:, None] < N
    qa = tl.load(q_base + row_Q * stride_qn + da[None, :] * stride_qd, mask=in_Q & (da[None, :] < D), other=0.0)
    qb = qa
    if DB > 0:
        qb = tl.load(q_base + row_Q * stride_qn + db[None, :] * stride_qd, mask=in_Q & (db[None, :] < D), other=0.0)

    acc_a = tl.zeros([BLOCK_M, DA], dtype=tl.float32)
    acc_b = tl.zeros([BLOCK_M, DB_SIZE], dtype=tl.float32)
    total_Q = tl.zeros([BLOCK_M], dtype=tl.float32)
    top_Q = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    for t in tl.range(0, sink_whole + win_upper - win_inside):
        tile = tl.where(t < sink_whole, t, t - sink_whole + win_inside)
        acc_a, acc_b, total_Q, top_Q = _tile(
            tile, acc_a, acc_b, total_Q, top_Q, qa, qb, k_base, v_base, blind_base, x_Q, n_real, window, sink, False,
            stride_km, stride_kd, stride_vm, stride_vd, stride_blind_m, log2_scale,
            False, False, D, DA, DB, PRECISION, BLOCK_N,
        )  # fmt: skip
    n_sink = sink_end - sink_whole
    n_lower = n_sink + win_inside - win_first
    for t in tl.range(0, n_lower + n_tiles - win_upper):
        tile = tl.where(t < n_sink, sink_whole + t, tl.where(t < n_lower, win_first - n_sink, win_upper - n_lower) + t)
        acc_a, acc_b, total_Q, top_Q = _tile(
            tile, acc_a, acc_b, total_Q, top_Q, qa, qb, k_base, v_base, blind_base, x_Q, n_real, window, sink,
            mode == BLIND, stride_km, stride_kd, stride_vm, stride_vd, stride_blind_m, log2_scale,
            True, HAS_BLIND, D, DA, DB, PRECISION, BLOCK_N,
        )  # fmt: skip

    total_Q = tl.where(total_Q == 0.0, 1.0, total_Q)  # saw nothing: the sum is zero, and so is the result
    o_base = out_ptr + b * stride_ob + head * stride_oh + (block * BLOCK_M).to(tl.int64) * stride_on
    o_ptrs = o_base + row_Q * stride_on + da[None, :] * stride_od
    tl.store(o_ptrs, (acc_a / total_Q[:, None]).to(out_ptr.dtype.element_ty), mask=in_Q & (da[None, :] < D))
    if DB > 0:
        o_ptrs = o_base + row_Q * stride_on + db[None, :] * stride_od
        tl.store(o_ptrs, (acc_b / total_Q[:, None]).to(out_ptr.dtype.element_ty), mask=in_Q & (db[None, :] < D))
