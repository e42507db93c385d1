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
    "sentences": ("A. Red.", "B. Blue.", "C. Green.", "D. Black."),
    "hollow": ("", "There is an archery scene", "There is no archery scene", ""),
    "numbers": ("2", "1", "5", "4"),
}
COLORS = ("red", "green", "blue", "light blue", "black")


@pytest.mark.parametrize(("kind", "text", "letter"), [(kind, *case) for kind in CHOICES for case in CASES[kind]])
def test_choice(kind: str, text: str, letter: str | None) -> None:
    assert read_choice(text, CHOICES[kind]) == letter


# What must come out right, as the project's requirements list it; two letters without a verdict are no answer.
REQUIRED = {
    "C": "C", "c": "C", "(C)": "C", "C.": "C", "C) ring": "C", "The answer is (C)": "C", "The correct answer is C": "C",
    "**C**": "C", "Answer: C": "C", "option C": "C", "A man is seen, so the answer is (C)": "C",
    "A. I think... the correct answer is C": "C", "I CANNOT ANSWER": None, "b": "B", "Best option: (D": "D",
    "a ring": "C", "(A) (B)": None,
}  # fmt: skip


def test_the_cases_hold_what_is_required() -> None:
    assert REQUIRED.items() <= dict(CASES["choice"]).items()
    assert {letter for _, letter in CASES["six"]} >= {"E", "F", None}
    assert sum(len(CASES[kind]) for kind in CHOICES) >= 40


@pytest.mark.parametrize(("text", "answer"), CASES["known"])
def test_known(text: str, answer: str | None) -> None:
    assert read_known(text, COLORS) == answer


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_any_text_gives_an_option_or_nothing(text: str) -> None:
    assert read_choice(text, FOUR) in {"A", "B", "C", "D", None}
    assert read_known(text, COLORS) in {*COLORS, None}


words = st.sampled_from(
    ["A", "b", "(C)", "E.", "F)", "(", "the answer is", "Answer:", "option", "or", "and", "not", "I", "a ring", "**",
     "\\boxed{", "}", "\n", ",", "because", "1->2", "\ud83d", "\uff23", ""]
)  # fmt: skip
replies = st.one_of(st.text(max_size=80), st.lists(words, max_size=12).map(" ".join))


@settings(max_examples=300, deadline=None)
@given(replies, st.lists(st.text(max_size=12) | words, max_size=6))
def test_any_reply_to_any_options_names_one_of_them_or_none(text: str, choices: list[str]) -> None:
    said = read_choice(text, choices)
    assert said is None or said in "ABCDEF"[: len(choices)]


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
