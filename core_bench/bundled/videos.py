"""Generated MLVU and Video-MME: clips and questions about the color of one object, in the data sets' own files.

MLVU: `json/<number>_<task>.json` as in the dev set, `video/<number>_<task>/*.mp4`. Video-MME: `annotations.jsonl` with
the columns of the hub table, `data/<videoID>.mp4`. Both get two columns of our own: `evidence` (the object's boxes on
the native frames that show it, as in `docs/tasks.md`) and `phrase` (the words that refer to it).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from core_bench.bundled import words
from core_bench.bundled.clip import FPS, Clip, Track, draw_duration, make_clip
from core_bench.bundled.dataset import Dataset
from core_bench.bundled.mp4 import write_mp4
from core_bench.bundled.turns import LETTERS, color_question, options_for
from core_bench.errors import UserError
from core_bench.instructions import lettered_dots

LONGEST = 16  # seconds: more than 32 frames would not be seen whole
_TEXT_TOKENS = 70  # what a prompt has beside its clip, about
_SECOND_TOKENS = 10  # time stamp and marks of one second
_LEAST_TOKENS = 150  # four seconds of 3 x 3 cells
_SHORT_OF = 400  # tokens: below, a clip is shorter than LONGEST

# MLVU's dev files with their question types; of the seven, these are about something that can be pointed at.
MLVU_FILES = {"plotQA": "1_plotQA", "findNeedle": "2_needle", "topic_reasoning": "7_topic_reasoning"}


@dataclass(frozen=True)
class Clips:
    """`n` clips, each of one of `sizes` (seconds, rows, columns of cells), with `objects` things at most (a closed
    range; fewer where they would take more than half of the cells)."""

    seed: int
    n: int
    sizes: tuple[tuple[int, int, int], ...]
    objects: tuple[int, int] = (10, 14)


# (seconds, rows, columns): about 210 visual and time-stamp tokens at most. Frames of 4 x 4 cells have one cell a token
# in every family.
SMALL = ((8, 4, 4), (7, 4, 4), (6, 4, 4))


def sized(spec: Clips, tokens: int, longest: int = LONGEST) -> Clips:
    """`spec` with clips of one size, so that a prompt has about `tokens` tokens: `longest` seconds, and the grid grows;
    below 400 tokens shorter ones. UserError below 150 tokens."""
    if tokens < _LEAST_TOKENS:
        raise UserError(f"a generated clip of {tokens} tokens: expected at least {_LEAST_TOKENS}")
    room = tokens - _TEXT_TOKENS
    seconds = longest if tokens >= _SHORT_OF else min(longest, round(room / (_SECOND_TOKENS + 9)))
    cells = room / seconds - _SECOND_TOKENS
    rows = max(3, int(cells**0.5))
    return replace(spec, sizes=((seconds, rows, max(3, round(cells / rows))),))


def clips(
    spec: Clips, asked_seconds: Callable[[np.random.Generator, int, int], int]
) -> Iterator[tuple[int, Clip, np.random.Generator]]:
    """(number, clip, generator for the question) of every item; item i depends on the seed and i alone.

    The object to ask for is the first track; it lasts `asked_seconds(generator, number, seconds of the clip)`.
    """
    for number in range(spec.n):
        rng = np.random.default_rng((spec.seed, number))
        seconds, rows, cols = spec.sizes[rng.integers(len(spec.sizes))]
        durations = [asked_seconds(rng, number, seconds)]
        room = rows * cols * seconds // 2 - durations[0]
        for _ in range(int(rng.integers(spec.objects[0], spec.objects[1] + 1)) - 1):
            durations.append(draw_duration(rng, seconds))
            room -= durations[-1]
            if room < 0 and len(durations) > 4:  # four have distinct colors: the options
                del durations[-1]
                break
        yield number, make_clip(rng, rows, cols, seconds, durations), rng


def frames_of(track: Track) -> range:
    """The native frames that show a track."""
    return range(track.first * FPS, track.end * FPS)


def evidence(track: Track) -> list[dict[str, Any]]:
    """A track as regions of medium 0, one a native frame."""
    boxes = [box for box in track.boxes for _ in range(FPS)]
    return [{"box": list(box), "frame": frame} for frame, box in zip(frames_of(track), boxes, strict=True)]


def _question(rng: np.random.Generator, clip: Clip) -> tuple[str, list[str]]:
    """A question about the color of the first track, and four colors of the clip in random order."""
    asked, *others = clip.tracks
    return color_question(rng, asked.shape), options_for(rng, asked.color, [other.color for other in others])


def mlvu_type(number: int) -> str:
    """The question type of an item."""
    return list(MLVU_FILES)[number % len(MLVU_FILES)]


def _mlvu_seconds(rng: np.random.Generator, number: int, seconds: int) -> int:
    kind = mlvu_type(number)
    if kind == "findNeedle":
        return int(rng.integers(2, 4))
    return max(2, round(seconds / 3)) if kind == "plotQA" else seconds - int(rng.integers(2))


def write_mlvu(folder: Path, split: str, spec: Clips) -> None:
    """The files of one split."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in MLVU_FILES}
    for number, clip, rng in clips(spec, _mlvu_seconds):
        kind, asked = mlvu_type(number), clip.tracks[0]
        question, options = _question(rng, clip)
        name = f"{split}-{number:04d}.mp4"
        _write(folder / "video" / MLVU_FILES[kind] / name, clip)
        row = {"video": name, "duration": len(clip.pixels), "question": question, "candidates": options}
        row |= {"answer": asked.color, "question_type": kind}
        found[kind].append(row | {"evidence": evidence(asked), "phrase": words.phrase(asked.shape)})
    (folder / "json").mkdir()
    for kind, rows in found.items():
        text = json.dumps(rows, indent=1) + "\n"
        (folder / "json" / f"{MLVU_FILES[kind]}.json").write_text(text, encoding="utf-8")


def _videomme_seconds(rng: np.random.Generator, number: int, seconds: int) -> int:
    return int(rng.integers(2, seconds + 1))


def write_videomme(folder: Path, split: str, spec: Clips) -> None:
    """The files of one split."""
    lines = []
    for number, clip, rng in clips(spec, _videomme_seconds):
        asked, name = clip.tracks[0], f"{split}-{number:04d}"
        question, options = _question(rng, clip)
        _write(folder / "data" / f"{name}.mp4", clip)
        row = {
            "video_id": f"{number + 1:03d}",
            "duration": "short",
            "domain": "Generated",
            "sub_category": "Shapes",
            "url": "",
            "videoID": name,
            "question_id": f"{name}-1",
            "task_type": "Attribute Perception",
            "question": question,
            "options": lettered_dots(options).split("\n"),
            "answer": LETTERS[options.index(asked.color)],
            "evidence": evidence(asked),
            "phrase": words.phrase(asked.shape),
        }
        lines.append(json.dumps(row))
    (folder / "annotations.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write(path: Path, clip: Clip) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_mp4(path, clip.pixels)


_LONG = ((32, 4, 4),)  # 64 frames, as many as the tasks ask for: about 1,000 tokens


def _dataset(write: Callable[[Path, str, Clips], None], seed: int) -> Dataset:
    splits = {
        "detect": Clips(seed=seed + 1, n=64, sizes=SMALL),
        "eval": Clips(seed=seed + 2, n=128, sizes=SMALL),
        "long": Clips(seed=seed + 3, n=50, sizes=_LONG),
    }
    return Dataset(splits=splits, write=write, sized=sized)


DATASETS = {"mlvu": _dataset(write_mlvu, 400), "videomme": _dataset(write_videomme, 500)}
