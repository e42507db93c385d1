"""Arms of a run: their names, plans, draws and order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core_bench.arms import Arm, make_arms, plan_records
from core_bench.config import RunConfig
from core_bench.errors import UserError
from core_bench.heads import HeadScores, HeadShape

SHAPE = HeadShape(4, 8, 2)
WINDOW, SINK = 32, 4


@pytest.fixture
def scores() -> HeadScores:
    """Heads ranked by number within the grid, the last one best."""
    ram = np.arange(SHAPE.size, dtype=float).reshape(SHAPE.n_layers, SHAPE.n_heads)
    return HeadScores(ram=ram, stderr=ram, chance=ram, sink_corrected=ram, n=3)


def arms_of(mode: str, scores: HeadScores | None, **options: Any) -> list[Arm]:
    return make_arms(RunConfig(model="qwen3vl", mode=mode, **options), scores, SHAPE, WINDOW, SINK)


def test_dense_needs_no_table() -> None:
    (arm,) = arms_of("dense", None)
    assert (arm.name, arm.plan.is_empty, arm.draw) == ("dense", True, None)


@pytest.mark.parametrize(("mode", "first"), [("hybrid", "dense"), ("ablate", "none")])
def test_the_baseline_comes_first_and_is_the_models_own_attention(mode: str, first: str, scores: HeadScores) -> None:
    arms = arms_of(mode, scores)
    assert arms[0].name == first
    assert arms[0].plan.is_empty
    assert not any(arm.plan.is_empty for arm in arms[1:])
    with pytest.raises(ValueError, match="head table"):
        arms_of(mode, None)


def test_default_ablation(scores: HeadScores) -> None:
    arms = arms_of("ablate", scores)
    assert [arm.name for arm in arms] == ["none", "top:5%", "bottom:5%", *["random:5%"] * 5]
    by_name = {arm.name: arm.plan for arm in arms}
    assert by_name["top:5%"].off == {(3, 7), (3, 6)}  # 5% of 32 is 1.6
    assert by_name["bottom:5%"].off == {(0, 0), (0, 1)}
    assert all(arm.plan.hold == "always" for arm in arms[1:])
    draws = arms[3:]
    assert [arm.draw for arm in draws] == [0, 1, 2, 3, 4]
    assert len({arm.plan.off for arm in draws}) == 5
    for arm in draws:
        assert {layer for layer, _ in arm.plan.off} == {3}, "matched by layer"
        assert not arm.plan.off & by_name["top:5%"].off
        assert arm.displaced == 0


def test_draws_say_how_many_heads_come_from_other_layers(scores: HeadScores) -> None:
    draws = [arm for arm in arms_of("ablate", scores, ablate="random:6") if arm.draw is not None]
    assert [arm.displaced for arm in draws] == [4] * 5, "the top 6 leave 2 heads of the last layer"
    record = plan_records(draws)["random:6"]
    assert list(record) == ["draws"]
    assert [draw["displaced"] for draw in record["draws"]] == [4] * 5
    assert len(record["draws"][0]["off"]) == 6


def test_the_seed_draws(scores: HeadScores) -> None:
    def sets(seed: int) -> list[Any]:
        return [arm.plan.off for arm in arms_of("ablate", scores, seed=seed, ablate="random:2")[1:]]

    assert sets(0) == sets(0)
    assert sets(0) != sets(1)


def test_every_budget_is_an_arm_under_the_name_that_was_typed(scores: HeadScores) -> None:
    arms = arms_of("hybrid", scores, keep="2,10%,bottom:2,random:2")
    names = ["dense", "hybrid:2", "hybrid:10%", "hybrid:bottom:2", *["hybrid:random:2"] * 5]
    assert [arm.name for arm in arms] == names
    assert arms[1].plan.full == {(3, 7), (3, 6)}
    assert arms[3].plan.full == {(0, 0), (0, 1)}
    for arm in arms[1:]:
        plan = arm.plan
        assert (plan.window, plan.sink, plan.hold) == (WINDOW, SINK, "prefill")
        assert plan.full | plan.stream == SHAPE.all_heads()
    records = plan_records(arms)
    assert records["dense"] == {}
    assert records["hybrid:2"]["full"] == [[3, 6], [3, 7]]
    assert [draw["displaced"] for draw in records["hybrid:random:2"]["draws"]] == [0] * 5


def test_flags_reach_the_plans(scores: HeadScores, tmp_path: Path) -> None:
    blind = arms_of("ablate", scores, ablate="top:1", off="blind", hold="prefill")[1].plan
    assert blind.blind == {(3, 7)}
    assert not blind.off
    assert blind.hold == "prefill"
    assert arms_of("hybrid", scores, hold="always")[1].plan.hold == "always"
    listed = tmp_path / "mine.tsv"
    listed.write_text("layer\thead\n1\t2\n")
    arm = arms_of("ablate", scores, ablate=f"file:{listed}")[1]
    assert arm.name == f"file:{listed}"
    assert arm.plan.off == {(1, 2)}


def test_all_heads_full_is_not_the_stock_model(scores: HeadScores) -> None:
    plan = arms_of("hybrid", scores, keep="100%")[1].plan
    assert plan.full == SHAPE.all_heads()
    assert not plan.is_empty


@pytest.mark.parametrize(
    ("mode", "options", "said"),
    [
        ("ablate", {"ablate": "top:33"}, "at most the model's 32 heads"),
        ("hybrid", {"keep": "33"}, "at most the model's 32 heads"),
        ("ablate", {"ablate": "random:60%"}, "outside the top set"),
    ],
)
def test_more_heads_than_there_are(mode: str, options: dict[str, str], said: str, scores: HeadScores) -> None:
    with pytest.raises(UserError, match=said):
        arms_of(mode, scores, **options)
