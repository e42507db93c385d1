"""From rows of samples.jsonl to the record of a run, whose schema is `core_bench.board.schema.Record`.

The record is a pure function of its inputs and does not depend on the order of the rows, so an interrupted and resumed
run yields the same one (but for measured times, see `strip_times`).
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from core_bench.board.consistency import DETECT, check_plans, check_rows, first_difference
from core_bench.board.ramtables import ram_of_rows, ram_record
from core_bench.board.schema import check_record
from core_bench.runfolder import Row, RunFolder
from core_bench.stats import ci95, clustered_mean, f1, median_iqr, paired_delta, ratio_ci
from core_bench.tables import render_tables

__all__ = [
    "RunFolder", "build_record", "metric_of", "ram_record", "render_tables", "run_id", "short_digest",
    "strip_times", "verify_record",
]  # fmt: skip

JSON = dict[str, Any]
F1_PARTS = {"f1_recall", "f1_precision"}  # metrics whose F1 is one more, `f1`: it is no mean over samples
BOUND = ("model", "mode", "seed", "checkpoint", "checkpoint_hash")  # fields of `run` that its settings hold too


def run_id(model: str, mode: str, settings: JSON) -> str:
    """Name of a run: <model>-<mode>-<digest of its settings>. A record keeps its id only with its settings."""
    return f"{model}-{mode}-{short_digest(settings)}"


def short_digest(value: Any) -> str:
    """First 8 hex digits of the SHA-256 of a JSON value; the order of keys does not count."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def build_record(
    *,
    run: JSON,
    environment: JSON,
    rows: Sequence[Row],
    plans: Mapping[str, Mapping[str, JSON]],
    headline: Mapping[str, str],
    baseline: str,
    ram: JSON | None = None,
    controls: Mapping[str, JSON] | None = None,
    complete: bool,
) -> JSON:
    """Sum up `rows` as a valid record.

    run, environment: as in the schema, `run` without "complete". plans: task -> arm -> plan record; for a random arm
    {"draws": [plan record of each draw]}. Tasks and arms are written in this order. headline: task -> the metric that
    is written first and compared. baseline: the arm that others are compared with ("none" or "dense"); it is also the
    dense arm of speed-ups. ram: see `ram_record`. controls: task -> {"chance", "image_blind", ...}.

    Beside means `f1_recall` and `f1_precision` stands `f1`, see `core_bench.stats.f1`.
    A row with {"groups": {metric: group}} makes this metric the unweighted mean of its groups' means.

    Failed rows are counted and never scored. The value of a random arm is the mean over samples of each sample's mean
    over draws; its standard error is that of the samples, and `draw_sd` tells how much the draws differ.
    Raises ValueError naming the field that breaks the schema, or the rows of an arm without a plan.
    """
    grouped: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in sorted(
        rows, key=lambda row: (row["task"], row["id"], row["arm"], -1 if row["draw"] is None else row["draw"])
    ):
        grouped[row["task"]][row["arm"]].append(row)
    for task, arms in grouped.items():
        if unknown := arms.keys() - plans.get(task, {}).keys() - {DETECT}:
            raise ValueError(f"{task}: rows of arm {min(unknown)!r}, which has no plan")
    names = [*plans, *sorted(grouped.keys() - plans.keys())]
    record: JSON = {
        "schema_version": 1,
        "run": {**run, "complete": complete},
        "environment": environment,
        **({} if ram is None else {"ram": ram}),
        "tasks": {
            task: _task(grouped[task], plans.get(task, {}), headline.get(task), baseline, (controls or {}).get(task))
            for task in names
        },
    }
    check_record(record)
    return record


def metric_of(values: Sequence[float], clusters: Sequence[str], groups: Sequence[str] | None = None) -> JSON:
    """A mean with its clustered standard error and 95% interval, as the record holds a metric.

    `groups`: the group of each value, for a metric that is the unweighted mean of its groups' means.
    """
    mean, stderr = clustered_mean(values, clusters, groups)
    return _metric(mean, stderr, ci95(values, clusters, groups), len(values))


def strip_times(record: JSON) -> JSON:
    """A copy without measured times: what must be equal between two runs of the same command."""
    tasks = {
        name: {
            **{k: v for k, v in task.items() if k != "media_wait"},
            "arms": {arm: {k: v for k, v in body.items() if k != "prefill"} for arm, body in task["arms"].items()},
        }
        for name, task in record["tasks"].items()
    }
    return {**record, "tasks": tasks}


def verify_record(record: JSON, rows: Sequence[Row]) -> None:
    """Raise ValueError naming the first field of `record` that does not follow from its rows or its settings.

    Covered: every metric, count, time and RAM table; the run's id, settings and tasks; in a finished run that every
    arm and draw has a row of every sample; heads and densities as far as `check_plans` can tell. Not covered, for
    nothing in the folder tells: controls, environment, command, and rows that were changed together with the record.
    """
    _check_identity(record)
    check_rows(record, rows)
    plans: dict[str, dict[str, JSON]] = {}
    headline: dict[str, str] = {}
    baseline = "none"
    for task, body in record["tasks"].items():
        plans[task] = {}
        for name, arm in body["arms"].items():
            draws = arm.get("draws")
            plans[task][name] = arm["plan"] if draws is None else {"draws": [draw["plan"] for draw in draws]}
            if arm["metrics"]:
                headline.setdefault(task, next(iter(arm["metrics"])))
            if name in ("none", "dense"):
                baseline = name
        bound = record["run"]["settings"].get("plans")
        if bound is not None and bound != short_digest(plans[task]):
            raise ValueError(f"tasks.{task}.arms: other plans than those that run.settings.plans is the digest of")
    check_plans(record)
    ram = ram_of_rows(rows)
    if ram is not None and "stability" not in (record.get("ram") or {}):
        ram.pop("stability", None)  # records of two tasks did not always say
    again = build_record(
        run={key: value for key, value in record["run"].items() if key != "complete"},
        environment=record["environment"],
        rows=rows,
        plans=plans,
        headline=headline,
        baseline=baseline,
        ram=ram,
        controls={task: body["controls"] for task, body in record["tasks"].items() if body.get("controls")},
        complete=record["run"]["complete"],
    )
    difference = first_difference(record, again)
    if difference is not None:
        raise ValueError(f"{difference}: does not follow from the samples")


def _check_identity(record: JSON) -> None:
    run, settings = record["run"], record["run"]["settings"]
    for key in BOUND:
        if key in settings and settings[key] != run[key]:
            raise ValueError(f"run.{key}: {run[key]!r}, but run.settings.{key} is {settings[key]!r}")
    expected = run_id(run["model"], run["mode"], settings)
    if run["id"] != expected:
        raise ValueError(f"run.id: expected {expected} for these settings, got {run['id']}")
    data = settings.get("data")
    if isinstance(data, dict) and data.keys() != record["tasks"].keys():
        raise ValueError(f"tasks: expected {', '.join(data)} as in run.settings.data, got {', '.join(record['tasks'])}")


def _task(
    arms: Mapping[str, list[Row]],
    plans: Mapping[str, JSON],
    headline: str | None,
    baseline: str,
    controls: JSON | None,
) -> JSON:
    everything = [row for rows in arms.values() for row in rows]
    base = arms.get(baseline, [])
    return {
        "n": len({row["id"] for row in everything}),
        "n_failed": len({row["id"] for row in everything if row["failure"] is not None}),
        "tokens": _tokens(everything),
        **_media_wait(everything),
        **_defects(everything),
        **({} if controls is None else {"controls": controls}),
        "arms": {
            name: _arm(arms.get(name, []), plan, headline, None if name == baseline else base)
            for name, plan in plans.items()
        },
    }


def _arm(rows: list[Row], plan: JSON, headline: str | None, base: list[Row] | None) -> JSON:
    """`base`: the baseline's rows, None for the baseline itself."""
    draw_plans = plan.get("draws")
    body: JSON = {"plan": {} if draw_plans is not None else plan, **_scored(rows, headline)}
    if base is not None and headline is not None:
        a, clusters = _by_id(rows, headline)
        b, base_clusters = _by_id(base, headline)
        groups = _groups([*rows, *base], headline)
        delta = paired_delta(a, b, clusters | base_clusters, groups)
        if delta is not None:
            body["delta"] = {**_metric(delta.value, delta.stderr, delta.ci95, delta.n), "metric": headline}
    prefill = _prefill(rows, base)
    if prefill is not None:
        body["prefill"] = prefill
    if draw_plans is not None:
        body["draws"] = [
            {"draw": i, "plan": heads, **_scored([row for row in rows if row["draw"] == i], headline)}
            for i, heads in enumerate(draw_plans)
        ]
        values = [draw["metrics"][headline]["value"] for draw in body["draws"] if headline in draw["metrics"]]
        body["draw_sd"] = statistics.stdev(values) if len(values) > 1 else None
    return body


def _scored(rows: list[Row], headline: str | None) -> JSON:
    good = [row for row in rows if row["failure"] is None]
    names = sorted({name for row in good for name in row.get("scores", {})}, key=lambda name: (name != headline, name))
    metrics = {}
    for name in names:
        values, clusters = _by_id(good, name)
        groups = _groups(good, name)
        metrics[name] = metric_of(
            list(values.values()),
            [clusters[i] for i in values],
            None if groups is None else [groups[i] for i in values],
        )
    if metrics.keys() >= F1_PARTS:
        (recall, clusters), (precision, more) = (_by_id(good, name) for name in ("f1_recall", "f1_precision"))
        found = f1(recall, precision, clusters | more)
        if found is not None:
            metrics["f1"] = _metric(found.value, found.stderr, found.ci95, found.n)
    return {
        "metrics": metrics,
        "n_scored": sum(bool(row.get("scores")) for row in good),
        "n_unparsed": sum(bool(row.get("unparsed")) for row in good),
        "n_failed": len(rows) - len(good),
    }


def _metric(value: float, stderr: float | None, interval: tuple[float, float] | None, n: int) -> JSON:
    return {"value": value, "stderr": stderr, "ci95": None if interval is None else list(interval), "n": n}


def _by_id(rows: list[Row], metric: str) -> tuple[dict[str, float], dict[str, str]]:
    """Score of each sample (its mean over draws), and the samples' clusters, in the order of ids."""
    scores: dict[str, list[float]] = defaultdict(list)
    clusters: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: str(row["id"])):
        if row["failure"] is None and metric in row.get("scores", {}):
            scores[row["id"]].append(row["scores"][metric])
            clusters[row["id"]] = row["cluster"]
    return {i: statistics.fmean(values) for i, values in scores.items()}, clusters


def _groups(rows: list[Row], metric: str) -> dict[str, str] | None:
    """Group of each sample, where the rows give one for this metric."""
    found = {row["id"]: row["groups"][metric] for row in rows if metric in row.get("groups", {})}
    return found or None


def _times(rows: list[Row], name: str) -> dict[str, float]:
    """Time of each sample in ms (its mean over draws)."""
    times: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        value = (row.get("times") or {}).get(name)
        if row["failure"] is None and value is not None:
            times[row["id"]].append(value)
    return {i: statistics.fmean(values) for i, values in times.items()}


def _prefill(rows: list[Row], base: list[Row] | None) -> JSON | None:
    language = _times(rows, "language_ms")
    if not language:
        return None
    median, iqr = median_iqr(list(language.values()))
    vision = _times(rows, "vision_ms")
    body: JSON = {
        "language_ms": {"median": median, "iqr": iqr},
        "vision_ms": median_iqr(list(vision.values()))[0] if vision else None,
        "n": len(language),
    }
    dense = _times(base or [], "language_ms")
    if shared := sorted(language.keys() & dense.keys()):
        clusters = {row["id"]: row["cluster"] for row in rows}
        value, interval = ratio_ci(
            [dense[i] for i in shared], [language[i] for i in shared], [clusters[i] for i in shared]
        )
        body["speedup"] = {"value": value, "ci95": None if interval is None else list(interval), "n": len(shared)}
    return body


def _media_wait(rows: list[Row]) -> JSON:
    """{"media_wait": ...} of samples that were timed; every sample counts once, whatever its number of arms."""
    times = {row["id"]: row["times"] for row in rows if (row.get("times") or {}).get("sample_ms")}
    if not times:
        return {}
    waited, whole = (math.fsum(t[name] for t in times.values()) for name in ("media_ms", "sample_ms"))
    return {"media_wait": {"seconds": waited / 1000, "share": waited / whole}}


def _defects(rows: list[Row]) -> JSON:
    """{"defects": {kind: samples}} where a row has any; a sample counts once, whatever its number of arms."""
    kinds = {row["id"]: row["defects"] for row in rows if row.get("defects")}
    counts = Counter(kind for sample in kinds.values() for kind in set(sample))
    return {"defects": dict(sorted(counts.items()))} if counts else {}


def _tokens(rows: list[Row]) -> JSON | None:
    """Medians over samples; all arms of a sample see the same prompt."""
    counts = {row["id"]: row["tokens"] for row in rows if row.get("tokens")}
    if not counts:
        return None
    return {
        f"{kind}_median": float(statistics.median(c[kind] for c in counts.values())) for kind in ("prompt", "visual")
    }
