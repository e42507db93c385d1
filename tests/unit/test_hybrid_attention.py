"""The fast path against the oracle, and the oracle against hand-written visibility.

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core_bench.kernels.hybrid_attention import hybrid_attention

MODES = ("full", "stream", "off", "blind")


def draw_qkv(
    B: int, H: int, K: int, N: int, M: int, D: int = 8, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    shapes = ((B, H, N, D), (B, K, M, D), (B, K, M, D))
    q, k, v = (torch.randn(s, generator=g, dtype=torch.float64).to(dtype) for s in shapes)
    return q, k, v


def both(qkv: tuple[Tensor, Tensor, Tensor], **kwargs: Any) -> tuple[Tensor, Tensor]:
    """The fast path's result and the oracle's in float64 on the same (rounded) inputs."""
    fast = hybrid_attention(*qkv, **kwargs, impl="sdpa")
    q, k, v = (x.double() for x in qkv)
    return fast, hybrid_attention(q, k, v, impl="reference", **kwargs)


def by_hand(
    q: Tensor, k: Tensor, v: Tensor, modes: list[str], window: int, sink: int, start: list[int], visual: Tensor
) -> Tensor:
    """The definition in loops over single keys, sharing nothing with the implementations."""
    B, H, N, D = q.shape
    K, M = k.shape[1:3]
    out = torch.zeros(B, H, N, D, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            kv = h // (H // K)
            for n in range(N):
                i = M - N + n
                keys = []
                for j in range(start[b], i + 1):
                    in_reach = i - j < window or j - start[b] < sink
                    see = {"full": True, "stream": in_reach, "off": False, "blind": not visual[b, j]}
                    if see[modes[h]]:
                        keys.append(j)
                if not keys:
                    continue
                exps = [math.exp(float(q[b, h, n].double() @ k[b, kv, j].double()) / math.sqrt(D)) for j in keys]
                out[b, h, n] = sum(e * v[b, kv, j].double() for e, j in zip(exps, keys, strict=True)) / sum(exps)
    return out


def test_reference_equals_the_definition_written_in_loops() -> None:
    q, k, v = draw_qkv(2, 6, 2, 7, 11, dtype=torch.float64)
    visual = torch.zeros(2, 11, dtype=torch.bool)
    visual[0, 2:6] = True
    visual[1, 3:11] = True
    modes = ["full", "stream", "off", "blind", "stream", "blind"]
    expected = by_hand(q, k, v, modes, 3, 2, [0, 5], visual)
    got = hybrid_attention(
        q, k, v, modes, window=3, sink=2, kv_range_B2=[(0, 11), (5, 11)], blind_keys_BM=visual, impl="reference"
    )
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_fast_path_equals_the_reference(data: st.DataObject) -> None:
    K = data.draw(st.sampled_from([1, 2, 4]), "K")
    group = data.draw(st.sampled_from([1, 2, 3, 7]), "group")
    B = data.draw(st.integers(1, 3), "B")
    M = data.draw(st.integers(1, 300), "M")
    N = data.draw(st.sampled_from([1, min(2, M), max(1, M // 3), M]), "N")
    modes = data.draw(st.lists(st.sampled_from(MODES), min_size=K * group, max_size=K * group), "modes")
    window = data.draw(st.integers(1, M + 3), "window")
    sink = data.draw(st.integers(0, 9), "sink")
    start = data.draw(st.lists(st.integers(0, M), min_size=B, max_size=B), "start")
    seed = data.draw(st.integers(0, 99), "seed")
    share = data.draw(st.sampled_from([0.0, 0.5, 1.0]), "visual share")
    visual = torch.rand(B, M, generator=torch.Generator().manual_seed(seed)) < share
    fast, exact = both(
        draw_qkv(B, K * group, K, N, M, seed=seed),
        heads=modes,
        window=window,
        sink=sink,
        kv_range_B2=[(s, M) for s in start],
        blind_keys_BM=visual,
    )
    torch.testing.assert_close(fast.double(), exact, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("window", "sink"), [(64, 4), (128, 0), (200, 16), (1, 0), (1, 4)])
@pytest.mark.parametrize("N", [1000, 300, 1])
def test_long_prompts_cross_many_blocks(window: int, sink: int, N: int) -> None:
    modes = ["stream", "full", "stream", "stream", "off", "stream", "blind", "stream"]
    visual = torch.zeros(1, 1000, dtype=torch.bool)
    visual[:, 100:900] = True
    fast, exact = both(draw_qkv(1, 8, 4, N, 1000), heads=modes, window=window, sink=sink, blind_keys_BM=visual)
    torch.testing.assert_close(fast.double(), exact, rtol=0, atol=2e-6)


def test_blocks_split_over_several_calls_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from core_bench.kernels.hybrid_attention.impl import sdpa

    qkv = draw_qkv(1, 4, 2, 700, 700)
    whole, exact = both(qkv, heads=["stream"] * 4, window=16, sink=3)
    monkeypatch.setattr(sdpa, "COPY_ELEMENTS", 5000)
    split, _ = both(qkv, heads=["stream"] * 4, window=16, sink=3)
    torch.testing.assert_close(split, whole, rtol=0, atol=1e-6)
    torch.testing.assert_close(split.double(), exact, rtol=0, atol=2e-6)


@pytest.mark.parametrize("N", [600, 1])
def test_bfloat16_is_as_close_to_float64_as_the_reference_is(N: int) -> None:
    qkv = draw_qkv(2, 28, 4, N, 600, dtype=torch.bfloat16)
    kwargs: dict[str, Any] = {
        "heads": ["full", "stream", "stream", "off"] * 7,
        "window": 64,
        "sink": 4,
        "kv_range_B2": [(0, 600), (77, 600)],
    }
    fast, exact = both(qkv, **kwargs)
    rounded = hybrid_attention(*qkv, impl="reference", **kwargs)
    assert fast.dtype == torch.bfloat16
    own_error = (rounded.double() - exact).abs().max()
    assert (fast.double() - exact).abs().max() <= 2 * own_error


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_each_query_head_reads_its_own_kv_head_in_a_group_of_seven(impl: str) -> None:
    q, k, v = draw_qkv(1, 28, 4, 50, 50)
    v[:] = torch.arange(4.0)[:, None, None]  # the value tells the KV head
    out = hybrid_attention(q, k, v, heads=["full", "stream"] * 14, window=8, sink=2, impl=impl)
    torch.testing.assert_close(out, (torch.arange(28) // 7).float()[:, None, None].expand_as(out))


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
@pytest.mark.parametrize("mode", ["full", "stream", "blind"])
def test_no_future_token_leaks(impl: str, mode: str) -> None:
    q, k, v = draw_qkv(1, 4, 2, 200, 200)
    kwargs: dict[str, Any] = {
        "heads": [mode] * 4,
        "window": 16,
        "sink": 4,
        "blind_keys_BM": torch.arange(200)[None] % 3 == 0,
        "impl": impl,
    }
    before = hybrid_attention(q, k, v, **kwargs)
    k[:, :, 151:] += 3.0
    v[:, :, 151:] -= 5.0
    after = hybrid_attention(q, k, v, **kwargs)
    assert torch.equal(before[:, :, :151], after[:, :, :151])
    assert not torch.equal(before[:, :, 152:], after[:, :, 152:])


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_window_counts_the_query_itself_and_sinks_are_never_padding(impl: str) -> None:
    """Value = position: with window 2 and sink 1, equal scores, query i averages {start, i - 1, i}."""
    M, start = 40, 9
    q = torch.zeros(1, 1, M, 4)
    k = torch.zeros(1, 1, M, 4)
    v = torch.arange(float(M))[None, None, :, None].expand(1, 1, M, 4).contiguous()
    out = hybrid_attention(q, k, v, heads=["stream"], window=2, sink=1, kv_range_B2=[(start, M)], impl=impl)[0, 0, :, 0]
    assert torch.equal(out[:start], torch.zeros(start))
    expected = [sum({start, i - 1, i}) / 3 for i in range(start + 2, M)]
    torch.testing.assert_close(out[start + 2 :], torch.tensor(expected))


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_off_is_exactly_zero_and_blind_ignores_visual_keys(impl: str) -> None:
    q, k, v = draw_qkv(1, 4, 2, 64, 64)
    visual = torch.zeros(1, 64, dtype=torch.bool)
    visual[:, :20] = True
    kwargs: dict[str, Any] = {
        "heads": ["off", "blind", "blind", "full"],
        "window": 4,
        "sink": 0,
        "blind_keys_BM": visual,
        "impl": impl,
    }
    out = hybrid_attention(q, k, v, **kwargs)
    assert torch.equal(out[:, 0], torch.zeros_like(out[:, 0]))
    assert torch.equal(out[:, 1:3, :20], torch.zeros_like(out[:, 1:3, :20]))  # nothing left to see
    assert out[:, 1:3, 20:].abs().amin(-1).min() > 0
    k[:, :, :20] += 7.0
    v[:, :, :20] -= 9.0
    again = hybrid_attention(q, k, v, **kwargs)
    assert torch.equal(again[:, :3], out[:, :3])
    assert not torch.equal(again[:, 3], out[:, 3])


def test_streaming_work_grows_linearly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores computed, counted at SDPA's door: doubling N doubles them; dense would quadruple."""
    from core_bench.kernels.hybrid_attention.impl import sdpa

    counted = 0
    original = sdpa.scaled_dot_product_attention

    def counting(q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Tensor:
        nonlocal counted
        counted += q.shape[:-1].numel() * k.shape[-2]
        return original(q, k, v, **kwargs)

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", counting)

    def work(N: int) -> int:
        nonlocal counted
        counted = 0
        hybrid_attention(*draw_qkv(1, 2, 1, N, N), heads=["stream"] * 2, window=64, sink=4)
        return counted

    small, large = work(2048), work(4096)
    assert large < 2.1 * small
    assert large < 2 * 4096 * 4096 / 20


BAD: list[tuple[dict[str, Any], str]] = [
    ({"impl": "flash"}, "impl: expected one of auto, reference, sdpa, flex, triton, got 'flash'"),
    ({"heads": ["full"] * 3}, "heads: expected 4"),
    ({"heads": ["full", "half", "off", "off"]}, "'half'"),
    ({"window": 0}, "window: expected at least 1"),
    ({"sink": -1}, "sink: expected 0 or more"),
    ({"kv_range_B2": [(0, 1), (0, 1)]}, "kv_range_B2: expected 1"),
    ({"kv_range_B2": [(3, 11)]}, "kv_range_B2: expected 0 <= start <= end <= 10"),
    ({"heads": ["blind"] * 4}, "blind_keys_BM"),
    ({"blind_keys_BM": torch.zeros(1, 9, dtype=torch.bool)}, "blind_keys_BM: expected bool"),
    ({"blind_keys_BM": torch.zeros(1, 10)}, "blind_keys_BM: expected bool"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    kwargs: dict[str, Any] = {"heads": ["stream"] * 4, "window": 4, "sink": 1} | change
    with pytest.raises(ValueError, match=message):
        hybrid_attention(*draw_qkv(1, 4, 2, 5, 10), **kwargs)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((1, 5, 3, 8), (1, 2, 3, 8), (1, 2, 3, 8)), "multiple of 2 KV heads"),
        (((1, 4, 4, 8), (1, 2, 3, 8), (1, 2, 3, 8)), "at most 3 queries"),
        (((1, 4, 3, 8), (1, 2, 3, 4), (1, 2, 3, 4)), "k_BKMD"),
        (((1, 4, 3, 8), (1, 2, 3, 8), (1, 2, 4, 8)), "v_BKMD"),
    ],
)
def test_bad_shapes_are_named(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    q, k, v = (torch.zeros(s) for s in shapes)
    with pytest.raises(ValueError, match=message):
        hybrid_attention(q, k, v, heads=["full"] * q.shape[1], window=1, sink=0)
