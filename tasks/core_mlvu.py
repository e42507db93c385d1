"""MLVU: multiple-choice questions about long videos, one file a task, read as the authors wrote them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from core_bench import instructions
from core_bench.metrics import accuracy, target_letter
from core_bench.schema import Media

# Folder of the videos of each multiple-choice question type.
FOLDERS = {
    "plotQA": "1_plotQA",
    "findNeedle": "2_needle",
    "ego": "3_ego",
    "count": "4_count",
    "order": "5_order",
    "anomaly_reco": "6_anomaly_reco",
    "topic_reasoning": "7_topic_reasoning",
}


def rows(docs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The records without outer white space, with an `item` name of type, video and number; types take turns, so that
    the first n have all.

    No record is dropped: what cannot be scored is to be counted.
    """
    of_type, of_video = Counter[str](), Counter[str]()
    found = []
    for doc in docs:
        row = {key: _stripped(value) for key, value in doc.items()}
        kind = str(row.get("question_type") or "untyped")
        shown = f"{kind}-{PurePosixPath(str(row.get('video'))).stem}"
        found.append((of_type[kind], {**row, "item": f"{shown}-{of_video[shown]}"}))
        of_type[kind] += 1
        of_video[shown] += 1
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def _stripped(value: Any) -> Any:
    if isinstance(value, list):
        return [_stripped(item) for item in value]
    return value.strip() if isinstance(value, str) else value


def media(doc: Mapping[str, Any]) -> list[Media]:
    if not doc["video"]:
        raise ValueError("video: expected a file name, got an empty one")
    return [Media(kind="video", path=f"video/{FOLDERS[doc['question_type']]}/{doc['video']}")]


def prompt(doc: Mapping[str, Any]) -> str:
    options = instructions.lettered_brackets(doc["candidates"])
    return instructions.MLVU.format(question=doc["question"], options=options)


def system(doc: Mapping[str, Any]) -> str:
    return instructions.MLVU_SYSTEM


def prime(doc: Mapping[str, Any]) -> str:
    return instructions.MLVU_PRIME


def target(doc: Mapping[str, Any]) -> str:
    """The letter of the answer, which is written out; an answer that is not one candidate could never be right."""
    return target_letter(doc["answer"], doc["candidates"])


def results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Right or wrong, for the mean over question types (M-Avg) and for that over questions."""
    value, unparsed = accuracy(results[0], target(doc), doc["candidates"])
    return {"m_avg": value, "accuracy": value, "unparsed": float(unparsed)}
