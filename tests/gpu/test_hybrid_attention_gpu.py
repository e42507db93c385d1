"""Every implementation that runs on a CUDA device, against float64 there.

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from core_bench.kernels.hybrid_attention import hybrid_attention
from core_bench.kernels.hybrid_attention.impl.reference import visible_BHNM

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device (tests/SKIPS.md)"),
]
QKV = tuple[Tensor, Tensor, Tensor]
IMPLEMENTATIONS = ("sdpa", "triton", "flex")
MODES = ("full", "stream", "off", "blind")
MIXED = ("full", "stream", "stream", "blind", "off", "stream", "full", "stream")
HEAD_SIZES = (16, 64, 72, 80, 128, 192, 256)


def inputs(B: int, H: int, K: int, N: int, M: int, D: int, dtype: torch.dtype, seed: int) -> QKV:
    """Queries, keys and values as a projection leaves them: [B, length, heads, D], transposed."""
    generator = torch.Generator("cuda").manual_seed(seed)
    sizes = ((B, N, H, D), (B, M, K, D), (B, M, K, D))
    q, k, v = (torch.randn(s, generator=generator, device="cuda").to(dtype).transpose(1, 2) for s in sizes)
    return q, k, v


def check(qkv: QKV, impl: str, **call: Any) -> None:
    """No further from float64 than twice the low-precision oracle, and one rounding."""
    q, k, v = qkv
    got = hybrid_attention(q, k, v, impl=impl, **call)
    exact = hybrid_attention(q.double(), k.double(), v.double(), impl="reference", **call)
    rounded = hybrid_attention(q, k, v, impl="reference", **call)
    own_error = (rounded.double() - exact).abs().max()
    rounding = torch.finfo(q.dtype).eps * v.abs().max()
    assert (got.double() - exact).abs().max() <= 2 * own_error + 4 * rounding


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("D", HEAD_SIZES)
def test_head_sizes_and_dtypes(impl: str, dtype: torch.dtype, D: int) -> None:
    if impl == "flex" and D not in (64, 128):
        pytest.skip("every head size is compiled anew; two do (tests/SKIPS.md)")
    qkv = inputs(2, 8, 4, 700, 700, D, dtype, seed=D)
    blind = torch.rand(2, 700, generator=torch.Generator().manual_seed(D)).cuda() < 0.5
    check(qkv, impl, heads=MIXED, window=130, sink=20, kv_range_B2=[(0, 700), (77, 650)], blind_keys_BM=blind)


@pytest.mark.parametrize("case", range(40))
def test_triton_on_random_problems(case: int) -> None:
    rng = random.Random(case)
    K, group = rng.choice([1, 2, 4]), rng.choice([1, 2, 3, 5, 7])
    B, N = rng.choice([1, 2, 3]), rng.choice([1, 2, 31, 129, 600, 1500])
    M = N + rng.choice([0, 0, 1, 300])
    D, dtype = rng.choice(HEAD_SIZES), rng.choice([torch.bfloat16, torch.float16, torch.float32])
    starts = [rng.choice([0, 0, rng.randint(0, M)]) for _ in range(B)]
    check(
        inputs(B, K * group, K, N, M, D, dtype, seed=case),
        "triton",
        heads=[rng.choice(MODES) for _ in range(K * group)],
        window=rng.choice([1, 64, 100, 512, 10**12]),
        sink=rng.choice([0, 1, 64, 70, 10**12]),
        q_offset=rng.choice([M - N, 0, M]),
        kv_range_B2=[(s, rng.choice([M, rng.randint(s, M)])) for s in starts],
        blind_keys_BM=torch.rand(B, M, generator=torch.Generator().manual_seed(case)).cuda() < rng.random(),
    )


@pytest.mark.parametrize("impl", ["sdpa", "triton"])
def test_a_key_outside_the_view_changes_nothing_bit_for_bit(impl: str) -> None:
    q, k, v = inputs(1, 8, 4, 1000, 1000, 128, torch.bfloat16, seed=1)
    blind = torch.zeros(1, 1000, dtype=torch.bool, device="cuda")
    blind[:, 300:400] = True
    call: dict[str, Any] = {"window": 200, "sink": 10, "blind_keys_BM": blind}
    before = hybrid_attention(q, k, v, MIXED, impl=impl, **call)
    sees_BHNM = visible_BHNM(
        1000, 1000, modes=MIXED, q_offset=0, kv_range_B2=[(0, 1000)], device=torch.device("cuda"), **call
    )
    for key in (0, 9, 10, 127, 128, 350, 640, 999):
        k_new, v_new = k.clone(), v.clone()
        for x in (k_new, v_new):
            x[:, :, key] += 100.0
        after = hybrid_attention(q, k_new, v_new, MIXED, impl=impl, **call)
        sees_BHN = sees_BHNM[..., key]
        assert torch.equal(after[~sees_BHN], before[~sees_BHN])
        assert not torch.equal(after[sees_BHN], before[sees_BHN])


def test_triton_at_lengths_beyond_32_bits() -> None:
    """Offsets inside a tensor exceed 2^31 elements; a few queries are compared, the rest would not fit the oracle."""
    M, H, D = 300_000, 64, 128
    generator = torch.Generator("cuda").manual_seed(0)
    k, v = (torch.randn(1, M, H, D, generator=generator, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    q = torch.randn(1, 32, H, D, generator=generator, device="cuda", dtype=torch.bfloat16)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    heads = ("full", "stream") * (H // 2)
    out = hybrid_attention(q, k, v, heads, window=1024, sink=64, impl="triton")
    for head in (0, H - 2, H - 1):
        q_few, k_few, v_few = (x[:, head : head + 1].double() for x in (q, k, v))
        exact = hybrid_attention(q_few, k_few, v_few, [heads[head]], window=1024, sink=64, impl="reference")
        torch.testing.assert_close(out[:, head : head + 1].double(), exact, rtol=0, atol=2e-3)
