"""VidSTG: when does the video show what a sentence describes? The authors' records, and VidOR's boxes and videos.

A record has captions (declarative) and questions (interrogative) about one moment; each becomes a row of its own. A
model that answers with times alone gets the temporal part of the official metrics (as in TubeDETR's evaluator).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from core_bench.instructions import VIDSTG
from core_bench.schema import Media, Region

THRESHOLDS = (0.3, 0.5)
KINDS = {"captions": "declarative", "questions": "interrogative"}
_TIME = r"(?<![\w.])(?:(\d+):)?(\d+(?:\.\d+)?)\s*(?:seconds?|secs?|s)?(?![\w:])"
_RANGE = re.compile(rf"{_TIME}\s*(?:-|–|—|to|until|till)\s*{_TIME}", re.I)
_ONE = re.compile(_TIME, re.I)


def rows(docs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a caption and a question: the record's fields, `item` (the video and a number), `query` and `kind`.

    A record without any stays, as a row without `query`, so that it is counted.
    """
    found, times = [], Counter[str]()
    for number, doc in enumerate(docs, start=1):
        rest = {key: value for key, value in doc.items() if key not in KINDS}
        texts = [
            {"query": text["description"], "kind": kind, "target_id": text.get("target_id")}
            for key, kind in KINDS.items()
            for text in doc.get(key) or []
        ]
        vid = str(doc.get("vid", f"record {number}"))
        for text in texts or [{}]:
            found.append({**rest, **text, "item": f"{vid}-{times[vid]}"})
            times[vid] += 1
    return found


def media(doc: Mapping[str, Any], base: Path) -> list[Media]:
    """The used segment of the video; its last frame belongs to it."""
    segment = doc["used_segment"]
    span = (int(segment["begin_fid"]), int(segment["end_fid"]) + 1)
    return [Media(kind="video", path=_find(base, doc["vid"], ".mp4"), span=span)]


def evidence(doc: Mapping[str, Any], base: Path) -> list[Region]:
    """The target's boxes in the frames of the moment; nothing where the boxes of the video are not at hand.

    VidOR's corners are inclusive: a box ends one pixel further. Frames that do not show the target are left out.
    """
    file = base / _find(base, doc["vid"], ".json")
    if not file.is_file():
        return []
    frames = _trajectories(file)
    if len(frames) != doc["frame_count"]:
        raise ValueError(f"{file.name} has {len(frames)} frames, the record {doc['frame_count']}")
    regions = []
    for frame in range(doc["temporal_gt"]["begin_fid"], doc["temporal_gt"]["end_fid"]):
        for thing in frames[frame]:
            if thing["tid"] == doc["target_id"]:
                box = thing["bbox"]
                edges = (float(box["xmin"]), float(box["ymin"]), box["xmax"] + 1.0, box["ymax"] + 1.0)
                regions.append(Region(medium=0, box=edges, frame=frame))
    return regions


def prompt(doc: Mapping[str, Any]) -> str:
    return VIDSTG.format(query=doc["query"])


def moment(doc: Mapping[str, Any]) -> tuple[float, float]:
    """Start and end of the moment in seconds of the video; `temporal_gt` is half-open."""
    begin, end, fps = (doc["temporal_gt"]["begin_fid"], doc["temporal_gt"]["end_fid"], float(doc["fps"]))
    if not (0 <= begin < end and fps > 0):
        raise ValueError(f"temporal_gt: expected a moment, got frames [{begin}, {end}) at {fps} a second")
    return begin / fps, end / fps


def target(doc: Mapping[str, Any]) -> str:
    begin, end = moment(doc)
    return f"{begin:.6g}-{end:.6g}"


def read_moment(text: str) -> tuple[float, float] | None:
    """Start and end in seconds that an answer names ("3-7", "from 3 to 7.5 seconds", "0:03 - 1:07"), or None.

    None too for an end that is not after the start, and where several ranges, or other than two times, are named.
    """
    ranges = {match.groups() for match in _RANGE.finditer(text)}
    if len(ranges) == 1:
        minutes, start, more_minutes, end = next(iter(ranges))
        times = [(minutes, start), (more_minutes, end)]
    else:
        times = [(match[1], match[2]) for match in _ONE.finditer(text)]
    if len(ranges) > 1 or len(times) != 2:
        return None
    first, last = (60 * int(minutes or 0) + float(second) for minutes, second in times)
    return (first, last) if first < last else None


def temporal_iou(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Intersection over union of two half-open intervals [start, end)."""
    shared = max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
    return shared / ((a[1] - a[0]) + (b[1] - b[0]) - shared)


def results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float | None]:
    """tIoU, whether it is above 0.3 and 0.5, and both apart for declarative and interrogative sentences."""
    said = read_moment(results[0])
    value = 0.0 if said is None else temporal_iou(said, moment(doc))
    scores = {f"tiou_{threshold}": float(value > threshold) for threshold in THRESHOLDS} | {"m_tiou": value}
    apart = {
        f"{name}_{kind}": score if doc["kind"] == kind else None
        for kind in KINDS.values()
        for name, score in scores.items()
    }
    return {**scores, **apart, "unparsed": float(said is None)}


def _find(base: Path, vid: str, suffix: str) -> str:
    """Path from `base` of a video's file: VidOR keeps them in folders that the records do not name."""
    return _files(base, suffix).get(vid, f"{vid}{suffix}")


@lru_cache(maxsize=16)
def _files(base: Path, suffix: str) -> dict[str, str]:
    return {path.stem: path.relative_to(base).as_posix() for path in sorted(base.rglob(f"*{suffix}"))}


@lru_cache(maxsize=4)  # the rows of one video follow each other
def _trajectories(file: Path) -> list[list[dict[str, Any]]]:
    found: list[list[dict[str, Any]]] = json.loads(file.read_text(encoding="utf-8"))["trajectories"]
    return found
