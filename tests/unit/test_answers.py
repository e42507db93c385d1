"""Reading answers: hand-written cases first, then what must hold for any text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_bench.answers import read_choice, read_known

CASES: dict[str, list[list[Any]]] = json.loads(
    (Path(__file__).parent.parent / "cases" / "answers.json").read_text(encoding="utf-8")
)
FOUR = ("a star", "a cross", "a ring", "a heart")
CHOICES = {
    "choice": FOUR,
    "six": (*FOUR, "a moon", "a house"),
    "own_letters": ("A. plate", "B. plate", "C. ring", "D. star"),
}
COLORS = ("red", "green", "blue", "light blue", "black")


@pytest.mark.parametrize(("kind", "text", "letter"), [(kind, *case) for kind in CHOICES for case in CASES[kind]])
def test_choice(kind: str, text: str, letter: str | None) -> None:
    assert read_choice(text, CHOICES[kind]) == letter


@pytest.mark.parametrize(("text", "answer"), CASES["known"])
def test_known(text: str, answer: str | None) -> None:
    assert read_known(text, COLORS) == answer


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_any_text_gives_an_option_or_nothing(text: str) -> None:
    assert read_choice(text, FOUR) in {"A", "B", "C", "D", None}
    assert read_known(text, COLORS) in {*COLORS, None}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from("ABCD"),
    st.sampled_from(["{}", "({})", "{}.", "{}) ", "The answer is ({})", "Answer: {}", "option {}", "**{}**"]),
    st.booleans(),
)
def test_every_letter_reads_alike(letter: str, form: str, lower: bool) -> None:
    text = form.format(letter.lower() if lower else letter)
    assert read_choice(text, FOUR) == letter


def test_no_choices_read_nothing() -> None:
    assert read_choice("A", ()) is None
    assert read_known("red", ()) is None
