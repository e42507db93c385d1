"""The Triton kernel in Triton's interpreter. Not collected: `test_triton.py` runs this file in a process of its own,
since the interpreter is chosen when a kernel is decorated. Its bfloat16 product is wrong: float32 and float16 only.

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core_bench.kernels.hybrid_attention import hybrid_attention
from core_bench.kernels.hybrid_attention.call import Call
from core_bench.kernels.hybrid_attention.impl.reference import hybrid_attention_reference, visible_BHNM
from core_bench.kernels.hybrid_attention.impl.triton import Config, hybrid_attention_triton

MODES = ("full", "stream", "off", "blind")
HEAD_SIZES = (16, 20, 64, 72, 80, 128, 192, 256)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@st.composite
def problems(draw: st.DrawFn, heads: int = 6) -> dict[str, Any]:
    """A call of the implementation: any shape, modes, offset, ranges; keys and values are strided."""
    group = draw(st.sampled_from([g for g in (1, 2, 3, 5, 7) if g <= heads]))
    K = draw(st.integers(1, max(1, heads // group)))
    B = draw(st.integers(1, 2))
    N = draw(st.sampled_from([1, 2, 17, 33, 70]))
    M = max(1, N + draw(st.sampled_from([0, 0, 40, 90])) - draw(st.sampled_from([0, 0, 5])))
    D = draw(st.sampled_from(HEAD_SIZES))
    dtype = draw(st.sampled_from([torch.float32, torch.float16]))
    seed = draw(st.integers(0, 1000))
    starts = [draw(st.sampled_from([0, 0, 1, M // 2, M])) for _ in range(B)]
    return {
        "q_BHND": normal(B, K * group, N, D, seed=seed, dtype=dtype),
        "k_BKMD": normal(B, M, K, D, seed=seed + 1, dtype=dtype).transpose(1, 2),
        "v_BKMD": normal(B, M, K, D, seed=seed + 2, dtype=dtype).transpose(1, 2),
        "modes": tuple(draw(st.sampled_from(MODES)) for _ in range(K * group)),
        "window": draw(st.sampled_from([1, 2, 16, 31, 48, 1 << 40])),
        "sink": draw(st.sampled_from([0, 1, 16, 20, 40, 1 << 40])),
        "q_offset": max(0, draw(st.sampled_from([M - N, M - N, 0, M // 2, M + 3]))),
        "kv_range_B2": tuple((s, draw(st.sampled_from([M, M, (s + M) // 2]))) for s in starts),
        "blind_keys_BM": normal(B, M, seed=seed + 3) < draw(st.sampled_from([-9.0, 0.0, 9.0])),
        "scale": draw(st.sampled_from([D**-0.5, D**-0.5, -0.1, 0.0])),
        "config": Config(draw(st.sampled_from([16, 32, 64])), draw(st.sampled_from([16, 32])), 4, 1),
    }


def call_of(problem: dict[str, Any]) -> Call:
    return Call(**{name: value for name, value in problem.items() if name != "config"})


def by_kernel(problem: dict[str, Any]) -> Tensor:
    return hybrid_attention_triton(call_of(problem), problem["config"])


def exact(problem: dict[str, Any]) -> Tensor:
    wide = {n: problem[n].double() for n in ("q_BHND", "k_BKMD", "v_BKMD")}
    return hybrid_attention_reference(call_of(problem | wide))


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_equals_the_reference(problem: dict[str, Any]) -> None:
    expected = exact(problem)
    got = by_kernel(problem)
    assert got.dtype == problem["q_BHND"].dtype
    rounded = hybrid_attention_reference(call_of(problem))
    own_error = (rounded.double() - expected).abs().max()
    rounding = torch.finfo(got.dtype).eps * problem["v_BKMD"].abs().max()  # of one weight, and of sums in another order
    assert (got.double() - expected).abs().max() <= 2 * own_error + 2 * rounding
    sees_none_BHN = ~visible(problem).any(-1)
    assert not got[sees_none_BHN].any()


def visible(problem: dict[str, Any]) -> Tensor:
    names = ("modes", "window", "sink", "q_offset", "kv_range_B2", "blind_keys_BM")
    n_queries, n_keys = problem["q_BHND"].shape[2], problem["k_BKMD"].shape[2]
    return visible_BHNM(n_queries, n_keys, device=torch.device("cpu"), **{name: problem[name] for name in names})


@settings(max_examples=15, deadline=None)
@given(problem=problems(heads=3), key=st.integers(0, 10_000), in_values=st.booleans())
def test_a_key_counts_exactly_where_it_is_seen(problem: dict[str, Any], key: int, in_values: bool) -> None:
    """Bit for bit nothing changes for the queries that do not see it; the value of a seen one shows."""
    key %= problem["k_BKMD"].shape[2]
    before = by_kernel(problem)
    name = "v_BKMD" if in_values else "k_BKMD"
    changed = problem[name].clone()
    changed[:, :, key] += 1000.0
    after = by_kernel(problem | {name: changed})
    sees_BHN = visible(problem)[..., key]
    assert torch.equal(after[~sees_BHN], before[~sees_BHN])
    if in_values and before.dtype == torch.float32:  # in float16 a small weight may round the change away
        assert (after != before).any(-1)[sees_BHN].all()


def test_padding_is_never_read() -> None:
    """What lies outside a row's range may be NaN: buffers are not always cleared."""
    q, k, v = (normal(1, 2, 70, 64, seed=s) for s in range(3))
    for x in (k, v):
        x[:, :, :7] = float("nan")
        x[:, :, 60:] = float("nan")
    out = hybrid_attention(q, k, v, ["full", "stream"], window=20, sink=3, kv_range_B2=[(7, 60)], impl="triton")
    assert out.isfinite().all()


def test_the_op_reaches_it_and_refuses_what_it_cannot_do() -> None:
    q, k, v = (normal(1, 2, 9, 16, seed=s) for s in range(3))
    call: dict[str, Any] = {"heads": ["full", "stream"], "window": 3, "sink": 1}
    torch.testing.assert_close(
        hybrid_attention(q, k, v, impl="triton", **call), hybrid_attention(q, k, v, impl="reference", **call)
    )
    with pytest.raises(ValueError, match=r"q_BHND: triton expects .*, got torch\.float64"):
        hybrid_attention(q.double(), k.double(), v.double(), impl="triton", **call)
    with pytest.raises(RuntimeError, match="computes no gradients"):
        hybrid_attention(q.requires_grad_(), k, v, impl="triton", **call)
