"""MMDocIR's recalls against values worked out with its formulas, and against counted pixels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_bench.scoring_mmdocir import layout_recall, page_recall, read_ranking, write_ranking

CASES = json.loads((Path(__file__).parent.parent / "cases/mmdocir.json").read_text(encoding="utf-8"))


def layouts(rows: list[list[float]]) -> list[tuple[int, list[float]]]:
    return [(int(page), box) for page, *box in rows]


def test_cases_reach_every_branch() -> None:
    found = [case["recall"] for case in CASES["layouts"]]
    assert min(len(found), len(CASES["pages"])) >= 40
    assert None in found, "true boxes without area"
    assert max(value for value in found if value is not None) > 1, "not capped"
    assert {0.0, 1.0} <= set(found)


@pytest.mark.parametrize("case", CASES["layouts"], ids=lambda case: f"{case['ranked']} {case['true']} {case['k']}")
def test_layout_recall(case: dict[str, Any]) -> None:
    found = layout_recall(layouts(case["ranked"]), layouts(case["true"]), case["k"])
    assert found == (case["recall"] if case["recall"] is None else pytest.approx(case["recall"]))


@pytest.mark.parametrize(("ranked", "true", "k", "expected"), CASES["pages"])
def test_page_recall(ranked: list[int], true: list[int], k: int, expected: float) -> None:
    assert page_recall(ranked, true, k) == pytest.approx(expected)


def test_a_question_without_a_page_cannot_be_scored() -> None:
    with pytest.raises(ValueError, match="expected a page"):
        page_recall([1], [], 1)


EDGE = st.integers(0, 8)
LAYOUT = st.tuples(st.integers(0, 1), st.tuples(EDGE, EDGE, EDGE, EDGE))


@settings(max_examples=150, deadline=None)
@given(st.lists(LAYOUT, max_size=5), st.lists(LAYOUT, min_size=1, max_size=4), st.integers(1, 6))
def test_layout_recall_counts_pixels(ranked: list[Any], true: list[Any], k: int) -> None:
    def pixels(layout: Any) -> set[tuple[int, int, int]]:
        page, (x0, y0, x1, y1) = layout
        return {(page, x, y) for x in range(x0, x1) for y in range(y0, y1)}

    whole = sum(len(pixels(one)) for one in true)
    shared = sum(len(pixels(one) & pixels(other)) for one in ranked[:k] for other in true)
    value = layout_recall(ranked, true, k)
    assert value == (pytest.approx(shared / whole) if whole else None)
    if value is not None:
        assert value >= 0
        assert value <= len(ranked[:k]) * len(true)
        assert layout_recall(true, true, len(true)) is not None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 9), unique=True), st.sets(st.integers(0, 9), min_size=1), st.integers(1, 6))
def test_page_recall_stays_in_range_and_grows(ranked: list[int], true: set[int], k: int) -> None:
    assert 0 <= page_recall(ranked, true, k) <= page_recall(ranked, true, k + 1) <= 1
    assert page_recall(sorted(true) + ranked, true, 10) == 1


def test_a_ranking_is_written_and_read() -> None:
    text = write_ranking({"pages": [4, 3, 2, 1, 0, 9], "layouts": [[0, 1.5, 2, 3, 4]] * 12})
    pages, found = read_ranking(text) or ([], [])
    assert pages == [4, 3, 2, 1, 0]
    assert found == [(0, [1.5, 2, 3, 4])] * 10
    assert read_ranking(write_ranking({"pages": [1]})) == ([1], [])


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40) | st.text('{}[]"pageslyout:,0123456789.', max_size=60))
def test_no_answer_raises(text: str) -> None:
    assert read_ranking(text) is None or isinstance(read_ranking(text), tuple)


@pytest.mark.parametrize(
    "text",
    ["", "the third page", "[1, 2]", "{}", '{"pages": 3}', '{"pages": ["1"]}', '{"pages": [1], "layouts": [[1, 2]]}',
     '{"pages": [1], "layouts": [[0, 1, 2, 3, "x"]]}', '{"pages": [1], "layouts": 7}', "[" * 100_000],
)  # fmt: skip
def test_what_is_no_ranking_is_unparsed(text: str) -> None:
    assert read_ranking(text) is None
