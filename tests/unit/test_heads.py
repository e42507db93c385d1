"""Counting, ranking and choosing heads; head plans; head tables."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_bench.errors import UserError
from core_bench.heads import (
    Head,
    HeadPlan,
    HeadScores,
    HeadShape,
    check_budget,
    k_for,
    parse_arms,
    pool_scores,
    random_controls,
    read_head_list,
    select_heads,
)

GQA = HeadShape(3, 28, 4)  # seven query heads share a KV head: a group that is no power of two
QUICK = settings(max_examples=40, deadline=None)


def scores_of(ram: np.ndarray, n: int = 4) -> HeadScores:
    ram = np.asarray(ram, dtype=np.float64)
    return HeadScores(ram, ram / 10, np.full_like(ram, 0.05), ram - 0.01, n)


def grids(max_layers: int = 6, max_heads: int = 8) -> st.SearchStrategy[np.ndarray]:
    """RAM tables with many ties, as means over few samples have them."""
    sizes = st.tuples(st.integers(1, max_layers), st.integers(1, max_heads))
    return sizes.flatmap(
        lambda size: st.lists(
            st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.9]), min_size=size[0] * size[1], max_size=size[0] * size[1]
        ).map(lambda values: np.array(values).reshape(size))
    )


# --- budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "n_heads", "k"),
    [
        ("5", 48, 5),
        ("48", 48, 48),
        ("100%", 48, 48),
        ("10%", 48, 5),  # 4.8
        ("5%", 48, 2),  # 2.4
        ("2.5%", 100, 3),  # 2.5 goes up
        ("0.5%", 300, 2),  # 1.5 goes up
        ("3.5%", 100, 4),  # 3.5000000000000004 as a float
        ("0.5%", 48, 1),  # 0.24: at least one
        ("12.5%", 28, 4),  # 3.5
        ("14.5%", 100, 15),  # 14.499999999999998 as a float
    ],
)
def test_k_for_counts_and_shares(text: str, n_heads: int, k: int) -> None:
    assert k_for(text, n_heads) == k


@pytest.mark.parametrize(
    "text",
    ["0.5 heads", "110%", "-5", "0", "0%", "49", "", "%", "5.5", "five", "1e1", "nan", "100.1%", "٥", "5%%", "10 %x"],
)
def test_bad_budget_is_one_line_naming_the_argument(text: str) -> None:
    with pytest.raises(UserError, match=r"^--keep: ") as caught:
        k_for(text, 48, argument="--keep")
    assert "\n" not in str(caught.value)
    assert repr(text) in str(caught.value)


@QUICK
@given(st.integers(1, 10_000), st.integers(1, 3000))
def test_share_rounds_half_up_and_keeps_at_least_one(hundredths: int, n_heads: int) -> None:
    text = f"{hundredths // 100}.{hundredths % 100:02d}%"
    twice = 2 * hundredths * n_heads + 10_000  # floor(x + 1/2) over the common denominator 20,000
    assert k_for(text, n_heads) == max(1, twice // 20_000)


def test_arms() -> None:
    assert [arm.name for arm in parse_arms("top:5%, bottom:5,random:0.5%,file:a/b:c.tsv")] == [
        "top:5%",
        "bottom:5",
        "random:0.5%",
        "file:a/b:c.tsv",
    ]
    assert [arm.name for arm in parse_arms("5%,10%,20%", "--keep")] == ["top:5%", "top:10%", "top:20%"]


@pytest.mark.parametrize("text", ["middle:5%", "top:", "top:0", "file:", "top:5%,", "top:5%,top:5%", "5%,top:5%", ""])
def test_bad_arms(text: str) -> None:
    with pytest.raises(UserError, match=r"^--ablate: "):
        parse_arms(text)


def test_check_budget_needs_no_model() -> None:
    assert check_budget("10%") == pytest.approx(0.1)
    assert check_budget("9999") == 9999


# --- ranking ---------------------------------------------------------------------------------------------------------


def test_ranking_breaks_ties_by_layer_then_head() -> None:
    scores = scores_of(np.array([[0.1, 0.5, 0.5], [0.5, 0.1, 0.9]]))
    assert scores.ranking() == [(1, 2), (0, 1), (0, 2), (1, 0), (0, 0), (1, 1)]
    assert scores.top(2) == [(1, 2), (0, 1)]
    assert scores.bottom(2) == [(0, 0), (1, 1)]
    with pytest.raises(UserError):
        scores.bottom(0)
    with pytest.raises(UserError):
        scores.top(7)


@QUICK
@given(grids(), st.randoms(use_true_random=False))
def test_permuting_heads_permutes_the_ranking(ram: np.ndarray, random: object) -> None:
    """A filter on an unsorted flat index would drop the early layers instead of the weak heads."""
    distinct = ram + np.arange(ram.size).reshape(ram.shape) * 1e-6
    order = list(range(ram.size))
    random.shuffle(order)  # type: ignore[attr-defined]
    moved = distinct.ravel()[order].reshape(ram.shape)
    came_from = [divmod(order[layer * ram.shape[1] + head], ram.shape[1]) for layer, head in scores_of(moved).ranking()]
    assert came_from == scores_of(distinct).ranking()


@QUICK
@given(grids())
def test_ranking_is_a_descending_permutation(ram: np.ndarray) -> None:
    ranking = scores_of(ram).ranking()
    keys = [(-ram[head], head) for head in ranking]
    assert keys == sorted(keys)
    assert set(ranking) == set(np.ndindex(*ram.shape))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_ram_that_is_no_number_is_refused(bad: float) -> None:
    ram = np.full((2, 3), 0.1)
    ram[1, 2] = bad
    with pytest.raises(UserError, match=r"ram of head \(1, 2\)"):
        scores_of(ram)


def test_scores_check_shapes_and_cannot_be_changed() -> None:
    good = np.full((2, 3), 0.1)
    with pytest.raises(UserError, match="stderr"):
        HeadScores(good, np.zeros((3, 2)), good, good, 1)
    with pytest.raises(UserError, match="n: "):
        HeadScores(good, good, good, good, 0)
    scores = scores_of(good)
    good[0, 0] = 1.0
    assert scores.ram[0, 0] == 0.1
    with pytest.raises(ValueError, match="read-only"):
        scores.ram[0, 0] = 1.0


# --- random controls -------------------------------------------------------------------------------------------------


def layer_counts(heads: tuple[Head, ...] | list[Head], n_layers: int) -> list[int]:
    return [sum(layer == wanted for layer, _ in heads) for wanted in range(n_layers)]


@QUICK
@given(grids(), st.integers(1, 12), st.integers(0, 3))
def test_random_controls_are_disjoint_matched_and_distinct(ram: np.ndarray, k: int, seed: int) -> None:
    scores = scores_of(ram)
    if 2 * k > ram.size:
        with pytest.raises(UserError):
            random_controls(scores, min(k, ram.size), seed=seed)
        return
    top = scores.top(k)
    wanted = layer_counts(top, len(ram))
    draws = random_controls(scores, k, n_draws=6, seed=seed)
    assert draws == random_controls(scores, k, n_draws=6, seed=seed)
    assert len({draw.heads for draw in draws}) == len(draws) >= 1
    for draw in draws:
        assert len(draw.heads) == len(set(draw.heads)) == k
        assert list(draw.heads) == sorted(draw.heads)
        assert not set(draw.heads) & set(top)
        got = layer_counts(draw.heads, len(ram))
        assert draw.displaced == sum(max(0, want - have) for want, have in zip(wanted, got, strict=True))
        for want, have in zip(wanted, got, strict=True):
            assert have >= min(want, ram.shape[1] - want)


def test_short_layer_borrows_from_the_nearest_with_heads_to_spare() -> None:
    ram = np.zeros((4, 4))
    ram[1] = [0.9, 0.8, 0.7, 0.0]  # three of four in the top set: one head is left to stand for three
    ram[0, 0] = ram[0, 1] = ram[0, 2] = ram[0, 3] = 0.5  # layer 0 holds the next four: no spare head there
    draws = random_controls(scores_of(ram), 7, n_draws=5, seed=0)
    for draw in draws:
        assert draw.displaced == 6
        assert layer_counts(draw.heads, 4) == [0, 1, 4, 2]


def test_nearest_layer_is_by_distance_then_the_lower() -> None:
    ram = np.zeros((5, 3))
    ram[2] = 0.9
    assert layer_counts(random_controls(scores_of(ram), 2)[0].heads, 5) == [0, 1, 1, 0, 0]
    ram[1, :2] = 0.8
    for draw in random_controls(scores_of(ram), 5):
        assert layer_counts(draw.heads, 5) == [1, 1, 0, 3, 0]
        assert draw.displaced == 4


def test_all_draws_when_fewer_than_five_exist() -> None:
    ram = np.array([[0.9, 0.0, 0.0, 0.0]])
    draws = random_controls(scores_of(ram), 1, n_draws=5, seed=1)
    assert {draw.heads for draw in draws} == {((0, 1),), ((0, 2),), ((0, 3),)}
    with pytest.raises(UserError, match="at least 5"):
        random_controls(scores_of(ram), 1, n_draws=4)


def test_draws_differ_between_seeds_and_reach_every_head() -> None:
    ram = np.zeros((2, 16))
    ram[:, 0] = 0.9
    scores = scores_of(ram)
    assert random_controls(scores, 2, seed=0) != random_controls(scores, 2, seed=1)
    seen = {head for draw in random_controls(scores, 2, n_draws=150, seed=0) for head in draw.heads}
    assert seen == set(np.ndindex(2, 16)) - {(0, 0), (1, 0)}


# --- plans -----------------------------------------------------------------------------------------------------------


def test_empty_plan_is_not_the_plan_with_every_head_full() -> None:
    empty = HeadPlan.empty(GQA)
    forced = HeadPlan.hybrid(GQA, full=GQA.all_heads(), window=8, sink=1)
    assert empty.is_empty
    assert not forced.is_empty
    assert empty.full == forced.full
    assert empty != forced
    assert empty.to_record() == {}
    assert forced.to_record()["query_head_density"] == 1.0
    assert not HeadPlan.ablation(GQA, []).is_empty


def test_hybrid_modes_densities_and_record() -> None:
    plan = HeadPlan.hybrid(GQA, full=[(0, 6), (0, 7), (2, 27)], window=16, sink=4)
    assert plan.mode(0, 6) == "full"
    assert plan.mode(1, 6) == "stream"
    assert plan.layer_modes(2) == ("stream",) * 27 + ("full",)
    assert plan.query_head_density == 3 / 84
    assert plan.kv_head_density == 3 / 12  # heads 6 and 7 stand in different groups of seven
    record = plan.to_record()
    assert record["full"] == [[0, 6], [0, 7], [2, 27]]
    assert record["off"] == []
    assert record["off_kind"] is None
    assert (record["hold"], record["window"], record["sink"]) == ("prefill", 16, 4)


@QUICK
@given(st.sets(st.tuples(st.integers(0, 2), st.integers(0, 27))))
def test_one_full_head_keeps_its_kv_head(full: set[Head]) -> None:
    plan = HeadPlan.hybrid(GQA, full=full, window=1, sink=0)
    groups = {(layer, head // 7) for layer, head in full}
    assert plan.kv_head_density == len(groups) / 12
    assert [GQA.kv_head(head) for head in (0, 6, 7, 13, 14, 27)] == [0, 0, 1, 1, 2, 3]


@pytest.mark.parametrize("kind", ["zero", "blind"])
def test_ablation_record(kind: str) -> None:
    plan = HeadPlan.ablation(GQA, [(1, 1), (0, 2)], kind=kind)  # type: ignore[arg-type]
    assert plan.mode(0, 2) == {"zero": "off", "blind": "blind"}[kind]
    record = plan.to_record()
    assert record["off"] == [[0, 2], [1, 1]]
    assert record["off_kind"] == kind
    assert (record["hold"], record["window"], record["sink"]) == ("always", None, None)
    assert plan.query_head_density == 82 / 84
    assert plan.kv_head_density == 1.0


def test_silenced_group_needs_no_kv_head_but_a_blind_one_does() -> None:
    group = [(0, head) for head in range(7)]
    assert HeadPlan.ablation(GQA, group).kv_head_density == 11 / 12
    assert HeadPlan.ablation(GQA, group, kind="blind").kv_head_density == 1.0


def test_plans_hash_and_take_numpy_integers() -> None:
    plan = HeadPlan.hybrid(GQA, full=[(np.int64(0), np.int64(3))], window=4, sink=0)  # type: ignore[list-item]
    assert plan == HeadPlan.hybrid(GQA, full=[(0, 3)], window=4, sink=0)
    assert len({plan, HeadPlan.hybrid(GQA, full=[(0, 3)], window=4, sink=0)}) == 1
    assert type(plan.to_record()["full"][0][0]) is int


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"window": 0}, "window"),
        ({"window": -5}, "window"),
        ({"sink": -1}, "sink"),
        ({"hold": "decode"}, "hold"),
        ({"full": [(3, 0)]}, "(3, 0)"),
        ({"full": [(0, 28)]}, "(0, 28)"),
        ({"full": [(-1, 0)]}, "(-1, 0)"),
    ],
)
def test_bad_plans(arguments: dict, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        HeadPlan.hybrid(GQA, **{"full": [], "window": 4, "sink": 0, **arguments})


def test_modes_must_split_the_heads() -> None:
    every = GQA.all_heads()
    with pytest.raises(UserError, match="two of"):
        HeadPlan(GQA, full=every, off=frozenset({(0, 0)}))
    with pytest.raises(UserError, match=r"no mode for head \(0, 0\)"):
        HeadPlan(GQA, full=every - {(0, 0)})
    with pytest.raises(UserError, match="stock"):
        HeadPlan(GQA, full=every - {(0, 0)}, off=frozenset({(0, 0)}), stock=True)
    with pytest.raises(UserError, match="evenly"):
        HeadShape(2, 28, 5)


# --- files -----------------------------------------------------------------------------------------------------------


@QUICK
@given(grids(), st.floats(0, 1, allow_nan=False), st.integers(1, 10**6))
def test_table_round_trip_is_exact(tmp_path_factory: pytest.TempPathFactory, ram: np.ndarray, x: float, n: int) -> None:
    path = tmp_path_factory.mktemp("table") / "heads.tsv"
    ram = ram * x / 3
    written = HeadScores(ram, ram * x, np.full_like(ram, x), np.full_like(ram, math.nan), n)
    written.write_tsv(path)
    read = HeadScores.read_tsv(path)
    for name in ("ram", "stderr", "chance", "sink_corrected"):
        np.testing.assert_array_equal(getattr(read, name), getattr(written, name))
    assert read.n == n


def test_table_looks_as_documented(tmp_path: Path) -> None:
    path = tmp_path / "heads.tsv"
    scores_of(np.array([[0.1, 0.3]]), n=7).write_tsv(path)
    lines = path.read_text().splitlines()
    assert lines[0] == "layer\thead\tram\tstderr\tchance\tsink_corrected\tn"
    assert lines[1].split("\t")[:3] == ["0", "0", "0.1"]
    assert lines[2].split("\t")[-1] == "7"
    assert [item.name for item in tmp_path.iterdir()] == ["heads.tsv"]


def test_table_of_another_model_names_both_shapes(tmp_path: Path) -> None:
    path = tmp_path / "heads.tsv"
    scores_of(np.full((4, 6), 0.1)).write_tsv(path)
    with pytest.raises(UserError, match=r"heads\.tsv: .*4 layers x 6 heads.*3 layers x 28 heads"):
        HeadScores.read_tsv(path, GQA)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda lines: lines[1:], ":1: expected the tab-separated columns"),
        (lambda lines: lines[:1], "got none"),
        (lambda lines: lines[:-1], "got 3 rows"),
        (lambda lines: [*lines, lines[1]], ":6: head (0, 0) stands in the table twice"),
        (lambda lines: [*lines[:2], lines[2].replace("0.3", "abc"), *lines[3:]], ":3: "),
        (lambda lines: [*lines[:2], lines[2].replace("0.3", "nan", 1), *lines[3:]], "ram of head (0, 1)"),
        (lambda lines: [*lines[:2], lines[2] + "\t1", *lines[3:]], ":3: expected 7 columns, got 8"),
        (lambda lines: [*lines[:4], lines[4][:-1] + "5"], "column n"),
        (lambda lines: [*lines, "999999999\t999999999" + lines[1][3:]], "got 5 rows"),
        (lambda lines: [*lines, "-1\t0" + lines[1][3:]], ":6: "),
    ],
)
def test_broken_tables(tmp_path: Path, edit: object, words: str) -> None:
    path = tmp_path / "heads.tsv"
    scores_of(np.array([[0.1, 0.3], [0.2, 0.4]])).write_tsv(path)
    path.write_text("\n".join(edit(path.read_text().splitlines())) + "\n")  # type: ignore[operator]
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        HeadScores.read_tsv(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_missing_or_binary_table(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.tsv"):
        HeadScores.read_tsv(tmp_path / "none.tsv")
    (tmp_path / "bin.tsv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"bin\.tsv"):
        HeadScores.read_tsv(tmp_path / "bin.tsv")


def test_head_lists(tmp_path: Path) -> None:
    path = tmp_path / "list.tsv"
    path.write_text("layer\thead\n# movers\n0\t3\n\n2\t27  # last\n")
    assert read_head_list(path, GQA) == [(0, 3), (2, 27)]
    spec = parse_arms(f"file:{path}")[0]
    assert select_heads(spec, scores_of(np.full((3, 28), 0.1)), GQA) == [(0, 3), (2, 27)]


@pytest.mark.parametrize(("text", "line"), [("0\t1\n3\t0\n", 2), ("0\n", 1), ("0\tx\n", 1), ("0\t1\n0\t1\n", 2)])
def test_broken_head_lists_name_the_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "list.tsv"
    path.write_text(text)
    with pytest.raises(UserError, match=rf"list\.tsv:{line}: "):
        read_head_list(path, GQA)


def test_select_heads() -> None:
    ram = np.zeros((3, 28))
    ram[2, 5], ram[0, 7] = 0.9, 0.8
    scores = scores_of(ram)
    assert [select_heads(arm, scores, GQA) for arm in parse_arms("top:2,bottom:1")] == [[(2, 5), (0, 7)], [(2, 27)]]


def test_pooling_weighs_tasks_not_samples() -> None:
    one, two = scores_of(np.array([[0.2, 0.4]]), n=10), scores_of(np.array([[0.6, 0.0]]), n=1000)
    pooled = pool_scores([one, two])
    np.testing.assert_allclose(pooled.ram, [[0.4, 0.2]])
    np.testing.assert_allclose(pooled.stderr, [[math.hypot(0.02, 0.06) / 2, math.hypot(0.04, 0.0) / 2]])
    assert pooled.n == 1010
    with pytest.raises(UserError, match="one shape"):
        pool_scores([one, scores_of(np.array([[0.2]]))])
