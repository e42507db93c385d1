"""Generated VidSTG: clips, descriptions of one object in them, and the seconds and boxes that show it.

`annotations/{val,test}_annotations.json` and `..._files.json` as in the authors' repository (`detect` is its val,
every other split its test), `annotation/<folder>/<vid>.json` as in VidOR (boxes with inclusive corners for every native
frame) and `video/<folder>/<vid>.mp4`.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from core_bench.bundled import words
from core_bench.bundled.clip import FPS, MOMENT_SECONDS, Clip, Track
from core_bench.bundled.dataset import Dataset
from core_bench.bundled.mp4 import write_mp4
from core_bench.bundled.videos import Clips, clips, frames_of, sized

_FOLDER = "0000"
_SHORTEST, _LONGEST = 2, 4  # seconds of a described moment: longer ones could be guessed from the length of the clip


def part_of(split: str) -> str:
    """The authors' split whose file names a split's files bear."""
    return "val" if split.partition("@")[0] == "detect" else "test"


def _seconds(rng: np.random.Generator, number: int, seconds: int) -> int:
    return int(rng.integers(_SHORTEST, min(_LONGEST, seconds - 1) + 1))


def write_vidstg(folder: Path, split: str, spec: Clips) -> None:
    """The files of one split."""
    for name in ("annotations", f"annotation/{_FOLDER}", f"video/{_FOLDER}"):
        (folder / name).mkdir(parents=True)
    records = []
    for number, clip, rng in clips(spec, _seconds):
        vid = f"{split}-{number:04d}"
        write_mp4(folder / "video" / _FOLDER / f"{vid}.mp4", clip.pixels)
        about = _about(vid, clip)
        (folder / "annotation" / _FOLDER / f"{vid}.json").write_text(json.dumps(_boxes(about, clip)), encoding="utf-8")
        records.append(_record(about, clip.tracks[0], 1 + number % 2, rng))
    part = folder / "annotations" / part_of(split)
    part.with_name(f"{part.name}_annotations.json").write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    names = [record["vid"] for record in records]
    part.with_name(f"{part.name}_files.json").write_text(json.dumps(names) + "\n", encoding="utf-8")


def _about(vid: str, clip: Clip) -> dict[str, Any]:
    """What VidSTG and VidOR both say of a video."""
    seconds, height, width, _ = clip.pixels.shape
    things = [{"tid": tid, "category": track.shape} for tid, track in enumerate(clip.tracks)]
    about = {"vid": vid, "fps": float(FPS), "frame_count": seconds * FPS, "width": width, "height": height}
    return about | {"subject/objects": things}


def _record(about: dict[str, Any], asked: Track, n_questions: int, rng: np.random.Generator) -> dict[str, Any]:
    """VidSTG's record about the first track; `temporal_gt` is half-open, `used_segment` is inclusive."""
    span = {"begin_fid": frames_of(asked).start, "end_fid": frames_of(asked).stop}

    def texts(templates: tuple[str, ...], count: int) -> list[dict[str, Any]]:
        chosen = rng.choice(templates, size=count, replace=False)
        described = [str(template).format(phrase=words.phrase(asked.shape)) for template in chosen]
        return [{"description": text, "type": "object", "target_id": 0} for text in described]

    return {
        **about,
        "used_segment": {"begin_fid": 0, "end_fid": about["frame_count"] - 1},
        "used_relation": {"subject_tid": 0, "object_tid": 1, "predicate": "beside", **span},
        "temporal_gt": span,
        "captions": texts(words.CAPTIONS, 1),
        "questions": texts(words.MOMENT_QUESTIONS, n_questions),
    }


def _boxes(about: dict[str, Any], clip: Clip) -> dict[str, Any]:
    """VidOR's file about a video."""
    frames: list[list[dict[str, Any]]] = [[] for _ in range(about["frame_count"])]
    for tid, track in enumerate(clip.tracks):
        for frame in frames_of(track):
            x0, y0, x1, y1 = (int(edge) for edge in track.boxes[frame // FPS - track.first])
            box = {"xmin": x0, "ymin": y0, "xmax": x1 - 1, "ymax": y1 - 1}
            frames[frame].append({"tid": tid, "bbox": box, "generated": 0, "tracker": "none"})
    rest = {key: value for key, value in about.items() if key != "vid"}
    return {
        "version": "VERSION 1.0",
        "video_id": about["vid"],
        "video_path": f"{_FOLDER}/{about['vid']}.mp4",
        **rest,
        "trajectories": frames,
        "relation_instances": [],
    }


_SIZES = ((9, 4, 4), (8, 4, 4))  # (seconds, rows, columns)

# Every clip is asked for by a caption and one or two questions: 65 and 130 items.
DATASETS = {
    "vidstg": Dataset(
        splits={"detect": Clips(seed=601, n=26, sizes=_SIZES), "eval": Clips(seed=602, n=52, sizes=_SIZES)},
        write=write_vidstg,
        sized=partial(sized, longest=MOMENT_SECONDS),
    )
}
