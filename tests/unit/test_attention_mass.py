"""The mass tile by tile against the oracle, and the oracle against softmax written by hand."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from core_bench.kernels.attention_mass import attention_mass
from core_bench.kernels.attention_mass.impl import tiled


@pytest.mark.parametrize("impl", ["reference", "tiled"])
def test_mass_by_hand(impl: str) -> None:
    """Scores ln 1, ln 2, ln 3, ln 4; the query at position 2 sees the first three: masses 1/6, 2/6, 3/6."""
    k = torch.tensor([1.0, 2.0, 3.0, 4.0]).log()[None, None, :, None]
    q = torch.ones(1, 1, 2, 1)
    sets = torch.tensor([[True, False, True, True], [False, True, False, False]])
    mass = attention_mass(q, k, rows_R=[2, 3], sets_SM=sets, scale=1.0, impl=impl)
    expected = torch.tensor([[4 / 6, 2 / 6], [8 / 10, 2 / 10]])
    torch.testing.assert_close(mass[0, 0], expected)
    assert mass.dtype == torch.float32


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_tiles_equal_the_reference(data: st.DataObject) -> None:
    K, group = data.draw(st.sampled_from([1, 4])), data.draw(st.sampled_from([1, 2, 7]))
    B, M = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 60))
    rows = data.draw(st.lists(st.integers(0, M - 1), min_size=1, max_size=6))
    start = data.draw(st.lists(st.integers(0, M), min_size=B, max_size=B))
    end = [data.draw(st.integers(first, M)) for first in start]
    tile = data.draw(st.sampled_from([1, 7, 64]))
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    q = torch.randn(B, K * group, len(rows), 8, generator=g).to(dtype)
    k = torch.randn(B, K, M, 8, generator=g).to(dtype)
    sets = torch.rand(3, M, generator=g) < 0.4
    kwargs: dict[str, Any] = {"rows_R": rows, "sets_SM": sets, "kv_range_B2": list(zip(start, end, strict=True))}
    with mock.patch.object(tiled, "TILE", tile):
        fast = attention_mass(q, k, impl="tiled", **kwargs)
    torch.testing.assert_close(fast, attention_mass(q, k, impl="reference", **kwargs), rtol=0, atol=2e-6)
    for b in range(B):
        for r, row in enumerate(rows):
            if row < start[b] or start[b] == end[b]:
                assert not fast[b, :, r].any()


def test_all_visible_keys_hold_all_the_mass_even_with_huge_scores() -> None:
    q = torch.full((1, 2, 1, 4), 200.0)
    k = torch.randn(1, 1, 30, 4, generator=torch.Generator().manual_seed(0)) * 50
    everything = torch.ones(1, 30, dtype=torch.bool)
    mass = attention_mass(q, k, rows_R=[20], sets_SM=everything)
    assert math.isclose(float(mass.min()), 1.0, abs_tol=1e-6)


class LargestTensor(TorchDispatchMode):
    """Remembers the size, in elements, of the largest tensor that any operation returned."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not out._is_view():
            self.elements = max(self.elements, out.numel())
        return out


def test_memory_follows_the_tile_not_the_prompt() -> None:
    """No tensor grows with the keys, but for those that were handed over (and views of them)."""

    def largest(M: int) -> int:
        q, k, sets = torch.randn(1, 8, 3, 4), torch.randn(1, 4, M, 4), torch.rand(9, M) < 0.1
        with LargestTensor() as seen:
            attention_mass(q, k, rows_R=[5, M // 2, M - 1], sets_SM=sets)
        return seen.elements

    assert largest(20_000) == largest(5_000) <= 8 * 3 * tiled.TILE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"impl": "triton"}, "impl: expected one of reference, tiled, got 'triton'"),
        ({"rows_R": [0]}, "rows_R: expected 2 positions"),
        ({"rows_R": [0, 9]}, r"rows_R: expected 2 positions in \[0, 9\)"),
        ({"sets_SM": torch.zeros(1, 8, dtype=torch.bool)}, "sets_SM: expected bool"),
        ({"sets_SM": torch.zeros(1, 9)}, "sets_SM: expected bool"),
        ({"kv_range_B2": [(0, 10)]}, "kv_range_B2"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    kwargs: dict[str, Any] = {"rows_R": [0, 8], "sets_SM": torch.zeros(1, 9, dtype=torch.bool)} | change
    with pytest.raises(ValueError, match=message):
        attention_mass(torch.zeros(1, 4, 2, 8), torch.zeros(1, 2, 9, 8), **kwargs)
