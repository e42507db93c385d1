"""Whether a run is all there and its head plans can be true: what the schema alone cannot see."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from core_bench.errors import UserError
from core_bench.heads import HeadPlan, HeadShape, k_for, parse_arms

JSON = dict[str, Any]
DETECT = "detect"  # the arm of rows that carry RAM instead of scores
BASELINES = ("none", "dense")
MOST_HEADS = 1_000_000  # of any model; a density below one in so many is a mistake


def check_rows(record: JSON, rows: Sequence[JSON]) -> None:
    """Raise ValueError naming a row that no arm has, or, in a finished run, a sample that an arm or draw lacks."""
    ids: dict[str, dict[tuple[str, int | None], set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        ids[row["task"]][row["arm"], row["draw"]].add(row["id"])
    for task, body in record["tasks"].items():
        expected = _arms_and_draws(body["arms"]) if record["run"]["mode"] != DETECT else [(DETECT, None)]
        for key in ids[task]:
            if key not in expected:
                raise ValueError(f"tasks.{task}: rows of {_called(*key)}, which the record does not have")
        if not record["run"]["complete"]:
            continue
        whole = set().union(*ids[task].values())
        if not whole:
            raise ValueError(f"tasks.{task}: complete, but without a row")
        for key in expected:
            if missing := whole - ids[task][key]:
                raise ValueError(
                    f"tasks.{task}: complete, but {_called(*key)} has no row of sample {min(missing)!r}"
                    f" ({len(missing)} of {len(whole)} missing)"
                )


def check_plans(record: JSON) -> None:
    """Raise ValueError naming a plan whose heads, densities and name fit no model, or none that the plans before fit.

    A record does not say how many layers, heads and KV heads the model has. So every grid is tried that has as many
    heads as a plan's list and density say and a place for all heads named; what no such grid gives is refused. A
    wrong density that some other grid would give passes, unless the share in the arm's name speaks against it.
    """
    shapes: list[HeadShape] | None = None
    for where, name, plan in _plans(record):
        if name in BASELINES:
            if plan:
                raise ValueError(f"{where}: expected {{}}, for the model's own attention is the baseline")
            continue
        density = plan.get("query_head_density")
        if density is None:
            continue  # shown as unknown
        if shapes is None:
            shapes = _shapes(plan, record.get("ram"))
        shapes = [shape for shape in shapes if _fits(plan, shape)]
        if not shapes:
            raise ValueError(f"{where}: its heads and densities fit no model, or not that of the arms before")
        _check_count(where, name, plan, shapes[0].size)


def first_difference(a: Any, b: Any, where: str = "") -> str | None:
    """Dotted path of the first place where two JSON values differ by more than rounding; None if nowhere."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            if (found := first_difference(a.get(key), b.get(key), f"{where}.{key}".lstrip("."))) is not None:
                return found
        return None
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        found_in = (first_difference(x, y, f"{where}.{i}") for i, (x, y) in enumerate(zip(a, b, strict=True)))
        return next((found for found in found_in if found is not None), None)
    if isinstance(a, float) or isinstance(b, float):
        numbers = isinstance(a, int | float) and isinstance(b, int | float)
        return None if numbers and math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) else where
    return None if a == b else where


def _arms_and_draws(arms: JSON) -> list[tuple[str, int | None]]:
    keys: list[tuple[str, int | None]] = []
    for name, arm in arms.items():
        draws = arm.get("draws")
        keys += [(name, None)] if draws is None else [(name, draw["draw"]) for draw in draws]
    return keys


def _called(arm: str, draw: int | None) -> str:
    return f"arm {arm}" if draw is None else f"draw {draw} of arm {arm}"


def _plans(record: JSON) -> Iterator[tuple[str, str, JSON]]:
    """(dotted path, arm name, plan) of every arm and draw."""
    for task, body in record["tasks"].items():
        for name, arm in body["arms"].items():
            where = f"tasks.{task}.arms.{name}"
            if arm.get("draws") is None:
                yield f"{where}.plan", name, arm["plan"]
            for number, draw in enumerate(arm.get("draws") or []):
                yield f"{where}.draws.{number}.plan", name, draw["plan"]


def _shapes(plan: JSON, ram: JSON | None) -> list[HeadShape]:
    """Every grid of heads that the size of `plan` allows; that of the RAM table if there is one."""
    density, n_full, n_off = plan["query_head_density"], len(plan.get("full", [])), len(plan.get("off", []))
    size = n_full + n_off  # an ablation lists every head; else the density tells how many there are
    if not n_off:
        size = round(n_full / density) if 1 / MOST_HEADS <= density <= 1 else 0
    grids = [(layers, size // layers) for layers in range(1, min(size, MOST_HEADS) + 1) if size % layers == 0]
    if ram is not None:
        grids = [(len(ram["pooled"]["ram"]), len(ram["pooled"]["ram"][0]))]
    return [HeadShape(layers, heads, kv) for layers, heads in grids for kv in range(1, heads + 1) if heads % kv == 0]


def _fits(plan: JSON, shape: HeadShape) -> bool:
    """Whether a plan of these heads on this grid is recorded like `plan`, densities included."""
    full = [(layer, head) for layer, head in plan.get("full", [])]
    off = [(layer, head) for layer, head in plan.get("off", [])]
    if any(layer >= shape.n_layers or head >= shape.n_heads for layer, head in [*full, *off]):
        return False
    hold: Any = plan.get("hold") or "prefill"
    try:
        if off:
            made = HeadPlan.ablation(shape, off, kind=plan.get("off_kind") or "zero", hold=hold)
        else:
            sink = plan.get("sink")
            made = HeadPlan.hybrid(shape, full, window=plan.get("window") or 1, sink=sink or 0, hold=hold)
    except UserError:
        return False
    recorded = {key: value for key, value in plan.items() if key != "displaced"}
    return first_difference(recorded, made.to_record()) is None


def _check_count(where: str, name: str, plan: JSON, n_heads: int) -> None:
    """The number of heads must be the one that the arm's name promises."""
    hybrid = name.startswith("hybrid:")
    spec = parse_arms(name.removeprefix("hybrid:"), where)[0]
    if spec.kind == "file":
        return
    heads, count = plan.get("full" if hybrid else "off", []), k_for(spec.amount, n_heads, where)
    if len(heads) != count:
        raise ValueError(f"{where}: {name} of {n_heads} heads is {count}, got {len(heads)}")
