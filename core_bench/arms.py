"""The arms of a run: names as recorded, and the head plan that each carries out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from core_bench.config import RunConfig
from core_bench.heads import (
    ArmSpec,
    HeadPlan,
    HeadScores,
    HeadShape,
    Hold,
    OffKind,
    k_for,
    random_controls,
    select_heads,
)

BASELINES = {"dense": "dense", "hybrid": "dense", "ablate": "none"}
RANDOM_DRAWS = 5


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One plan under one name; the draws of a random control are arms of the same name, told apart by `draw`."""

    name: str
    plan: HeadPlan
    draw: int | None = None
    displaced: int | None = None


def baseline_arm(mode: str, shape: HeadShape) -> Arm:
    """The unchanged model, under the name that the mode gives it."""
    return Arm(name=BASELINES[mode], plan=HeadPlan.empty(shape))


def make_arms(config: RunConfig, scores: HeadScores | None, shape: HeadShape, window: int, sink: int) -> list[Arm]:
    """All arms of a run, the baseline first. `scores` may be None only for dense runs."""
    arms = [baseline_arm(config.mode, shape)]
    if config.mode == "dense":
        return arms
    if scores is None:
        raise ValueError(f"mode {config.mode}: needs a head table")
    # RunConfig has checked both, and HeadPlan would refuse anything else.
    hold, kind = cast(Hold, config.hold_or_default), cast(OffKind, config.off)
    if config.mode == "hybrid":
        for name, spec in config.hybrid_arms().items():
            for number, (heads, displaced) in enumerate(_head_sets(spec, scores, shape, config.seed, "--keep")):
                plan = HeadPlan.hybrid(shape, heads, window, sink, hold=hold)
                arms.append(_arm(spec, name, plan, number, displaced))
        return arms
    for name, spec in config.ablate_arms().items():
        for number, (heads, displaced) in enumerate(_head_sets(spec, scores, shape, config.seed, "--ablate")):
            plan = HeadPlan.ablation(shape, heads, kind=kind, hold=hold)
            arms.append(_arm(spec, name, plan, number, displaced))
    return arms


def plan_records(arms: Sequence[Arm]) -> dict[str, dict[str, Any]]:
    """Arm name -> its plan as the record holds it; for random controls {"draws": [...]}."""
    records: dict[str, dict[str, Any]] = {}
    for arm in arms:
        plan = arm.plan.to_record()
        if arm.draw is None:
            records[arm.name] = plan
        else:
            records.setdefault(arm.name, {"draws": []})["draws"].append({**plan, "displaced": arm.displaced})
    return records


def _head_sets(
    spec: ArmSpec, scores: HeadScores, shape: HeadShape, seed: int, argument: str
) -> list[tuple[Sequence[tuple[int, int]], int]]:
    """The head sets of one arm with their displaced counts: several for a random control, else one."""
    if spec.kind != "random":
        return [(select_heads(spec, scores, shape, argument), 0)]
    k = k_for(spec.amount, shape.size, argument)
    draws = random_controls(scores, k, RANDOM_DRAWS, seed)
    return [(draw.heads, draw.displaced) for draw in draws]


def _arm(spec: ArmSpec, name: str, plan: HeadPlan, number: int, displaced: int) -> Arm:
    if spec.kind == "random":
        return Arm(name=name, plan=plan, draw=number, displaced=displaced)
    return Arm(name=name, plan=plan)
