"""Every implementation against the oracle in float64, and the oracle against visibility written by hand.

"flex" runs uncompiled here, "gathered" is what "sdpa" does off the CPU, and Triton's kernel has a file of its own.

Shape suffixes: B batch, H query heads, K KV heads, N queries, M keys, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core_bench.kernels.hybrid_attention import available, backends, choose, hybrid_attention, why_not
from core_bench.kernels.hybrid_attention.impl import flash_cpu, flex, gathered, sdpa
from core_bench.kernels.hybrid_attention.impl.reference import visible_BHNM

MODES = ("full", "stream", "off", "blind")


def draw_qkv(
    B: int, H: int, K: int, N: int, M: int, D: int = 8, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    shapes = ((B, H, N, D), (B, K, M, D), (B, K, M, D))
    q, k, v = (torch.randn(s, generator=g, dtype=torch.float64).to(dtype) for s in shapes)
    return q, k, v


QUICK = ("reference", "sdpa", "gathered", "auto")
IMPLS = (*QUICK, "flex")


@contextmanager
def as_impl(name: str) -> Iterator[str]:
    """The value of `impl` that runs the implementation called `name` within the block."""
    if name == "gathered":
        with mock.patch.object(sdpa, "_on_cpu", return_value=False):
            yield "sdpa"
    elif name == "flex":
        function: Callable[..., Tensor] = flex.hybrid_attention_flex_uncompiled
        original = backends.load
        with mock.patch(
            "core_bench.kernels.hybrid_attention.api.load",
            lambda impl, device: function if impl == "flex" else original(impl, device),
        ):
            yield "flex"
    else:
        yield name


def run(name: str, *args: Any, **kwargs: Any) -> Tensor:
    with as_impl(name) as impl:
        return hybrid_attention(*args, impl=impl, **kwargs)


def assert_as_exact_as_the_reference(name: str, qkv: tuple[Tensor, Tensor, Tensor], **kwargs: Any) -> None:
    """Judged by float64 on the same inputs: at most twice the error of the oracle in this dtype, and a rounding.

    The rounding is that of one softmax weight in half precision, 16 roundings (a dot product's) in float32.
    """
    got = run(name, *qkv, **kwargs)
    exact = run("reference", *(x.double() for x in qkv), **kwargs)
    own = (run("reference", *qkv, **kwargs).double() - exact).abs().max()
    roundings = 16 if qkv[0].dtype == torch.float32 else 1
    allowed = 2 * own + roundings * torch.finfo(qkv[0].dtype).eps * qkv[2].abs().max().double()
    assert got.shape == exact.shape
    assert got.dtype == qkv[0].dtype
    error = (got.double() - exact).abs().max()
    assert error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e}"
    unseen = exact == 0
    assert torch.equal(got[unseen], torch.zeros_like(got[unseen]))


@dataclass(repr=False)
class Case:
    """A call: tensors of some layout, and keyword arguments."""

    qkv: tuple[Tensor, Tensor, Tensor]
    kwargs: dict[str, Any]

    def __repr__(self) -> str:
        q, k, _ = self.qkv
        shown = {name: value for name, value in self.kwargs.items() if name != "blind_keys_BM"}
        share = float(self.kwargs["blind_keys_BM"].float().mean())
        return f"q {tuple(q.shape)} {q.dtype} {q.stride()}, k {tuple(k.shape)}, blind {share:.0%}, {shown}"

    def seen_BHNM(self) -> Tensor:
        """The definition, as a mask."""
        kwargs = dict(self.kwargs)
        q, k, _ = self.qkv
        offset = kwargs.pop("q_offset")
        return visible_BHNM(
            q.shape[2], k.shape[2], modes=kwargs.pop("heads"), device=q.device,
            q_offset=k.shape[2] - q.shape[2] if offset is None else offset, **kwargs,
        )  # fmt: skip


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same values under other strides: as projections leave them, and with gaps in every dimension."""
    if layout == "BNHD":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "gaps":
        wide = x.new_full([2 * size for size in x.shape], float("nan"))
        wide[::2, ::2, ::2, ::2] = x
        return wide[::2, ::2, ::2, ::2]
    return x


@st.composite
def cases(draw: st.DrawFn) -> Case:
    K, group = draw(st.sampled_from([(1, 1), (1, 3), (2, 4), (4, 7), (8, 1), (8, 5)]))
    B = draw(st.integers(1, 3))
    M = draw(st.one_of(st.integers(1, 40), st.integers(41, 420)))
    N = draw(st.sampled_from([1, min(2, M), max(1, M // 3), M]))
    offset = draw(st.sampled_from([None, None, 0, max(M - N - 5, 0), M - N + 9]))
    D = draw(st.sampled_from([16, 24, 64, 72, 80, 128, 256]))
    dtype = draw(st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16]))
    lengths = st.one_of(st.integers(0, 12), st.integers(0, M))
    ranges = []
    for start, cut in draw(st.lists(st.tuples(lengths, lengths), min_size=B, max_size=B)):
        ranges.append((min(start, M), max(min(start, M), M - cut)))
    if draw(st.booleans()):
        ranges = [(0, M)] * B
    seed, share = draw(st.integers(0, 99)), draw(st.sampled_from([0.0, 0.5, 1.0]))
    blind = torch.rand(B, M, generator=torch.Generator().manual_seed(seed)) < share
    qkv = draw_qkv(B, K * group, K, N, M, D, seed, dtype)
    layout = draw(st.sampled_from(["BHND", "BNHD", "gaps"]))
    modes = st.sampled_from(draw(st.sampled_from([MODES, ("full", "stream"), ("stream",), ("full",)])))
    kwargs = {
        "heads": tuple(draw(st.lists(modes, min_size=K * group, max_size=K * group))),
        "window": draw(st.one_of(st.integers(1, M + 3), st.sampled_from([32, 128]))),
        "sink": draw(st.one_of(st.integers(0, 9), st.just(M + 2))),
        "q_offset": offset,
        "kv_range_B2": ranges,
        "blind_keys_BM": blind,
    }
    q, k, v = (laid_out(x, layout) for x in qkv)
    return Case((q, k, v), kwargs)


@pytest.mark.parametrize("name", QUICK)
@settings(max_examples=50, deadline=None)
@given(case=cases())
def test_every_implementation_is_as_exact_as_the_reference(name: str, case: Case) -> None:
    assert_as_exact_as_the_reference(name, case.qkv, **case.kwargs)


@settings(max_examples=12, deadline=None)
@given(case=cases())
def test_flex_is_as_exact_as_the_reference(case: Case) -> None:
    assert_as_exact_as_the_reference("flex", case.qkv, **case.kwargs)


@pytest.mark.parametrize("name", QUICK)
@settings(max_examples=25, deadline=None)
@given(case=cases(), data=st.data())
def test_only_keys_in_view_matter_bit_for_bit(name: str, case: Case, data: st.DataObject) -> None:
    assert_only_keys_in_view_matter(name, case, data)


@settings(max_examples=6, deadline=None)
@given(case=cases(), data=st.data())
def test_only_keys_in_view_matter_to_flex_bit_for_bit(case: Case, data: st.DataObject) -> None:
    assert_only_keys_in_view_matter("flex", case, data)


def assert_only_keys_in_view_matter(name: str, case: Case, data: st.DataObject) -> None:
    seen_BHNM = case.seen_BHNM()
    b, h, n = (data.draw(st.integers(0, size - 1)) for size in seen_BHNM.shape[:3])
    view_M = seen_BHNM[b, h, n]
    q, k, v = case.qkv
    before = run(name, q, k, v, **case.kwargs)[b, h, n]

    def changed(keys_M: Tensor) -> Tensor:
        """The query's output after the keys' keys and values have been changed, all rows and KV heads alike."""
        k_new, v_new = k.clone(), v.clone()
        k_new[:, :, keys_M] = k_new[:, :, keys_M] * -3 + 1
        v_new[:, :, keys_M] = v_new[:, :, keys_M] * 5 - 7
        return run(name, q, k_new, v_new, **case.kwargs)[b, h, n]

    assert torch.equal(changed(~view_M), before)
    if view_M.any():
        one = torch.zeros_like(view_M)
        one[int(view_M.nonzero()[data.draw(st.integers(0, int(view_M.sum()) - 1))])] = True
        v_far = v.clone()
        v_far[:, :, one] += 1000.0
        moved = run(name, q, k, v_far, **case.kwargs)[b, h, n]
        if weight_of(case, b, h, n, one) > 1e-3:  # enough to show in any dtype
            assert not torch.equal(moved, before)


def weight_of(case: Case, b: int, h: int, n: int, one_M: Tensor) -> float:
    """The softmax weight of one key, by the oracle: attention to values that are 1 there and else 0."""
    q, k, _ = (x.double() for x in case.qkv)
    values = torch.zeros_like(k)
    values[:, :, one_M] = 1.0
    return float(run("reference", q, k, values, **case.kwargs)[b, h, n, 0])


@pytest.mark.parametrize("name", ["sdpa", "gathered"])
@pytest.mark.parametrize(("window", "sink"), [(64, 4), (128, 0), (200, 16), (1, 0), (1, 4)])
@pytest.mark.parametrize("N", [1000, 300, 1])
def test_long_prompts_cross_many_blocks(name: str, window: int, sink: int, N: int) -> None:
    modes = ["stream", "full", "stream", "stream", "off", "stream", "blind", "stream"]
    blind = torch.zeros(1, 1000, dtype=torch.bool)
    blind[:, 100:900] = True
    qkv = draw_qkv(1, 8, 4, N, 1000)
    assert_as_exact_as_the_reference(name, qkv, heads=modes, window=window, sink=sink, blind_keys_BM=blind)


@pytest.mark.parametrize(
    ("name", "module", "constant", "value"),
    [
        ("sdpa", flash_cpu, "CHUNK_ROWS", 96),
        ("gathered", gathered, "COPY_ELEMENTS", 5000),
        ("gathered", gathered, "MASKED_ROWS", 50),
    ],
)
def test_work_split_over_several_calls_gives_the_same(name: str, module: Any, constant: str, value: int) -> None:
    qkv = draw_qkv(1, 4, 2, 700, 750)
    with mock.patch.object(module, constant, value):
        assert_as_exact_as_the_reference(name, qkv, heads=["full"] + ["stream"] * 3, window=16, sink=3)


@pytest.mark.parametrize("name", IMPLS)
def test_a_window_that_lies_beyond_the_keys_sees_nothing(name: str) -> None:
    """Right padding, or a chunk whose keys are not there: zeros, not what memory held before."""
    q, k, v = draw_qkv(1, 2, 1, 40, 40)
    junk = torch.full((200_000,), 1e30)
    del junk
    out = run(name, q, k, v, ["stream"] * 2, window=3, sink=0, kv_range_B2=[(0, 10)])
    assert torch.equal(out[:, :, 12:], torch.zeros_like(out[:, :, 12:]))
    assert out[:, :, :12].abs().amin(-1).min() > 0
    past = run(name, q, k, v, ["stream"] * 2, window=3, sink=0, q_offset=60)
    assert torch.equal(past, torch.zeros_like(past))


def test_gradients_are_those_of_the_reference() -> None:
    grads = {}
    for name in ("sdpa", "reference"):
        qkv = [x.double().requires_grad_() for x in draw_qkv(1, 4, 2, 300, 300)]
        run(name, *qkv, ["full"] + ["stream"] * 3, window=32, sink=3).square().sum().backward()
        grads[name] = [x.grad for x in qkv]
    for got, expected in zip(grads["sdpa"], grads["reference"], strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("levels", [0, 1, 2, 3])
@pytest.mark.parametrize("N", [64, 71])
def test_squares_make_up_the_triangle(levels: int, N: int) -> None:
    q, k, v = draw_qkv(2, 6, 2, N, N)
    with mock.patch.object(flash_cpu, "_levels", lambda problems, n: levels if n == N else 0):
        out, lse = flash_cpu.causal(q, k, v, 0.3)
    later = torch.ones(N, N, dtype=torch.bool).triu(1)
    scores = (q.double() @ k.double().repeat_interleave(3, 1).mT * 0.3).masked_fill(later, float("-inf"))
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=0, atol=2e-6)
    exact = scores.softmax(-1) @ v.double().repeat_interleave(3, 1)
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=2e-6)


def test_a_lone_head_is_dealt_out_to_all_threads_in_equal_squares() -> None:
    for threads, problems, expected in [(1, 1, 0), (2, 1, 1), (2, 8, 0), (2, 3, 1), (8, 1, 3), (6, 3, 1), (6, 1, 4)]:
        with mock.patch.object(torch, "get_num_threads", lambda threads=threads: threads):
            assert flash_cpu._levels(problems, 16384) == expected, (threads, problems)


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


@pytest.mark.parametrize("name", IMPLS)
def test_each_query_head_reads_its_own_kv_head_in_a_group_of_seven(name: str) -> None:
    q, k, v = draw_qkv(1, 28, 4, 50, 50)
    v[:] = torch.arange(4.0)[:, None, None]  # the value tells the KV head
    out = run(name, q, k, v, heads=["full", "stream"] * 14, window=8, sink=2)
    torch.testing.assert_close(out, (torch.arange(28) // 7).float()[:, None, None].expand_as(out))


@pytest.mark.parametrize("name", IMPLS)
@pytest.mark.parametrize("mode", ["full", "stream", "blind"])
def test_no_future_token_leaks(name: str, mode: str) -> None:
    q, k, v = draw_qkv(1, 4, 2, 200, 200)
    kwargs: dict[str, Any] = {
        "heads": [mode] * 4,
        "window": 16,
        "sink": 4,
        "blind_keys_BM": torch.arange(200)[None] % 3 == 0,
    }
    before = run(name, q, k, v, **kwargs)
    k[:, :, 151:] += 3.0
    v[:, :, 151:] -= 5.0
    after = run(name, q, k, v, **kwargs)
    assert torch.equal(before[:, :, :151], after[:, :, :151])
    assert not torch.equal(before[:, :, 152:], after[:, :, 152:])


@pytest.mark.parametrize("name", IMPLS)
def test_window_counts_the_query_itself_and_sinks_are_never_padding(name: str) -> None:
    """Value = position: with window 2 and sink 1, equal scores, query i averages {start, i - 1, i}."""
    M, start = 40, 9
    q = torch.zeros(1, 1, M, 4)
    k = torch.zeros(1, 1, M, 4)
    v = torch.arange(float(M))[None, None, :, None].expand(1, 1, M, 4).contiguous()
    out = run(name, q, k, v, heads=["stream"], window=2, sink=1, kv_range_B2=[(start, M)])[0, 0, :, 0]
    assert torch.equal(out[:start], torch.zeros(start))
    expected = [sum({start, i - 1, i}) / 3 for i in range(start + 2, M)]
    torch.testing.assert_close(out[start + 2 :], torch.tensor(expected))


@pytest.mark.parametrize("name", IMPLS)
def test_off_is_exactly_zero_and_blind_ignores_visual_keys(name: str) -> None:
    q, k, v = draw_qkv(1, 4, 2, 64, 64)
    visual = torch.zeros(1, 64, dtype=torch.bool)
    visual[:, :20] = True
    kwargs: dict[str, Any] = {
        "heads": ["off", "blind", "blind", "full"],
        "window": 4,
        "sink": 0,
        "blind_keys_BM": visual,
    }
    out = run(name, q, k, v, **kwargs)
    assert torch.equal(out[:, 0], torch.zeros_like(out[:, 0]))
    assert torch.equal(out[:, 1:3, :20], torch.zeros_like(out[:, 1:3, :20]))  # nothing left to see
    assert out[:, 1:3, 20:].abs().amin(-1).min() > 0
    k[:, :, :20] += 7.0
    v[:, :, :20] -= 9.0
    again = run(name, q, k, v, **kwargs)
    assert torch.equal(again[:, :3], out[:, :3])
    assert not torch.equal(again[:, 3], out[:, 3])


@pytest.mark.parametrize("name", ["sdpa", "gathered"])
def test_streaming_work_grows_linearly(name: str) -> None:
    """Scores computed, counted at the kernels' doors: doubling N doubles them; dense would quadruple."""
    counted = 0

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(q: Tensor, k: Tensor, *args: Any, **kwargs: Any) -> Any:
            nonlocal counted
            counted += q.shape[:-1].numel() * k.shape[-2]
            return original(q, k, *args, **kwargs)

        return call

    def work(N: int) -> int:
        nonlocal counted
        counted = 0
        run(name, *draw_qkv(1, 2, 1, N, N), heads=["stream"] * 2, window=64, sink=4)
        return counted

    attend = "scaled_dot_product_attention"
    with (
        mock.patch.object(flash_cpu, "_flash", counting(flash_cpu._flash)),
        mock.patch.object(gathered, attend, counting(gathered.scaled_dot_product_attention)),
    ):
        small, large = work(2048), work(4096)
    assert 0 < large < 2.1 * small
    assert large < 2 * 4096 * 4096 / 20


def test_auto_takes_the_dense_path_only_where_no_view_is_cut() -> None:
    common: dict[str, Any] = {"head_size": 64, "dtype": torch.float32, "device": torch.device("cpu")}
    some, full = ("full", "stream"), ("full", "full")
    for modes, n, m, window, expected in [
        (some, 100, 100, 100, "dense"),  # the window holds the prompt
        (some, 100, 100, 90, "sdpa"),
        (full, 4096, 4096, 1, "dense"),
        (full, 1024, 1024, 1, "sdpa"),  # squares, measured faster than the dense path
        (full, 1, 4096, 1, "dense"),  # a decode step
        (full, 10, 4096, 1, "sdpa"),  # a chunk: torch's causal mask would be aligned to the first key
        (("full", "off"), 100, 100, 100, "sdpa"),
        (("full", "blind"), 100, 100, 100, "sdpa"),
    ]:
        assert choose(modes, n_queries=n, n_keys=m, window=window, sink=0, **common) == expected, (modes, n, m)
    padded = choose(full, n_queries=100, n_keys=100, window=1, sink=0, kv_range_B2=((3, 100),), **common)
    assert padded == "sdpa"


def test_what_cannot_run_says_why() -> None:
    assert {"reference", "sdpa"} <= set(available("cpu"))
    assert "triton" not in available("cpu")
    assert why_not("sdpa", "cpu") is None
    with pytest.raises(RuntimeError, match="impl: 'triton' cannot run on cpu: "):
        hybrid_attention(*draw_qkv(1, 2, 1, 4, 4), ["full"] * 2, window=1, sink=0, impl="triton")


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
