"""VidSTG's metrics: when and where a video shows what a sentence describes, as TubeDETR's evaluator counts them.

Source: Yang et al., "TubeDETR" (2022), section 4.1, and its datasets/vidstg_eval.py. tIoU is taken on half-open
moments; vIoU is the sum, over the sampled frames in both moments, of the boxes' IoU, divided by the number of sampled
frames in either; a rate counts values **above** its threshold. Frames are sampled at 5 a second, at most 200 of a
segment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core_bench.metrics import iou
from core_bench.schema import Box
from core_bench.scoring_boxes import BOX_PATTERN

THRESHOLDS = (0.3, 0.5)
SAMPLE_RATE, MOST_FRAMES = 5, 200
_TIME = r"(?<![\w.])(?:(\d+):)?(\d+(?:\.\d+)?)\s*(?:seconds?|secs?|s)?(?![\w:])"
_RANGE = re.compile(rf"{_TIME}\s*(?:-|–|—|to|until|till)\s*{_TIME}", re.I)
_ONE = re.compile(_TIME, re.I)
_OBJECT = re.compile(r"\{[^{}]*\}")
_STAMP = re.compile(
    r"[\"']?\b(?:time|timestamp|second|seconds|t)\b[\"']?\s*[:=]\s*[\"']?(?:(\d+):)?(\d+(?:\.\d+)?)", re.I
)

Moment = tuple[float, float]


@dataclass(frozen=True)
class Tube:
    """What an answer says: the moment in seconds, and boxes as written, each with its second or with None."""

    moment: Moment | None
    boxes: tuple[tuple[float | None, Box], ...]

    def box_at(self, second: float) -> Box | None:
        """The box at a second: a single box without a time holds throughout; between two with times it moves evenly,
        before the first and after the last it rests. None for no box, and for several without times."""
        loose = {box for time, box in self.boxes if time is None}
        timed = sorted({time: box for time, box in self.boxes if time is not None}.items())
        if not timed:
            return loose.pop() if len(loose) == 1 else None
        t0, a = max((pair for pair in timed if pair[0] <= second), default=timed[0])
        t1, b = min((pair for pair in timed if pair[0] >= second), default=timed[-1])
        if t1 <= t0:
            return a if second >= t0 else b
        share = (second - t0) / (t1 - t0)
        x0, y0, x1, y1 = (one + share * (other - one) for one, other in zip(a, b, strict=True))
        return x0, y0, x1, y1


def read_moment(text: str) -> Moment | None:
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
    first, last = (_seconds(minutes, second) for minutes, second in times)
    return (first, last) if first < last else None


def read_tube(text: str) -> Tube:
    """The moment and the boxes of an answer: "3-7 [x0, y0, x1, y1]", or JSON objects with a time and a box each.

    Where no moment is named, the first and the last time of the boxes are it.
    """
    boxes: list[tuple[float | None, Box]] = []
    for match in _OBJECT.finditer(text):
        stamp = _STAMP.search(match[0])
        time = None if stamp is None else _seconds(stamp[1], stamp[2])
        boxes += [(time, box) for box in _boxes(match[0])]
    rest = _OBJECT.sub(" ", text)
    boxes += [(None, box) for box in _boxes(rest)]
    moment = read_moment(BOX_PATTERN.sub(" ", rest))
    times = [time for time, _ in boxes if time is not None]
    if moment is None and times and min(times) < max(times):
        moment = min(times), max(times)
    return Tube(moment, tuple(boxes))


def _boxes(text: str) -> list[Box]:
    found = (match.groups() for match in BOX_PATTERN.finditer(text))
    return [(float(a), float(b), float(c), float(d)) for a, b, c, d in found]


def _seconds(minutes: str | None, seconds: str) -> float:
    return 60 * int(minutes or 0) + float(seconds)


def temporal_iou(a: Moment, b: Moment) -> float:
    """Intersection over union of two half-open intervals [start, end)."""
    shared = max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
    return shared / ((a[1] - a[0]) + (b[1] - b[0]) - shared)


def sampled_frames(first: int, last: int, fps: float) -> list[int]:
    """The native frames that count in [first, last): `first`, and each that begins a new fifth of a second; of more
    than 200, every so many. A video of a lower rate counts whole."""
    rate = SAMPLE_RATE / fps
    if rate >= 1:
        frames = list(range(first, last))
    else:
        frames = [first]
        frames += [frame for frame in range(first + 1, last) if int((frame - 1) * rate) < int(frame * rate)]
    if len(frames) > MOST_FRAMES:
        frames = [frames[number * len(frames) // MOST_FRAMES] for number in range(MOST_FRAMES)]
    return frames


def tube_iou(
    frames: Sequence[int], truth: Moment, true_boxes: Mapping[int, Box], said: Moment, said_boxes: Mapping[int, Box]
) -> float:
    """vIoU of two tubes; moments are half-open, in frames. A frame of both that lacks a box adds nothing."""
    both = [frame for frame in frames if max(truth[0], said[0]) <= frame < min(truth[1], said[1])]
    either = [frame for frame in frames if min(truth[0], said[0]) <= frame < max(truth[1], said[1])]
    shared = sum(
        iou(true_boxes[frame], said_boxes[frame]) for frame in both if frame in true_boxes and frame in said_boxes
    )
    return shared / max(len(either), 1)
