"""Metrics against values worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_bench.errors import SampleError
from core_bench.metrics import acc_at_iou, accuracy, exact_match, iou, known_answer, target_letter
from core_bench.schema import Box

OPTIONS = ("a star", "a ring", "a ring", "7")


@pytest.mark.parametrize(
    ("prediction", "target", "expected"),
    [
        ("red", "red", (1.0, False)),
        (' "Red." \n', "red", (1.0, False)),
        ("dark  red", "Dark red", (1.0, False)),
        ("3", 3, (1.0, False)),
        ("blue", ["red", "Blue"], (1.0, False)),
        ("green", ["red", "blue"], (0.0, False)),
        ("red star", "red", (0.0, False)),
        ("", "red", (0.0, True)),
        (" . ", "red", (0.0, True)),
        ("", "", (0.0, True)),
    ],
)
def test_exact_match(prediction: str, target: Any, expected: tuple[float, bool]) -> None:
    assert exact_match(prediction, target) == expected
    assert accuracy(prediction, target) == expected


@pytest.mark.parametrize(
    ("prediction", "target", "expected"),
    [
        ("A", "a star", (1.0, False)),
        ("the answer is A", "A", (1.0, False)),
        ("D", 3, (1.0, False)),
        ("7", 3, (1.0, False)),
        ("B", "A", (0.0, False)),
        ("hm", "A", (0.0, True)),
        ("a ring", "B", (0.0, True)),
    ],
)
def test_accuracy_of_choices(prediction: str, target: Any, expected: tuple[float, bool]) -> None:
    assert accuracy(prediction, target, OPTIONS) == expected


@pytest.mark.parametrize("target", ["a ring", "E", 4, -1, None, True, 1.0, ""])
def test_a_target_that_is_no_single_choice(target: Any) -> None:
    with pytest.raises(SampleError, match="answer"):
        target_letter(target, OPTIONS)


def test_known_answer() -> None:
    assert known_answer("Red star", "red", ("red", "blue")) == (1.0, False)
    assert known_answer("blue", "red", ("red", "blue")) == (0.0, False)
    assert known_answer("the star", "red", ("red", "blue")) == (0.0, True)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((0, 0, 10, 10), (0, 0, 10, 10), 1.0),
        ((0, 0, 10, 10), (5, 0, 15, 10), 1 / 3),
        ((0, 0, 10, 10), (10, 0, 20, 10), 0.0),
        ((0, 0, 10, 10), (20, 20, 30, 30), 0.0),
        ((0, 0, 10, 10), (2, 2, 4, 7), 0.1),
        ((5, 5, 5, 9), (0, 0, 10, 10), 0.0),
        ((9, 9, 5, 5), (9, 9, 5, 5), 0.0),
    ],
)
def test_iou(a: Box, b: Box, expected: float) -> None:
    assert iou(a, b) == pytest.approx(expected)


EDGE = st.integers(0, 12)


@settings(max_examples=60, deadline=None)
@given(st.tuples(EDGE, EDGE, EDGE, EDGE), st.tuples(EDGE, EDGE, EDGE, EDGE))
def test_iou_counts_pixels(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> None:
    def pixels(box: tuple[int, int, int, int]) -> set[tuple[int, int]]:
        return {(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])}

    union = pixels(a) | pixels(b)
    expected = len(pixels(a) & pixels(b)) / len(union) if pixels(a) and pixels(b) else 0.0
    assert iou(a, b) == pytest.approx(expected)


def test_acc_at_half() -> None:
    target = (0.0, 0.0, 10.0, 10.0)
    assert acc_at_iou((0.0, 0.0, 10.0, 5.0), target) == (1.0, False)  # exactly 0.5 counts
    assert acc_at_iou((0.0, 0.0, 10.0, 4.9), target) == (0.0, False)
    assert acc_at_iou((10.0, 10.0, 0.0, 0.0), target) == (0.0, True)
    assert acc_at_iou(None, target) == (0.0, True)
