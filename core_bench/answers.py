"""Reading a model's free text as an answer: the letter of an option, or one of a known set of answers.

An answer that names none, or two without a verdict, is unparsed (None), never a guess: an ablated model rambles, and a
guess would hide it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_QUOTES = "\"'`“”‘’«»"
# A letter by itself: not part of a word, a contraction (I'm) or a number.
_LETTER = r"(?<![\w'’])[\(\[]?([A-Za-z])(?![\w'’])"
_VERDICT = re.compile(
    r"(?:answer|option|choice)\s*(?:is\s*:?|are|[:=\-]|would be|must be|should be)\s*" + _LETTER, re.I
)
_VERDICT_TEXT = re.compile(r"(?:answer|option|choice)\s*(?:is\s*:?|:)\s*(.+?)[\s.]*$", re.I | re.S)
# "A or B", "red, or maybe blue": what follows is named as well, and two are no answer.
_HEDGE = r"[\)\]]?\s*,?\s*(?:(?:or|and)\s+|/\s*)(?:maybe\s+|perhaps\s+|possibly\s+|else\s+)?"
_ALSO = re.compile(_HEDGE + _LETTER + r"(?=\W|$)", re.I)
_LEADING = re.compile(r"[\(\[]?([A-Za-z])(?:[\)\].:,;]|\s*\n)")
_NAMED = re.compile(r"\b(?:option|choice|answer)\s+" + _LETTER, re.I)
_PICKED = re.compile(r"\b(?:choose|chose|pick|select|go with|say|think|believe|be|is|it's)\s+" + _LETTER, re.I)
_BRACKETED = re.compile(r"[\(\[]([A-Za-z])[\)\]]")
_CAPITAL = re.compile(r"(?<![\w'’])([A-Z])(?![\w'’])")
_ONE = r"(?:option\s+|choice\s+|answer\s+)?[\(\[]?(?<!\w)[A-Za-z](?!\w)[\)\]]?"
_REJECTED = re.compile(
    rf"(?:\bnot|n't|\bneither|\bnor|\brather than|\binstead of)\s+{_ONE}"
    rf"|{_ONE}\s+(?:is|are|was)\s+(?:wrong|incorrect|false|not\b|unlikely|ruled out)",
    re.I,
)
_REJECTED_WORD = re.compile(r"(?:\bnot|n't|\bneither|\bnor)\s+\w+")
# "A" and "I" are words too. They are letters at the end of a clause and before a word that goes on after an answer.
_AFTER_ANSWER = r"(?:because|since|as|and|or|which|for|based|given|due|is|in this)\b"
_AS_WORD = re.compile(r"(?<![\w'’\(\[])[AIai](?=\s+(?!" + _AFTER_ANSWER + r")\w)")


def normalise(text: str) -> str:
    """Case, outer white space, quotes, trailing full stops and inner runs of white space do not count."""
    text = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return text.strip(_QUOTES + " ").rstrip(_QUOTES + " .")


def letter_of(index: int) -> str:
    return chr(ord("A") + index)


def read_choice(text: str, choices: Sequence[str]) -> str | None:
    """The capital letter of the option that `text` names, or None. `choices` are the options' texts, A first."""
    text = re.sub(r"\\boxed\{([^}]*)\}", r"\1", unicodedata.normalize("NFKC", text))
    text = re.sub(r"[*_`$]+", "", text).strip(_QUOTES + " \t\r\n")
    letters = [letter_of(index) for index in range(len(choices))]
    if re.fullmatch(r"[\(\[]?[A-Za-z][\)\].:,]*", text):
        return _known(text.strip("()[].:,").upper(), letters)
    whole = _by_text(text, choices)
    if whole:
        return whole
    text = _REJECTED.sub(" ", text)
    verdicts = _letters(_VERDICT, text)
    if verdicts:
        return _only(verdicts, letters)
    spoken = _VERDICT_TEXT.search(text)
    if spoken and (named := _by_text(spoken[1], choices)):
        return named
    return _only(_letters(_NAMED, text), letters) if _letters(_NAMED, text) else _without_verdict(text, letters)


def _without_verdict(text: str, letters: list[str]) -> str | None:
    leading = _LEADING.match(text)
    picked = {leading[1].upper()} if leading else set()
    picked |= _letters(_PICKED, text) | _letters(_BRACKETED, text)
    mentioned = {letter for letter in _letters(_CAPITAL, text) if letter in letters}
    return _only(picked | mentioned, letters) if picked else None


def _letters(pattern: re.Pattern[str], text: str) -> set[str]:
    """Capitals of all letters that a pattern captures, articles and pronouns left out."""
    words = {match.start() for match in _AS_WORD.finditer(text)}
    found = [match for match in pattern.finditer(text) if match.start(1) not in words]
    also = [hedge for match in found if (hedge := _ALSO.match(text, match.end(1))) and hedge.start(1) not in words]
    return {match[1].upper() for match in [*found, *also]}


def _only(found: set[str], letters: list[str]) -> str | None:
    return _known(next(iter(found)), letters) if len(found) == 1 else None


def _known(letter: str, letters: list[str]) -> str | None:
    return letter if letter in letters else None


def _by_text(text: str, choices: Sequence[str]) -> str | None:
    """The letter of the only option with this text; the text may start with that letter (`C) ring`)."""
    match = re.match(r"[\(\[]?([A-Za-z])[\)\].:]+\s*(.+)", text, re.S)
    said, rest = (match[1].upper(), match[2]) if match else ("", text)
    plain = [normalise(_bare(choice)) for choice in choices]
    for stated, wanted in (("", normalise(text)), (said, normalise(rest))):
        fitting = [letter_of(index) for index, choice in enumerate(plain) if choice and choice == wanted]
        if stated and stated in fitting:
            return stated
        if not stated and len(fitting) == 1:
            return fitting[0]
    return None


def _bare(choice: str) -> str:
    """An option without a letter of its own: some data sets write "A. ring"."""
    return re.sub(r"^\s*[\(\[]?[A-Z][\)\].:]\s+", "", choice)


def read_known(text: str, answers: Sequence[str]) -> str | None:
    """The one of `answers` that `text` starts with, else the only one that it names; None for none or several."""
    text = _REJECTED_WORD.sub(" ", normalise(re.sub(r"[*_`]+", "", text))).strip()
    by_plain = {normalise(answer): answer for answer in answers}
    if not by_plain:
        return None
    # Longest first: "dark red" before "red"
    pattern = "|".join(re.escape(plain) for plain in sorted(by_plain, key=len, reverse=True))
    named = [(match.start(), by_plain[match[0]]) for match in re.finditer(rf"(?<!\w)(?:{pattern})(?!\w)", text)]
    hedged = len(named) > 1 and re.fullmatch(_HEDGE, text[len(normalise(named[0][1])) : named[1][0]])
    if named and named[0][0] == 0 and not hedged:
        return named[0][1]
    distinct = {answer for _, answer in named}
    return distinct.pop() if len(distinct) == 1 else None
