"""MMLongBench-Doc's score against values worked out by hand from its rules, and the rule-based short answer."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_bench.instructions import NOT_ANSWERABLE
from core_bench.scoring_mmlongbench import anls, clean, edit_distance, extract, is_exact, score

SCORES = [
    # format, answer, prediction, score
    ("Int", "19", "19", 1),
    ("Int", "19", "19.0", 1),
    ("Int", "19", "19.9", 1),  # int(float()) cuts
    ("Int", "19", "20", 0),
    ("Int", "19", "nineteen", 0),
    ("Int", "19", "inf", 0),
    ("Int", "0", "0", 1),
    ("Float", "18.29%", "18.29", 1),
    ("Float", "18.29%", "18.29%", 1),
    ("Float", "18.29%", "0.1829", 1),  # a hundredth
    ("Float", "0.1829", "18.29", 1),  # a hundredfold
    ("Float", "100", "100.9", 1),  # within 1%
    ("Float", "100", "101.1", 0),
    ("Float", "100", "98.9", 0),
    ("Float", "$1.5", "$1.5", 1),
    ("Float", "0.01", "0.014", 1),  # both are 0.01 at two decimals, the fewer of the two
    ("Float", "0.01", "0.016", 0),
    ("Float", "0.001", "0.004", 0),  # compared at three
    ("Float", "2.0", "no idea", 0),
    ("Float", "2.0", "nan", 0),
    ("Str", "Less well-off", "less well-off", 1),
    ("Str", "Less well-off", "'Less well-off'", 1),
    ("Str", "computer science", "computer sciences", 1 - 1 / 17),
    ("Str", "abcd", "abxy", 0),  # similarity 0.5 is cut
    ("Str", "abcde", "abcxy", 1 - 2 / 5),
    ("Str", "red", "green", 0),
    ("Str", "Las Vegas (Nevada)", "las vegas", 1),  # remarks in parentheses do not count
    ("Str", "2015-2016", "2015-2016", 1),
    ("Str", "2015-2016", "2015-2017", 0),  # a telephone number or the like: exact
    ("Str", "page 12", "page 13", 0),
    ("Str", "a@b.org", "a@c.org", 0),
    ("Str", "10 p.m.", "11 p.m.", 0),
    ("Str", "https://example.org/a", "https://example.org/b", 0),
    ("Str", "main.py", "mein.py", 0),
    ("None", "Not answerable", "Not answerable", 1),
    ("None", "Not answerable", "white", 0),
    ("List", "['Circle', 'Rectangle']", "['rectangle', 'circle']", 1),
    ("List", "['Circle', 'Rectangle']", "['circle']", 0),
    ("List", "['Circle', 'Rectangle']", "['circle', 'rectangles']", 1 - 1 / 10),  # the worst pair
    ("List", "['White', '10%']", "['white', '10']", 1),
    ("List", "['White', '10%']", "['whites', '10']", 0),  # the first, 10, is a number: all or nothing
    ("List", "['a']", "a", 1),
    ("List", "['a', 'b']", "[broken", 0),
]


@pytest.mark.parametrize(("kind", "answer", "prediction", "expected"), SCORES)
def test_score_follows_the_official_rules(kind: str, answer: str, prediction: str, expected: float) -> None:
    assert score(answer, prediction, kind) == pytest.approx(expected)


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
