"""MMLongBench-Doc's score of a short answer, and a rule-based reading of the short answer from a model's reply.

The rules are those of the data set's `eval/eval_score.py` (github.com/mayubo2333/MMLongBench-Doc). There, a language
model shortens the reply first; here `extract` does, so a number from this module is one of rule-based extraction.
"""

from __future__ import annotations

import ast
import math
import re

from core_bench.answers import normalise
from core_bench.instructions import NOT_ANSWERABLE

FORMATS = ("Str", "Int", "Float", "List", "None")
_ANLS_FLOOR = 0.5
_RELATIVE = 0.01  # how far a number may be off
_NUMBER = re.compile(r"(?<![\w.,])-?\$?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?!\w|[.,]\d)")
_LEAD_IN = re.compile(r"^(?:so,?\s+)?(?:the\s+)?(?:(?:final|short|correct)\s+)?answer\s*(?:is\b\s*:?|:)\s*", re.I)
# Where one of these patterns fits the truth, only the same text is right: a website, a file of code, a page, a
# telephone number, a time, a date, a month, a mail address.
_EXACT = re.compile(
    r".*https://.*|.*(?:\.py|ipynb)|page.*|\d+(?:-\d+|\s\d+)?|.*(?:a\.m\.|p\.m\.).*|\d{4}[-\s]\d{2}[-\s]\d{2}"
    r"|\d{4}[-\s]\d{2}|[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}",
    re.S,
)


def score(answer: str, prediction: str, answer_format: str) -> float:
    """The official score, in [0, 1], of a short `prediction` against the record's `answer` text.

    Raises ValueError for an unknown format and for a Float record whose answer is no number.
    """
    if answer_format == "Int":
        return float(_same_integer(answer, prediction))
    if answer_format == "Float":
        return float(_near(float(clean(answer)), prediction))
    if answer_format in ("Str", "None"):
        return _text_score(clean(answer), clean(prediction))
    if answer_format == "List":
        return _list_score(as_list(answer), as_list(prediction))
    raise ValueError(f"answer_format: expected one of {', '.join(FORMATS)}, got {answer_format!r}")


def _same_integer(answer: str, prediction: str) -> bool:
    try:
        return int(answer) == int(float(prediction))
    except (ValueError, OverflowError):  # no number, or an infinite one
        return False


def _near(truth: float, prediction: str) -> bool:
    """Within 1%, or equal when rounded, to the truth as it is, as a percentage or as a share."""
    try:
        said = float(clean(prediction))
    except ValueError:
        return False
    return any(
        math.isclose(item, said, rel_tol=_RELATIVE) or _equal_when_rounded(item, said)
        for item in (truth / 100, truth, truth * 100)
    )


def _equal_when_rounded(item: float, said: float) -> bool:
    digits = max(min(_decimals(said), _decimals(item)), 2)
    return round(said, digits) == round(item, digits)


def _decimals(number: float) -> int:
    text = str(number)
    return len(text.split(".")[-1]) if "." in text else 3


def _text_score(truth: str, said: str) -> float:
    return float(truth == said) if is_exact(truth) else anls(truth, said)


def _list_score(truth: list[str], said: list[str]) -> float:
    """0 for another number of items; all or nothing where the first true one is a number or a text that must be
    exact; else the worst pair of the sorted lists."""
    if len(truth) != len(said):
        return 0.0
    truth, said = sorted(map(clean, truth)), sorted(map(clean, said))
    if truth and (_is_number(truth[0]) or is_exact(truth[0])):
        return float("-".join(truth) == "-".join(said))
    return min((anls(a, b) for a, b in zip(truth, said, strict=True)), default=1.0)


def as_list(text: str) -> list[str]:
    """The items of a list written as in Python ("['a', 2]"); any other text is one item."""
    if text.lstrip().startswith("["):
        try:
            found = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return [text]
        if isinstance(found, list):
            return [str(item) for item in found]
    return [text]


def clean(text: str) -> str:
    """Lower case, without remarks in parentheses, one outer quote, a leading dollar and a trailing percent sign."""
    text = re.sub(r"\s*\([^)]*\)", "", text.lower().strip()).strip()
    text = re.sub(r"^['\"]|['\"]$", "", text).strip()
    return text.lstrip("$").strip().rstrip("%").strip()


def is_exact(text: str) -> bool:
    """Whether a cleaned true answer is of a kind for which similar is not enough."""
    return _EXACT.fullmatch(text) is not None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def anls(truth: str, said: str) -> float:
    """1 - edit distance / length of the longer text, and 0 where that is at most 0.5; two empty texts give 1."""
    longest = max(len(truth), len(said))
    similarity = 1.0 - edit_distance(truth, said) / longest if longest else 1.0
    return similarity if similarity > _ANLS_FLOOR else 0.0


def edit_distance(a: str, b: str) -> int:
    """Levenshtein: how many characters are inserted, deleted or replaced."""
    above = list(range(len(b) + 1))
    for row, left in enumerate(a, start=1):
        current = [row]
        for column, right in enumerate(b, start=1):
            replaced = above[column - 1] + (left != right)
            current.append(min(replaced, above[column] + 1, current[-1] + 1))
        above = current
    return above[-1]


def extract(reply: str, answer_format: str) -> str | None:
    """The short answer in a reply, by rules; None (unparsed) where it names none, or two numbers where one is asked.

    The first line that says something counts, without markdown, "The answer is" and a full stop. Of a number asked
    for, the only one of the line is taken; of a list, the items, which commas, semicolons and "and" part.
    """
    lines = [re.sub(r"[*_`]{2,}|`", "", line).strip() for line in reply.splitlines()]
    text = next((line for line in lines if line), "")
    text = re.sub(r"(?<!\.m)\.$", "", _LEAD_IN.sub("", text).strip()).strip()  # "2 p.m." keeps its dot
    if normalise(text).startswith(normalise(NOT_ANSWERABLE)):
        return NOT_ANSWERABLE
    if not text:
        return None
    if answer_format in ("Int", "Float"):
        return _only_number(text)
    if answer_format == "List" and not text.startswith("["):
        parts = [part.strip() for part in re.split(r",\s+(?:and\s+)?|;\s*|\s+and\s+", text)]
        return repr([part for part in parts if part])
    return text


def _only_number(text: str) -> str | None:
    found = {match[0].replace(",", "").replace("$", "") for match in _NUMBER.finditer(text)}
    return found.pop() if len(found) == 1 else None
