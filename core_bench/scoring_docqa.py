"""The score of MMLongBench's document questions (8K to 128K tokens), of a whole reply: no answer is cut out of it.

The rules are those of `eval_docqa_score` in utils.py of github.com/EdinburghNLP/MMLongBench: a number counts if it is
among the reply's, a text by the F1 of its words, a list by the mean of its items.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections import Counter
from typing import Any

FORMATS = ("Integer", "Float", "String", "List", "None")
_RELATIVE = 0.01  # how far a number may be off
_UNITS = (
    "kg", "meters", "acres", "minutes", "miles", "mile", "feet", "million", "thousand", "billion", "mm", "m",
)  # fmt: skip
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?|-?\.\d+")
# Texts of which one that is only similar is wrong: a website, a file of code, a page, a telephone number, a time, a
# date, a month, a mail address.
_EXACT = re.compile(
    r"https://|\.(?:py|ipynb)$|^page|^\d+(?:-\d+|\s\d+)?$|a\.m\.|p\.m\.|^\d{4}[-/\s]\d{1,2}[-/\s]\d{1,2}$"
    r"|^\d{1,2}[-/\s]\d{1,2}[-/\s]\d{2,4}$|^\d{4}[-/\s]\d{1,2}$|^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}$"
)


def score(answer: str, reply: str, answer_format: str) -> float:
    """The score, in [0, 1], of a reply against the record's answer, which is JSON text where it is a list.

    Raises ValueError for an unknown format, and for an answer that is not of its format.
    """
    if answer_format == "Integer":
        truth = float(_plain(answer))
        if not truth.is_integer():
            raise ValueError(f"answer: expected a whole number, got {answer!r}")
        return float(any(number == truth for number in numbers(_plain(reply))))
    if answer_format == "Float":
        truth = float(_plain(answer))
        wanted = (truth / 100, truth, truth * 100)
        said = numbers(_plain(reply))
        return float(any(math.isclose(one, number, rel_tol=_RELATIVE) for one in wanted for number in said))
    if answer_format in ("String", "None"):
        return float(answer in reply) if is_exact(answer) else word_f1(answer, reply)
    if answer_format == "List":
        return _list_score(answer, reply)
    raise ValueError(f"answer_format: expected one of {', '.join(FORMATS)}, got {answer_format!r}")


def _list_score(answer: str, reply: str) -> float:
    """Mean over the items; texts that need not be exact count as one, so that each is not held against the others."""
    items = json.loads(answer)
    if not isinstance(items, list) or not items or not all(isinstance(item, str | int | float) for item in items):
        raise ValueError(f"answer: expected a list of texts and numbers, got {answer!r}")
    loose = [item for item in items if isinstance(item, str) and _kind(item) == "String" and not is_exact(item)]
    joined = " ".join(loose).strip()
    if joined:
        items = [joined, *(item for item in items if not (isinstance(item, str) and item in loose))]
    return sum(score(str(item), reply, _kind(item)) for item in items) / len(items)


def _kind(item: Any) -> str:
    if isinstance(item, int):
        return "Integer"
    if isinstance(item, float):
        return "Float"
    try:
        number = float(_plain(item))
        return "Integer" if number == int(number) and "%" not in item else "Float"
    except (ValueError, OverflowError):
        return "String"


def _plain(text: str) -> str:
    """Lower case, without thousands commas, a unit at the end, one pair of quotes, and $, £ and % around."""
    text = text.lower().strip().replace(",", "")
    for unit in _UNITS:
        text = text.removesuffix(unit).strip()
    text = re.sub(r"^['\"]|['\"]$", "", text).strip()
    for sign in "$£%":
        text = text.strip(sign).strip()
    return text


def numbers(text: str) -> list[float]:
    """Every finite number in a text."""
    found = (float(match[0]) for match in _NUMBER.finditer(text.replace(",", "")))
    return [number for number in found if math.isfinite(number)]


def is_exact(text: str) -> bool:
    return _EXACT.search(text) is not None


def word_f1(truth: str, reply: str) -> float:
    """F1 of the words that two texts share, counted as often as they occur; articles and punctuation do not count."""
    one, other = _words(truth), _words(reply)
    same = sum((Counter(one) & Counter(other)).values())
    return 2 * same / (len(one) + len(other)) if same else 0.0


def _words(text: str) -> list[str]:
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def after_prefix(reply: str, prefix: str = "Answer:") -> str:
    """What follows the first "Answer:" of a reply, whatever its case, or all of it."""
    _, found, rest = _split(reply, prefix)
    text = (rest if found else reply).strip()
    return text[len(prefix) :].strip() if text.lower().startswith(prefix.lower()) else text


def _split(text: str, prefix: str) -> tuple[str, str, str]:
    at = text.lower().find(prefix.lower())
    return (text, "", "") if at < 0 else (text[:at], prefix, text[at + len(prefix) :])
