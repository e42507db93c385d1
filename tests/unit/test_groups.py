"""Means over groups (MLVU's M-Avg): value, error and interval, from the row of a sample to the checked record."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_bench.board.schema import check_row
from core_bench.errors import SampleError, UserError
from core_bench.heads import HeadPlan, HeadShape
from core_bench.results import build_record, metric_of, run_id, verify_record
from core_bench.schema import Sample
from core_bench.stats import ci95, clustered_mean, paired_delta
from core_bench.taskspec import TaskSpec

HYBRID = HeadPlan.hybrid(HeadShape(2, 4, 2), [(0, 1)], window=16, sink=4).to_record()
TYPES = {"needle": [1.0] * 9 + [0.0], "plot": [1.0, 0.0] * 15, "topic": [0.0] * 20 + [1.0] * 5}


def flat(types: dict[str, list[float]]) -> tuple[list[float], list[str], list[str]]:
    """Values, singleton clusters, and groups."""
    pairs = [(value, name) for name, values in types.items() for value in values]
    return [value for value, _ in pairs], [f"c{i}" for i in range(len(pairs))], [name for _, name in pairs]


def test_the_mean_of_three_groups_is_not_the_mean_over_samples() -> None:
    values, clusters, groups = flat(TYPES)
    metric = metric_of(values, clusters, groups)
    assert metric["value"] == pytest.approx((0.9 + 0.5 + 0.2) / 3)
    assert metric_of(values, clusters)["value"] == pytest.approx(29 / 65)
    assert metric["n"] == 65
    assert metric["ci95"][0] < metric["value"] < metric["ci95"][1]


def test_the_error_is_that_of_independent_means() -> None:
    """With one sample a cluster: sqrt(sum of s_h^2 / n_h) / H, but for how the small-sample factor is shared out."""
    values, clusters, groups = flat(TYPES)
    _, stderr = clustered_mean(values, clusters, groups)
    textbook = math.sqrt(sum(statistics.pvariance(v) / len(v) for v in TYPES.values())) / 3
    assert stderr == pytest.approx(textbook * math.sqrt(65 / 62))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 5)), min_size=3, max_size=30))
def test_one_group_changes_nothing(samples: list[tuple[float, int]]) -> None:
    values, clusters = [value for value, _ in samples], [cluster for _, cluster in samples]
    same = ["g"] * len(values)
    assert clustered_mean(values, clusters, same) == pytest.approx(clustered_mean(values, clusters))
    plain, grouped = ci95(values, clusters), ci95(values, clusters, same)
    assert (plain is None) == (grouped is None)
    assert plain is None or grouped == pytest.approx(plain)


def test_repeating_one_groups_samples_in_their_clusters_moves_nothing() -> None:
    values, clusters, groups = flat(TYPES)
    again = [i for i, name in enumerate(groups) if name == "plot"]
    mean, stderr = clustered_mean(values, clusters, groups)
    more = [[*column, *(column[i] for i in again)] for column in (values, clusters, groups)]
    assert clustered_mean(*more) == pytest.approx((mean, stderr))


def test_too_few_clusters_for_the_groups_have_no_error() -> None:
    assert clustered_mean([1.0, 0.0], ["a", "b"], ["x", "y"]) == (0.5, None)
    assert ci95([1.0, 0.0], ["a", "b"], ["x", "y"]) is None
    with pytest.raises(ValueError, match="strata"):
        clustered_mean([1.0, 0.0], ["a", "b"], ["x"])


@pytest.mark.parametrize("sizes", [(40, 12, 25), (20, 20, 20)])
def test_coverage_by_simulation(sizes: tuple[int, ...]) -> None:
    rng, true = np.random.default_rng(7), (0.9, 0.5, 0.3)
    groups = [name for name, size in zip("abc", sizes, strict=True) for _ in range(size)]
    clusters = list(range(len(groups)))
    hits = 0
    for _ in range(400):
        draws = [rng.random(size) < p for p, size in zip(true, sizes, strict=True)]
        low, high = ci95(np.concatenate(draws).astype(float).tolist(), clusters, groups) or (1, 0)
        hits += low <= sum(true) / 3 <= high
    assert hits / 400 > 0.925


def test_a_paired_difference_weighs_the_groups_alike() -> None:
    groups = {f"a{i}": "a" for i in range(8)} | {f"b{i}": "b" for i in range(40)}
    one = dict.fromkeys(groups, 1.0)
    other = {name: float(not (name[0] == "a" and int(name[1:]) < 4)) for name in groups}
    clusters = {name: name for name in groups}
    delta = paired_delta(one, other, clusters, groups)
    assert delta is not None
    assert delta.ci95 is not None
    assert delta.value == pytest.approx((4 / 8 + 0) / 2)
    assert delta.ci95[0] < delta.value < delta.ci95[1]
    plain = paired_delta(one, other, clusters)
    assert plain is not None
    assert plain.value == pytest.approx(4 / 48)


def rows_of(arm: str, flip: int = 0) -> list[dict[str, Any]]:
    values, clusters, groups = flat(TYPES)
    return [
        {
            "task": "t",
            "id": f"s{i:02d}",
            "cluster": cluster,
            "arm": arm,
            "draw": None,
            "failure": None,
            "scores": {"m_avg": abs(value - (i < flip)), "accuracy": abs(value - (i < flip))},
            "groups": {"m_avg": group},
        }
        for i, (value, cluster, group) in enumerate(zip(values, clusters, groups, strict=True))
    ]


def record_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    run: dict[str, Any] = {
        "id": run_id("m", "hybrid", {}),
        "model": "m",
        "checkpoint": "bundled",
        "checkpoint_hash": "sha256:01234567",
    }
    run |= {"mode": "hybrid", "seed": 0, "command": "c", "settings": {}}
    environment: dict[str, Any] = {
        "versions": {},
        "commit": None,
        "device": "cpu",
        "threads": 1,
        "dtype": "float32",
        "attention": "sdpa",
    }
    return build_record(
        run=run,
        environment=environment,
        rows=rows,
        plans={"t": {"dense": {}, "hybrid:1": HYBRID}},
        headline={"t": "m_avg"},
        baseline="dense",
        complete=True,
    )


def test_the_record_holds_both_means_and_is_checked_against_its_rows() -> None:
    rows = [*rows_of("dense"), *rows_of("hybrid:1", flip=5)]
    record = record_of(rows)
    arms = record["tasks"]["t"]["arms"]
    assert list(arms["dense"]["metrics"]) == ["m_avg", "accuracy"]
    assert arms["dense"]["metrics"]["m_avg"]["value"] == pytest.approx((0.9 + 0.5 + 0.2) / 3)
    assert arms["dense"]["metrics"]["accuracy"]["value"] == pytest.approx(29 / 65)
    assert arms["hybrid:1"]["delta"]["value"] == pytest.approx(-0.5 / 3)
    verify_record(record, rows)
    for tampered in (
        [{**row, "groups": {}} for row in rows],
        [{**row, "groups": {"m_avg": "needle"}} for row in rows],
        [rows[0] | {"groups": {"m_avg": "plot"}}, *rows[1:]],
    ):
        with pytest.raises(ValueError, match=r"tasks\.t\.arms\.dense\.metrics\.m_avg"):
            verify_record(record, tampered)


def test_a_group_belongs_to_a_metric_of_the_row() -> None:
    row = rows_of("dense")[0]
    check_row(row)
    with pytest.raises(ValueError, match="'other', which is not scored"):
        check_row({**row, "groups": {"other": "x"}})


PYTHON = """
def results(doc, results):
    right = float(results[0] == doc["answer"])
    return {"m_avg": right, "accuracy": right, "answered": None if results[0] == "?" else right}

def nothing(doc, results):
    return {"m_avg": None, "accuracy": None, "answered": None}
"""
YAML = """task: mine
dataset_path: rows.jsonl
process_results: !function helper.FUNCTION
metric_list: [{metric: m_avg}, {metric: accuracy}, {metric: answered}]
metadata: {core_bench: {groups: {m_avg: kind}}}
"""


def spec_of(folder: Path, text: str, **changes: Any) -> TaskSpec:
    row = {"id": "1", "image": "a.png", "question": "q", "answer": "red", "kind": "plotQA", **changes}
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "helper.py").write_text(PYTHON)
    (folder / "mine.yaml").write_text(text)
    return TaskSpec.from_file(folder / "mine.yaml")


def only(spec: TaskSpec) -> Sample:
    [sample] = spec.samples("test")
    assert isinstance(sample, Sample), sample
    return sample


def test_a_task_names_the_group_of_a_metric(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, YAML.replace("FUNCTION", "results"))
    score = spec.score(only(spec), "red")
    assert score.scores == {"m_avg": 1.0, "accuracy": 1.0, "answered": 1.0}
    assert score.groups == {"m_avg": "plotQA"}
    assert spec.score(only(spec), "?").scores == {"m_avg": 0.0, "accuracy": 0.0}, "None does not apply to the row"
    nothing = spec_of(tmp_path, YAML.replace("FUNCTION", "nothing"))
    with pytest.raises(UserError, match="m_avg: expected a number, got None"):
        nothing.score(only(nothing), "red")
    bare = spec_of(tmp_path, YAML.replace("FUNCTION", "results"), kind="")
    with pytest.raises(SampleError, match="groups: expected text"):
        bare.score(only(bare), "red")


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ("{m_awg: kind}", "expected one of m_avg, accuracy, answered, got 'm_awg'"),
        ("{m_avg: 3}", "a column"),
        ("3", "a mapping"),
    ],
)
def test_groups_that_cannot_be_meant_name_their_line(tmp_path: Path, groups: str, said: str) -> None:
    with pytest.raises(UserError, match=r"mine\.yaml:5: ") as caught:
        spec_of(tmp_path, YAML.replace("{m_avg: kind}", groups).replace("FUNCTION", "results"))
    assert said in str(caught.value)
