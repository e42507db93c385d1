"""What the page tells of one run beside its rows, and the points of its plot: plain text and numbers, no markup."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from core_bench.board.rows import BASELINES, command, hardware, is_bundled, place
from core_bench.tables import arm_plans, headline_metric, is_partial, named_heads, run_notes

JSON = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """Accuracy of one arm against the speed-up of its prefill over dense, both with intervals where there are any."""

    model: str
    task: str
    device: str
    arm: str
    run_id: str
    bundled: bool
    speedup: float
    accuracy: float
    dense: float | None
    speedup_ci: tuple[float, float] | None
    accuracy_ci: tuple[float, float] | None


def points(records: Iterable[JSON]) -> list[Point]:
    """Of all timed hybrid arms in runs that are not partial, in the order of models, run ids and tasks."""
    found = []
    for record in sorted(records, key=lambda r: (r["run"]["model"], r["run"]["id"])):
        run = record["run"]
        for task, body in record["tasks"].items() if not is_partial(record) else ():
            dense = headline_metric(body["arms"].get("dense") or {"metrics": {}})
            for arm, value in body["arms"].items():
                speedup, metric = (value.get("prefill") or {}).get("speedup"), headline_metric(value)
                if not arm.startswith("hybrid:") or speedup is None or metric is None:
                    continue
                found.append(
                    Point(
                        run["model"], task, record["environment"]["device"], arm, run["id"], is_bundled(record),
                        speedup["value"], metric[1]["value"], dense[1]["value"] if dense else None,
                        _pair(speedup["ci95"]), _pair(metric[1]["ci95"]),
                    )
                )  # fmt: skip
    return found


def _pair(interval: list[float] | None) -> tuple[float, float] | None:
    return None if interval is None else (interval[0], interval[1])


def facts(record: JSON) -> list[tuple[str, str]]:
    """(name, value) of what one needs to repeat a run and to judge it."""
    run, environment = record["run"], record["environment"]
    heads = run.get("heads") or {}
    told = [
        ("command", command(run)),
        ("checkpoint", f"{place(run['checkpoint'])}, content {run['checkpoint_hash']}"),
        ("revision", run.get("revision")),
        ("seed", str(run["seed"])),
        ("device", hardware(environment)),
        ("attention", environment["attention"]),
        ("versions", ", ".join(f"{name} {version}" for name, version in environment["versions"].items())),
        ("commit", environment["commit"]),
        ("head table", place(heads["where"]) if heads else None),
        ("notes", "; ".join(run_notes(record))),
    ]
    told += [(f"plan of {arm}", text) for arm, text in _plans(record).items()]
    return [(name, value) for name, value in told if value]


def _plans(record: JSON) -> dict[str, str]:
    """Arm -> its plan in words; the plans of an arm are the same in every task."""
    found = {}
    for body in record["tasks"].values():
        for arm, value in body["arms"].items():
            if arm not in BASELINES and arm not in found:
                plans = [_plan(plan) for plan in arm_plans(value)]
                found[arm] = plans[0] if len(plans) == 1 else "; ".join(f"draw {n}: {p}" for n, p in enumerate(plans))
    return found


def _plan(plan: JSON) -> str:
    parts = []
    if plan.get("off"):  # all others are full
        parts.append(f"{plan.get('off_kind') or 'off'} {named_heads(plan['off'])}")
    elif plan.get("full"):
        parts.append(f"full {named_heads(plan['full'])}")
    if plan.get("window") is not None:
        parts.append(f"others window {plan['window']}, sink {plan.get('sink')}")
    if plan.get("hold"):
        parts.append(f"holds in {'prefill' if plan['hold'] == 'prefill' else 'prefill and decoding'}")
    return ", ".join(parts) or "every head streams"
