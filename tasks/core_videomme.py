"""Video-MME: multiple-choice questions about videos, as rows of the hub table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core_bench.instructions import VIDEOMME
from core_bench.metrics import accuracy
from core_bench.schema import Media
from core_bench.subtitles import SUBTITLES_HERE

# Column -> its values; the accuracy is given apart for each of them.
KINDS = {
    "duration": ("short", "medium", "long"),
    "domain": (
        "Knowledge", "Film & Television", "Sports Competition", "Artistic Performance", "Life Record", "Multilingual",
    ),
    "task_type": (
        "Temporal Perception", "Spatial Perception", "Attribute Perception", "Action Recognition", "Object Recognition",
        "OCR Problems", "Counting Problem", "Temporal Reasoning", "Spatial Reasoning", "Action Reasoning",
        "Object Reasoning", "Information Synopsis",
    ),
}  # fmt: skip
_FOLDERS = ("data", "videos", "video")
_SUBTITLE_FOLDERS = ("subtitle", "subtitles")
_ENDINGS = (".mp4", ".MP4", ".mkv", ".webm")


def media(doc: Mapping[str, Any], base: Path = Path()) -> list[Media]:
    """`videoID` is the name of the file; `video_id` counts the videos."""
    name = _name(doc)
    paths = [f"{folder}/{name}{ending}" for folder in _FOLDERS for ending in _ENDINGS]
    return [Media(kind="video", path=next((path for path in paths if (base / path).is_file()), paths[0]))]


def subtitled_media(doc: Mapping[str, Any], base: Path) -> list[Media]:
    """The same with the video's .srt file; 156 of the 900 videos have none."""
    [video] = media(doc, base)
    return [Media(kind="video", path=video.path, subtitles=_subtitles(doc, base))]


def _name(doc: Mapping[str, Any]) -> str:
    name = doc["videoID"]
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"videoID: expected the name of a video, got {name!r}")
    return name.strip()


def _subtitles(doc: Mapping[str, Any], base: Path) -> str | None:
    paths = (f"{folder}/{_name(doc)}.srt" for folder in _SUBTITLE_FOLDERS)
    return next((path for path in paths if (base / path).is_file()), None)


def prompt(doc: Mapping[str, Any]) -> str:
    """The options come with their letters."""
    options = "\n".join(option.strip() for option in doc["options"])
    return VIDEOMME.format(question=doc["question"], options=options)


def subtitled_prompt(doc: Mapping[str, Any]) -> str:
    """The same after the subtitles of the sampled frames, which are known when the video has been read."""
    return SUBTITLES_HERE + prompt(doc)


def target(doc: Mapping[str, Any]) -> str:
    letter = str(doc["answer"]).strip()
    if letter not in ("A", "B", "C", "D")[: len(doc["options"])]:
        raise ValueError(f"answer: expected the letter of one of {len(doc['options'])} options, got {doc['answer']!r}")
    return letter


def results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float | None]:
    """Accuracy over all questions, and over the answered ones as in the official evaluation."""
    value, unparsed = accuracy(results[0], target(doc), doc["options"])
    return {"accuracy": value, "accuracy_answered": None if unparsed else value, "unparsed": float(unparsed)}


def results_by_kind(doc: Mapping[str, Any], predictions: Sequence[str]) -> dict[str, float | None]:
    """The same, and accuracy over all questions of each duration, domain and task type."""
    scores = results(doc, predictions)
    apart = {
        metric_name(kind): scores["accuracy"] if doc.get(column) == kind else None
        for column, kinds in KINDS.items()
        for kind in kinds
    }
    return {**scores, **apart}


def metric_name(kind: str) -> str:
    """accuracy_short, accuracy_film_television, accuracy_ocr_problems: values of different columns differ."""
    return f"accuracy_{re.sub(r'[^a-z]+', '_', kind.lower())}"


def defects(doc: Mapping[str, Any]) -> list[str]:
    """What is wrong with a row, by kind."""
    found = []
    options = doc["options"]
    if str(doc["answer"]).strip() not in ("A", "B", "C", "D")[: len(options)]:
        found.append("have an answer that is no option's letter (not scored)")
    if len({option.strip()[2:].strip().casefold() for option in options}) < len(options):
        found.append("have options alike (scored)")
    found += [
        f"have an unknown {column} (not in that breakdown)" for column in KINDS if doc.get(column) not in KINDS[column]
    ]
    return found


def subtitled_defects(doc: Mapping[str, Any], base: Path) -> list[str]:
    """The same, and which have no subtitles: they are asked as in the task without."""
    absent = ["have no subtitle file (asked without)"] if _subtitles(doc, base) is None else []
    return defects(doc) + absent
