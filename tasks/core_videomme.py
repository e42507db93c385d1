"""Video-MME: multiple-choice questions about videos, as rows of the hub table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core_bench.instructions import VIDEOMME
from core_bench.metrics import accuracy
from core_bench.schema import Media


def media(doc: Mapping[str, Any]) -> list[Media]:
    """`videoID` is the name of the file; `video_id` counts the videos."""
    return [Media(kind="video", path=f"data/{doc['videoID']}.mp4")]


def prompt(doc: Mapping[str, Any]) -> str:
    """The options come with their letters."""
    options = "\n".join(option.strip() for option in doc["options"])
    return VIDEOMME.format(question=doc["question"], options=options)


def target(doc: Mapping[str, Any]) -> str:
    letter = str(doc["answer"]).strip()
    if letter not in ("A", "B", "C", "D")[: len(doc["options"])]:
        raise ValueError(f"answer: expected the letter of one of {len(doc['options'])} options, got {doc['answer']!r}")
    return letter


def results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float | None]:
    """Accuracy over all questions, and over the answered ones as in the official evaluation."""
    value, unparsed = accuracy(results[0], target(doc), doc["options"])
    return {"accuracy": value, "accuracy_answered": None if unparsed else value, "unparsed": float(unparsed)}
