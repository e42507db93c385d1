"""VidSTG: when does the video show what a sentence describes? The authors' records, and VidOR's boxes and videos.

A record has captions (declarative) and questions (interrogative) about one moment; each becomes a row of its own. A
model that answers with times alone gets the temporal part of the official metrics (as in TubeDETR's evaluator).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from core_bench.instructions import VIDSTG, VIDSTG_TUBE
from core_bench.schema import Box, Media, Region
from core_bench.scoring_boxes import in_pixels
from core_bench.scoring_vidstg import THRESHOLDS, read_moment, read_tube, sampled_frames, temporal_iou, tube_iou

KINDS = {"captions": "declarative", "questions": "interrogative"}


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


def defects(doc: Mapping[str, Any], base: Path) -> list[str]:
    """What is wrong with a record, by kind. That a moment ends one past the segment is none: it is half-open."""
    found = []
    if not _in_segment(doc):
        found.append("have a moment outside their segment (not scored)")
    if "query" in doc and doc["target_id"] not in {thing["tid"] for thing in doc["subject/objects"]}:
        found.append("ask for an object that the video does not have (no evidence, no vIoU)")
    if not (base / _find(base, doc["vid"], ".json")).is_file():
        found.append("lack VidOR's boxes (no evidence, no vIoU)")
    return found


def _in_segment(doc: Mapping[str, Any]) -> bool:
    segment, truth = doc["used_segment"], doc["temporal_gt"]
    return bool(segment["begin_fid"] <= truth["begin_fid"] < truth["end_fid"] <= segment["end_fid"] + 1)


def prompt(doc: Mapping[str, Any]) -> str:
    return VIDSTG.format(query=doc["query"])


def moment(doc: Mapping[str, Any]) -> tuple[float, float]:
    """Start and end of the moment in seconds of the video; `temporal_gt` is half-open, and its end may lie one past
    the segment's, which is its last frame."""
    begin, end, fps = (doc["temporal_gt"]["begin_fid"], doc["temporal_gt"]["end_fid"], float(doc["fps"]))
    if not (0 <= begin < end and fps > 0):
        raise ValueError(f"temporal_gt: expected a moment, got frames [{begin}, {end}) at {fps} a second")
    if not _in_segment(doc):
        raise ValueError(f"temporal_gt: frames [{begin}, {end}) lie outside the segment {doc['used_segment']}")
    return begin / fps, end / fps


def tube_prompt(doc: Mapping[str, Any]) -> str:
    return VIDSTG_TUBE.format(query=doc["query"])


def target(doc: Mapping[str, Any]) -> str:
    begin, end = moment(doc)
    return f"{begin:.6g}-{end:.6g}"


def results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float | None]:
    """tIoU, whether it is above 0.3 and 0.5, and both apart for declarative and interrogative sentences."""
    said = read_moment(results[0])
    scores = _temporal(doc, said)
    return {**scores, **_apart(doc, scores), "unparsed": float(said is None)}


def tube_results(
    doc: Mapping[str, Any], results: Sequence[str], boxes: str, evidence: Sequence[Region]
) -> dict[str, float | None]:
    """The same, and vIoU with how often it is above 0.3 and 0.5; these do not apply where the true boxes are absent."""
    tube = read_tube(results[0])
    scores: dict[str, float | None] = dict(_temporal(doc, tube.moment))
    value = None if not evidence else 0.0
    if evidence and tube.moment is not None:
        fps, segment = float(doc["fps"]), doc["used_segment"]
        frames = sampled_frames(int(segment["begin_fid"]), int(segment["end_fid"]), fps)  # as the evaluator's range
        true = {region.frame: region.box for region in evidence if region.frame is not None and region.box is not None}
        size = int(doc["width"]), int(doc["height"])
        said = {frame: box for frame in frames if (box := _pixels(tube.box_at(frame / fps), boxes, size)) is not None}
        truth = float(doc["temporal_gt"]["begin_fid"]), float(doc["temporal_gt"]["end_fid"])
        value = tube_iou(frames, truth, true, (tube.moment[0] * fps, tube.moment[1] * fps), said)
    scores |= {f"viou_{threshold}": None if value is None else float(value > threshold) for threshold in THRESHOLDS}
    scores["m_viou"] = value
    return {**scores, **_apart(doc, scores), "unparsed": float(tube.moment is None)}


def _pixels(box: Box | None, convention: str, size: tuple[int, int]) -> Box | None:
    return None if box is None else in_pixels(box, convention, size)


def _temporal(doc: Mapping[str, Any], said: tuple[float, float] | None) -> dict[str, float]:
    value = 0.0 if said is None else temporal_iou(said, moment(doc))
    return {f"tiou_{threshold}": float(value > threshold) for threshold in THRESHOLDS} | {"m_tiou": value}


def _apart(doc: Mapping[str, Any], scores: Mapping[str, float | None]) -> dict[str, float | None]:
    """Each score once more under the kind of the sentence; None under the other kind."""
    return {
        f"{name}_{kind}": score if doc["kind"] == kind else None
        for kind in KINDS.values()
        for name, score in scores.items()
    }


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
