"""Scores of one prediction: each metric takes what was asked and what came, and gives a number from 0 to 1.

A prediction that names no possible answer scores 0 and is flagged `unparsed`, so that it can be counted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from core_bench.answers import letter_of, normalise, read_choice, read_known
from core_bench.errors import SampleError
from core_bench.schema import Box


@dataclass(frozen=True)
class Score:
    """Metric name -> value, and whether no answer could be read.

    `groups`: metric name -> the sample's group, for a metric that is the unweighted mean of its groups' means.
    """

    scores: dict[str, float]
    unparsed: bool
    groups: dict[str, str] = field(default_factory=dict)


def exact_match(prediction: str, target: Any, choices: Sequence[str] = ()) -> tuple[float, bool]:
    """1 if the normalised prediction equals the target (any of them, if it is a list)."""
    said = normalise(prediction)
    targets = target if isinstance(target, list | tuple) else [target]
    return float(bool(said) and said in {normalise(str(one)) for one in targets}), not said


def accuracy(prediction: str, target: Any, choices: Sequence[str] = ()) -> tuple[float, bool]:
    """With choices, whether the option that the prediction names is the target; without, exact match."""
    if not choices:
        return exact_match(prediction, target)
    said = read_choice(prediction, choices)
    return float(said is not None and said == target_letter(target, choices)), said is None


def known_answer(prediction: str, target: str, answers: Sequence[str]) -> tuple[float, bool]:
    """Whether the one of `answers` that the prediction names is the target."""
    said = read_known(prediction, answers)
    return float(said is not None and normalise(said) == normalise(target)), said is None


def target_letter(target: Any, choices: Sequence[str]) -> str:
    """The letter of a target given as an option's text, a letter, or a 0-based index; SampleError for none of them."""
    letters = [letter_of(index) for index in range(len(choices))]
    if isinstance(target, int) and not isinstance(target, bool) and 0 <= target < len(choices):
        return letters[target]
    if isinstance(target, str):
        same = [
            letter for letter, choice in zip(letters, choices, strict=True) if normalise(choice) == normalise(target)
        ]
        if len(same) == 1:
            return same[0]
        if not same and target.strip().strip("().").upper() in letters:
            return target.strip().strip("().").upper()
    raise SampleError(f"answer: expected one of the choices, its letter or its 0-based number, got {target!r}")


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two half-open boxes (x0, y0, x1, y1); 0 where one of them is empty or inverted."""
    areas = [max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1]) for box in (a, b)]
    if not all(areas):
        return 0.0
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    return width * height / (sum(areas) - width * height)


def acc_at_iou(predicted: Box | None, target: Box, threshold: float = 0.5) -> tuple[float, bool]:
    """1 if IoU >= threshold (RefCOCOg: 0.5). No box, or an inverted one, scores 0 and is unparsed."""
    if predicted is None or predicted[2] <= predicted[0] or predicted[3] <= predicted[1]:
        return 0.0, True
    return float(iou(predicted, target) >= threshold), False


METRICS: dict[str, Callable[..., tuple[float, bool]]] = {"exact_match": exact_match, "accuracy": accuracy}
