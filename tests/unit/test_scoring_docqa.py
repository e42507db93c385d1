"""MMLongBench's score of document questions against values worked out with its own formulas."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_bench.scoring_docqa import FORMATS, after_prefix, numbers, score, word_f1

CASES = json.loads((Path(__file__).parent.parent / "cases/docqa.json").read_text(encoding="utf-8"))


def test_cases_reach_every_branch() -> None:
    kinds = Counter(case["format"] for case in CASES["score"])
    assert kinds.keys() == set(FORMATS)
    assert sum(kinds.values()) >= 40


@pytest.mark.parametrize("case", CASES["score"], ids=lambda case: f"{case['format']} {case['answer']} {case['reply']}")
def test_score_follows_the_official_rules(case: dict[str, Any]) -> None:
    assert score(case["answer"], case["reply"], case["format"]) == pytest.approx(case["score"])


@pytest.mark.parametrize(("reply", "expected"), CASES["after_prefix"])
def test_what_follows_the_prefix(reply: str, expected: str) -> None:
    assert after_prefix(reply) == expected


@pytest.mark.parametrize(
    ("answer", "kind"),
    [("a", "Text"), ("seven", "Integer"), ("2.5", "Integer"), ("about", "Float"), ("no list", "List"), ("[]", "List"),
     ("[[1]]", "List"), ("{}", "List")],
)  # fmt: skip
def test_an_answer_that_is_not_of_its_format_is_refused(answer: str, kind: str) -> None:
    with pytest.raises(ValueError, match=r"expected|could not convert|Expecting"):
        score(answer, "7", kind)


ANSWERS = {"Integer": "7", "Float": "7.5%", "String": "a red car", "List": '["7", "red", 2.5]', "None": "Not there"}


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.text("0123456789.,-$% redcar", max_size=60), st.sampled_from(FORMATS))
def test_no_reply_raises(reply: str, kind: str) -> None:
    assert 0 <= score(ANSWERS[kind], after_prefix(reply), kind) <= 1


@settings(max_examples=150, deadline=None)
@given(st.text("ab c.the", max_size=20), st.text("ab c.the", max_size=20))
def test_word_f1_is_symmetric_and_1_for_the_same(one: str, other: str) -> None:
    assert word_f1(one, other) == pytest.approx(word_f1(other, one))
    assert 0 <= word_f1(one, other) <= 1
    assert word_f1(one, one) in (0.0, 1.0)


def test_numbers_are_read_in_good_time() -> None:
    assert numbers("1,234 or -.5 and 3.") == [1234, -0.5, 3]
    assert len(numbers("1 " * 20_000)) == 20_000
    assert numbers("9" * 400) == [], "too large to be finite"
