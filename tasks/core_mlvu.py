"""MLVU: multiple-choice questions about long videos, one file a task, read as the authors wrote them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from core_bench import instructions
from core_bench.answers import normalise
from core_bench.metrics import accuracy, target_letter
from core_bench.schema import Media

# Folder of the videos of each multiple-choice question type of the development set.
FOLDERS = {
    "plotQA": "1_plotQA",
    "findNeedle": "2_needle",
    "ego": "3_ego",
    "count": "4_count",
    "order": "5_order",
    "anomaly_reco": "6_anomaly_reco",
    "topic_reasoning": "7_topic_reasoning",
}
TEST_TYPES = (
    "plotQA", "needleQA", "ego", "count", "order", "anomaly_reco", "topic_reasoning", "sportsQA", "tutorialQA",
)  # fmt: skip
_LONGEST = 3 * 3600  # seconds; the videos last from 3 minutes to 2 hours
_STRIPPED = "stripped"  # column that `rows` adds where it took white space away


def rows(docs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The records without outer white space, with an `item` name of type, video and number; types take turns, so that
    the first n have all.

    No record is dropped: what cannot be scored is to be counted.
    """
    of_type, of_video = Counter[str](), Counter[str]()
    found = []
    for doc in docs:
        row = {key: _stripped(value) for key, value in doc.items()}
        if row != doc:
            row[_STRIPPED] = True
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


def media(doc: Mapping[str, Any], base: Path = Path()) -> list[Media]:
    name, kind = _name(doc), doc["question_type"]
    if kind not in FOLDERS:
        raise ValueError(f"question_type: expected one of {', '.join(FOLDERS)}, got {kind!r}")
    return _video(f"{FOLDERS[kind]}/{name}", base)


def media_of_test(doc: Mapping[str, Any], base: Path) -> list[Media]:
    """The videos of all types of the test set lie in one folder."""
    return _video(_name(doc), base)


def _name(doc: Mapping[str, Any]) -> str:
    name = doc["video"]
    if not isinstance(name, str) or not name:
        raise ValueError(f"video: expected a file name, got {name!r}")
    return name


def _video(name: str, base: Path) -> list[Media]:
    """A copy of the hub's repository has the data in a folder of its own inside it."""
    paths = [f"{folder}video/{name}" for folder in ("", "MLVU/", "MLVU_Test/")]
    return [Media(kind="video", path=next((path for path in paths if (base / path).is_file()), paths[0]))]


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


def results_by_type(doc: Mapping[str, Any], predictions: Sequence[str]) -> dict[str, float | None]:
    """The same, and apart for each question type of both sets."""
    scores = results(doc, predictions)
    kinds = dict.fromkeys([*FOLDERS, *TEST_TYPES])
    apart = {f"accuracy_{kind}": scores["accuracy"] if doc["question_type"] == kind else None for kind in kinds}
    return {**scores, **apart}


def defects(doc: Mapping[str, Any]) -> list[str]:
    """What is wrong with a record, by kind."""
    question, answer, candidates = doc["question"], doc["answer"], doc["candidates"]
    found = []
    if not question or not answer or not any(candidates):
        return ["are empty (not scored)"]
    same = [normalise(option) for option in candidates].count(normalise(answer))
    if not same:
        found.append("have an answer that is none of the options (not scored)")
    if same > 1:
        found.append("have the answer twice among the options (not scored)")
    elif len({normalise(option) for option in candidates}) < len(candidates):
        found.append("have options alike, none of them right (scored)")
    if doc.get(_STRIPPED):
        found.append("have stray white space (stripped)")
    if isinstance(doc.get("duration"), int | float) and doc["duration"] > _LONGEST:
        found.append("claim to last over 3 hours (scored)")
    return found
