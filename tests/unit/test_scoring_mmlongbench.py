"""MMLongBench-Doc's score against values worked out by hand from its rules, and the rule-based short answer."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_bench.instructions import NOT_ANSWERABLE
from core_bench.scoring_mmlongbench import anls, clean, edit_distance, extract, is_exact, score
from core_bench.stats import Delta, f1

CASES = json.loads((Path(__file__).parent.parent / "cases/mmlongbench_doc.json").read_text(encoding="utf-8"))["score"]


def test_cases_reach_every_branch() -> None:
    kinds = Counter(case["format"] for case in CASES)
    assert sum(kinds.values()) >= 40
    assert kinds.keys() == {"Int", "Float", "Str", "List", "None"}
    assert {0.0, 1.0} < {case["score"] for case in CASES if case["format"] == "List"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['format']} {case['answer']} {case['prediction']}")
def test_score_follows_the_official_rules(case: dict[str, Any]) -> None:
    """The expected values were worked out with the formulas of the data set's eval/eval_score.py, not with ours."""
    assert score(case["answer"], case["prediction"], case["format"]) == pytest.approx(case["score"])


def test_unknown_formats_and_unusable_truths_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one of Str, Int"):
        score("a", "a", "Text")
    with pytest.raises(ValueError, match="could not convert"):
        score("about ten", "10", "Float")


@pytest.mark.parametrize(
    ("reply", "kind", "expected"),
    [
        ("red", "Str", "red"),
        ("Red.", "Str", "Red"),
        ("The answer is **Las Vegas, Nevada**.", "Str", "Las Vegas, Nevada"),
        ("\n\nFinal answer: blue\nBecause of the chart.", "Str", "blue"),
        ("2 p.m.", "Str", "2 p.m."),
        ("not answerable.", "Str", NOT_ANSWERABLE),
        ("Not answerable, the document does not say.", "Int", NOT_ANSWERABLE),
        ("", "Str", None),
        (" \n ", "None", None),
        ("19", "Int", "19"),
        ("There are 1,234 of them.", "Int", "1234"),
        ("Between 3 and 5", "Int", None),
        ("2015-2016", "Int", None),
        ("many", "Int", None),
        ("-$2.5", "Float", "-2.5"),
        ("It is 18.29%.", "Float", "18.29"),
        (".5", "Float", ".5"),
        ("version 1.2.3", "Float", None),
        ("5, or 5", "Int", "5"),
        ("White, 10%", "List", "['White', '10%']"),
        ("a, b, and c", "List", "['a', 'b', 'c']"),
        ("['a', 'b']", "List", "['a', 'b']"),
    ],
)
def test_the_short_answer_is_read_by_rules(reply: str, kind: str, expected: str | None) -> None:
    assert extract(reply, kind) == expected


@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
@settings(max_examples=60, deadline=None)
def test_edit_distance_is_that_of_its_definition(a: str, b: str) -> None:
    @cache
    def by_definition(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        ways = (by_definition(i - 1, j) + 1, by_definition(i, j - 1) + 1)
        return min(*ways, by_definition(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    assert edit_distance(a, b) == by_definition(len(a), len(b))
    assert anls(a, b) == anls(b, a)
    assert 0 <= anls(a, b) <= 1


@given(st.text(max_size=20), st.text(max_size=20), st.sampled_from(["Str", "Int", "List", "None"]))
@settings(max_examples=100, deadline=None)
def test_any_text_gets_a_score_from_0_to_1_and_the_truth_gets_1(answer: str, prediction: str, kind: str) -> None:
    assert 0 <= score(answer, prediction, kind) <= 1
    if kind in ("Str", "None"):
        assert score(answer, answer, kind) == 1


@given(st.text(max_size=30), st.sampled_from(["Str", "Int", "Float", "List", "None"]))
@settings(max_examples=200, deadline=None)
def test_no_reply_raises(reply: str, kind: str) -> None:
    said = extract(reply, kind)
    if said is not None:
        assert 0 <= score("['7', 'b']" if kind == "List" else "7", said, kind) <= 1


def test_the_error_of_f1_is_that_of_leaving_out_one_document_at_a_time() -> None:
    """Against the jackknife over documents, which knows nothing of ratios; documents of several questions."""
    rng = random.Random(3)
    rows = []
    for number in range(240):
        document, answerable = number // 4, rng.random() < 0.8
        value = float(rng.random() < (0.3 if document % 2 else 0.7)) * answerable
        rows.append((f"q{number}", document, value, answerable, value > 0 or rng.random() < 0.7))

    def found(left_out: int | None) -> Any:
        kept = [row for row in rows if row[1] != left_out]
        recall = {name: value for name, _, value, answerable, _ in kept if answerable}
        precision = {name: value for name, _, value, _, answered in kept if answered}
        return f1(recall, precision, {name: document for name, document, *_ in kept})

    whole, others = found(None), [found(document).value for document in range(60)]
    mean = sum(others) / 60
    jackknife = math.sqrt(59 / 60 * sum((value - mean) ** 2 for value in others))
    assert whole.stderr == pytest.approx(jackknife, rel=0.03)
    assert whole.ci95[0] < whole.value < whole.ci95[1]
    assert f1({}, {}, {}) is None
    assert f1({"a": 1.0}, {"a": 1.0}, {"a": 0}) == Delta(value=1.0, stderr=None, ci95=None, n=1)


def test_cleaning_leaves_what_is_compared() -> None:
    assert clean(' "$12.5%" ') == "12.5"
    assert not is_exact("two pages")
    assert is_exact("12 345")


def test_every_genuine_answer_is_read_and_scores_1(genuine_data: Path) -> None:
    path = genuine_data / "annotations" / "mmlongbench_doc" / "samples.slice.json"
    records = json.loads(path.read_text(encoding="utf-8"))
    assert len(records) >= 40
    for record in records:
        said = extract(record["answer"], record["answer_format"])
        assert said is not None, record
        assert score(record["answer"], said, record["answer_format"]) == 1, record
