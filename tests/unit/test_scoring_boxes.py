"""Boxes in answers, and Acc@0.5, against values worked out by hand and by counting pixels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_bench.registry import MODELS, model_class
from core_bench.scoring_boxes import CONVENTIONS, in_pixels, read_box, rec

CASES = json.loads((Path(__file__).parent.parent / "cases/boxes.json").read_text(encoding="utf-8"))


def test_there_are_cases_enough() -> None:
    assert len(CASES["read"]) >= 40
    assert len(CASES["read"]) + len(CASES["rec"]) >= 70
    assert {case[1] for case in CASES["rec"]} == set(CONVENTIONS)


@pytest.mark.parametrize(("text", "expected"), CASES["read"])
def test_a_box_is_read_as_it_is_written(text: str, expected: list[float] | None) -> None:
    found = read_box(text)
    assert (None if found is None else list(found)) == expected


@pytest.mark.parametrize(("text", "convention", "size", "target", "value", "unparsed"), CASES["rec"])
def test_acc_at_half(text: str, convention: str, size: list[int], target: Any, value: int, unparsed: bool) -> None:
    assert rec(text, convention, (size[0], size[1]), tuple(target)) == (value, unparsed)


def test_every_family_has_one_kind_of_coordinates() -> None:
    kinds = {name: model_class(name).BOXES for name in MODELS}
    assert kinds == {"qwen3vl": "thousandths", "llava_onevision": "shares", "internvl": "thousandths"}
    assert set(kinds.values()) <= set(CONVENTIONS)
    with pytest.raises(ValueError, match="expected one of thousandths, shares, pixel"):
        in_pixels((0, 0, 1, 1), "percent", (10, 10))


EDGE = st.integers(0, 20)
BOX = st.tuples(EDGE, EDGE, EDGE, EDGE)


@settings(max_examples=150, deadline=None)
@given(BOX, st.tuples(st.integers(0, 18), st.integers(0, 18), st.integers(1, 3), st.integers(1, 3)))
def test_it_is_right_when_half_of_the_union_is_shared(said: tuple[int, int, int, int], corner: Any) -> None:
    target = (corner[0], corner[1], corner[0] + corner[2] * 5, corner[1] + corner[3] * 5)

    def pixels(box: tuple[int, ...]) -> set[tuple[int, int]]:
        return {(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])}

    one, other = pixels(said), pixels(target)
    expected = (float(2 * len(one & other) >= len(one | other)), False) if one else (0.0, True)
    assert rec(str(list(said)), "pixel", (50, 50), target) == expected
    if one:
        assert rec(str(list(target)), "pixel", (50, 50), said) == expected, "symmetric"


@settings(max_examples=150, deadline=None)
@given(BOX, st.sampled_from(CONVENTIONS), st.integers(1, 4000), st.integers(1, 4000))
def test_the_kinds_of_coordinates_mean_one_box(box: Any, convention: str, width: int, height: int) -> None:
    scale = {"thousandths": 1000, "shares": 1}.get(convention)
    sides = zip(box, [width, height] * 2, strict=True)
    written = box if scale is None else [side * scale / length for side, length in sides]
    assert in_pixels(tuple(written), convention, (width, height)) == pytest.approx(box)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.text("[]()0123456789., -+e", max_size=60), st.sampled_from(CONVENTIONS))
def test_no_answer_raises(text: str, convention: str) -> None:
    value, unparsed = rec(text, convention, (640, 480), (10, 10, 50, 50))
    assert value in (0.0, 1.0)
    assert not (value and unparsed)


def test_long_answers_are_read_in_good_time() -> None:
    for text in ("[" * 20_000, "1 " * 20_000, "(1," * 20_000, "[1, 2, 3, " * 5_000):
        assert read_box(text) is None
