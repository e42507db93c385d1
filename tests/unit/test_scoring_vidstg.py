"""VidSTG's metrics against values worked out with the evaluator's formulas, and against sets of frames."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_bench.scoring_vidstg import Tube, read_tube, sampled_frames, temporal_iou, tube_iou

CASES = json.loads((Path(__file__).parent.parent / "cases/vidstg.json").read_text(encoding="utf-8"))


def test_there_are_cases_enough() -> None:
    assert len(CASES["tubes"]) >= 40
    assert any(case["truth"][1] == case["segment"][1] + 1 for case in CASES["tubes"]), "one past the segment"
    assert any(case["truth"][1] - case["truth"][0] == 1 for case in CASES["tubes"]), "tubes of one frame"


@pytest.mark.parametrize("case", CASES["tubes"], ids=lambda case: f"{case['truth']} {case['said']} {case['said_box']}")
def test_tubes(case: dict[str, Any]) -> None:
    frames = sampled_frames(case["segment"][0], case["segment"][1], case["fps"])
    assert len(frames) == case["frames"]
    true, said = (dict.fromkeys(frames, tuple(case[key])) for key in ("true_box", "said_box"))
    assert tube_iou(frames, case["truth"], true, case["said"], said) == pytest.approx(case["viou"])
    assert tube_iou(frames, case["said"], said, case["truth"], true) == pytest.approx(case["viou"]), "symmetric"
    assert temporal_iou(case["truth"], case["said"]) == pytest.approx(case["tiou"])


@pytest.mark.parametrize(("text", "expected"), CASES["moments"])
def test_moments_of_answers(text: str, expected: list[float] | None) -> None:
    found = read_tube(text).moment
    assert (None if found is None else list(found)) == expected


def test_boxes_rest_move_and_end() -> None:
    text = '2-6 [{"time": 3, "bbox_2d": [0, 0, 10, 10]}, {"time": 5, "bbox_2d": [20, 0, 30, 10]}]'
    tube = read_tube(text)
    assert tube.moment == (2, 6)
    assert tube.box_at(2) == tube.box_at(3) == (0, 0, 10, 10)
    assert tube.box_at(4) == (10, 0, 20, 10)
    assert tube.box_at(4.5) == (15, 0, 25, 10)
    assert tube.box_at(5) == tube.box_at(60) == (20, 0, 30, 10)
    assert read_tube("2-6 [1, 2, 3, 4]").box_at(4) == (1, 2, 3, 4)
    assert read_tube("2-6 [1, 2, 3, 4] [5, 6, 7, 8]").box_at(4) is None, "two boxes and no times"
    assert read_tube("2-6").box_at(4) is None


def test_frames_are_a_fifth_of_a_second_apart() -> None:
    assert sampled_frames(0, 20, 10) == list(range(0, 20, 2))
    assert sampled_frames(0, 4, 5) == sampled_frames(0, 4, 3) == [0, 1, 2, 3]
    assert sampled_frames(7, 20, 25) == [7, 10, 15]
    assert sampled_frames(3, 4, 30) == [3]
    many = sampled_frames(0, 10_000, 25)
    assert (len(many), many[0], many[1]) == (200, 0, 50)


def test_a_frame_without_a_box_adds_nothing() -> None:
    frames, box = list(range(0, 20, 2)), (0.0, 0.0, 4.0, 4.0)
    boxes = dict.fromkeys(frames, box)
    assert tube_iou(frames, (0, 20), boxes, (0, 20), boxes) == 1
    for one, other in ((boxes, {0: box}), ({0: box}, boxes)):
        assert tube_iou(frames, (0, 20), one, (0, 20), other) == 0.1
    assert tube_iou([], (0, 20), boxes, (0, 20), boxes) == 0


EDGE = st.integers(0, 30)
PAIR = st.tuples(EDGE, EDGE).map(sorted).filter(lambda pair: pair[0] < pair[1])
BOX = st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6), st.integers(0, 6))


@settings(max_examples=150, deadline=None)
@given(PAIR, PAIR, st.lists(BOX, min_size=31, max_size=31), st.lists(BOX, min_size=31, max_size=31))
def test_viou_is_that_of_its_definition(truth: Any, said: Any, one: list[Any], other: list[Any]) -> None:
    def pixels(box: tuple[int, ...]) -> set[tuple[int, int]]:
        return {(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])}

    frames = list(range(0, 31, 3))
    first, second = {f for f in frames if truth[0] <= f < truth[1]}, {f for f in frames if said[0] <= f < said[1]}
    between = {f for f in frames if min(truth[0], said[0]) <= f < max(truth[1], said[1])}
    total = 0.0
    for frame in first & second:
        a, b = pixels(one[frame]), pixels(other[frame])
        total += len(a & b) / len(a | b) if a and b else 0
    value = tube_iou(frames, truth, dict(enumerate(one)), said, dict(enumerate(other)))
    assert value == pytest.approx(total / max(len(between), 1))
    assert 0 <= value <= 1
    assert value == pytest.approx(tube_iou(frames, said, dict(enumerate(other)), truth, dict(enumerate(one))))


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.text('{}[]()0123456789.,:- "timebox', max_size=80), st.floats(0, 100))
def test_no_answer_raises(text: str, second: float) -> None:
    tube = read_tube(text)
    assert isinstance(tube, Tube)
    box = tube.box_at(second)
    assert box is None or len(box) == 4
    assert tube.moment is None or tube.moment[0] < tube.moment[1]


def test_long_answers_are_read_in_good_time() -> None:
    for text in ("{" * 20_000, "1 " * 20_000, "{t: 1 " * 10_000, "[1, 2, 3, " * 5_000, "1:" * 20_000):
        assert read_tube(text).moment is None
