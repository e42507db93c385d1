"""FlexAttention's tiles against the rule pair by pair, and its compiled kernels against the oracle.

The uncompiled form is in the property test of all implementations; it does not read the tiles, compiled kernels do.
Each compiled shape costs 6 to 15 seconds: here are three, in all tests at most six.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core_bench.kernels.hybrid_attention import hybrid_attention
from core_bench.kernels.hybrid_attention.impl import flex
from core_bench.kernels.hybrid_attention.impl.reference import visible_BHNM

CPU = torch.device("cpu")
MODES = ("full", "stream", "off", "blind")
LENGTHS = st.one_of(st.integers(1, 20), st.sampled_from([127, 128, 129, 255, 256, 257, 300, 390]))


def seen_BXNM(
    n: int, m: int, window: int, sink: int, offset: int, ranges: Sequence[tuple[int, int]], blind_BM: torch.Tensor
) -> torch.Tensor:
    return visible_BHNM(
        n, m, modes=MODES, window=window, sink=sink, q_offset=offset, kv_range_B2=ranges, blind_keys_BM=blind_BM,
        device=CPU,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(n=LENGTHS, m=LENGTHS, window=LENGTHS, sink=st.one_of(st.just(0), LENGTHS), data=st.data())
def test_tiles_are_those_that_hold_a_visible_pair(n: int, m: int, window: int, sink: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, max(m - n, 0) + 150))
    ranges = []
    for _ in range(2):
        start = data.draw(st.integers(0, m))
        ranges.append((start, data.draw(st.integers(start, m))))
    blind_BM = torch.zeros(2, m, dtype=torch.bool)
    blind_BM[:, data.draw(st.integers(0, m)) : data.draw(st.integers(0, m))] = True
    some, every = flex.tile_rule(n, m, window, sink, offset, tuple(ranges), blind_BM, CPU)
    seen = seen_BXNM(n, m, window, sink, offset, ranges, blind_BM)
    size = flex.TILE
    for t in range(some.shape[2]):
        for c in range(some.shape[3]):
            block = seen[:, :, t * size : (t + 1) * size, c * size : (c + 1) * size]
            any_BX = block.flatten(2).any(-1)
            whole_BX = block.flatten(2).all(-1) & (block.shape[2] > 0 and block.shape[3] == size)
            # A mode's tiles hold every visible pair, and only "blind" may visit one that holds none.
            assert bool((some[:, :, t, c] | ~any_BX).all())
            assert torch.equal(some[:, :3, t, c], any_BX[:, :3])
            # A tile taken as wholly visible is: nobody masks it.
            assert bool((whole_BX | ~every[:, :, t, c]).all())
    whole_stream = every[:, 1] & ~every[:, 0]
    assert not bool(whole_stream.any()), "a streaming head sees no tile that a full head does not"


def test_most_tiles_of_a_long_prompt_are_not_masked_pair_by_pair() -> None:
    n = 4096
    some, every = flex.tile_rule(n, n, 1024, 128, 0, ((0, n),), None, CPU)
    cut = (some & ~every).sum(-1)[0]
    assert int(cut[0].max()) == 1, "of a full head, the diagonal tile"
    assert int(cut[1].max()) == 2, "of a streaming head, the diagonal tile and the far end of the window"
    assert int(some[0, 1].sum(-1).max()) == 1 + 9
    assert int(some[0, 2].sum()) == 0


@pytest.mark.parametrize(("length", "expected"), [(1, 1), (2, 128), (128, 128), (129, 256), (4096, 4096), (4097, 4608)])
def test_buckets(length: int, expected: int) -> None:
    assert flex.bucket(length) == expected


@given(st.integers(2, 200_000))
def test_a_bucket_adds_at_most_an_eighth_or_a_tile(length: int) -> None:
    grown = flex.bucket(length)
    assert length <= grown < length + max(flex.TILE, length / 8 + 1)
    assert grown % flex.TILE == 0


@pytest.mark.skipif(flex.why_not(CPU) is not None, reason=f"no compiled FlexAttention: {flex.why_not(CPU)}")
@pytest.mark.parametrize(
    ("n", "m", "size", "dtype"),
    [
        pytest.param(300, 300, 24, torch.float32),
        pytest.param(70, 300, 80, torch.bfloat16, marks=pytest.mark.slow),
        pytest.param(1, 300, 24, torch.float32, marks=pytest.mark.slow),
    ],
)
def test_compiled_kernels_agree_with_the_oracle(n: int, m: int, size: int, dtype: torch.dtype) -> None:
    """One kernel serves every window, sink, offset, range and mix of modes of its shapes."""
    generator = torch.Generator().manual_seed(n)
    q = torch.randn(2, 6, n, size, generator=generator).to(dtype)
    k, v = (torch.randn(2, 2, m, size, generator=generator).to(dtype) for _ in range(2))
    blind_BM = torch.rand(2, m, generator=generator) < 0.3
    blind_BM[:, 128:256] = True
    blind_BM[0, :140] = True
    ranges = ((5, m - 7), (130, m))
    tolerance = {torch.float32: 5e-6, torch.bfloat16: 2e-2}[dtype]
    torch._dynamo.reset()
    counts = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for modes, window, sink, offset in (
        (("full", "stream", "off", "blind", "stream", "full"), 33, 5, m - n),
        (("blind", "full", "stream", "stream", "off", "full"), 1, 0, m - n),
        (("stream", "full", "blind", "off", "stream", "blind"), 128, 400, (m - n) // 2),
    ):
        call: dict[str, Any] = {"window": window, "sink": sink, "q_offset": offset, "kv_range_B2": ranges}
        found = hybrid_attention(q, k, v, modes, blind_keys_BM=blind_BM, impl="flex", **call)
        exact = hybrid_attention(
            q.double(), k.double(), v.double(), modes, blind_keys_BM=blind_BM, impl="reference", **call
        )
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), exact, atol=tolerance, rtol=tolerance)
        seen = visible_BHNM(
            n, m, modes=modes, window=window, sink=sink, q_offset=offset, kv_range_B2=ranges,
            blind_keys_BM=blind_BM, device=CPU,
        )  # fmt: skip
        assert bool((found[~seen.any(-1)] == 0).all()), "rows that see nothing are exactly zero"
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == counts + 1, "one kernel"


def test_float64_is_refused_in_one_line() -> None:
    x = torch.zeros(1, 1, 2, 16, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="float64"):
        hybrid_attention(x, x, x, ["full"], window=1, sink=0, impl="flex")
