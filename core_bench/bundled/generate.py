"""Writes the generated data sets as real files in the datasets' own schemas, seeded and cached.

`ensure("refcocog", "eval")` returns a folder with `annotations.jsonl` and the PNG files it names. The rows have the
columns of the RefCOCOg hub table, and three of our own for a question about the referred object (`vqa_question`,
`vqa_answer`, `vqa_phrase`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from core_bench.bundled import words
from core_bench.bundled.scene import Scene, make_scene
from core_bench.errors import UserError
from core_bench.headtables import cache_dir

GENERATOR_VERSION = 1


@dataclass(frozen=True)
class Split:
    """`n` pictures of `sides[0]` to `sides[1]` cells a side (a cell is one visual token), with `objects` things in
    each."""

    seed: int
    n: int
    sides: tuple[int, int]
    objects: tuple[int, int]


SPLITS: dict[str, dict[str, Split]] = {
    "refcocog": {
        "detect": Split(seed=101, n=64, sides=(8, 13), objects=(8, 16)),
        "eval": Split(seed=202, n=128, sides=(10, 15), objects=(8, 16)),
        "long": Split(seed=303, n=50, sides=(32, 32), objects=(16, 16)),
    }
}


def ensure(dataset: str, split: str, root: Path | None = None) -> Path:
    """The folder of one split, written on first use.

    `root`: where generated data lives; default is the user's cache folder. A folder is complete or absent: it is
    written beside its place and moved there. Raises UserError for an unknown data set or split, and for a root that
    cannot be written.
    """
    if dataset not in SPLITS:
        raise UserError(f"generated data set {dataset!r}: expected one of {', '.join(SPLITS)}")
    if split not in SPLITS[dataset]:
        raise UserError(f"split {split!r} of generated {dataset}: expected one of {', '.join(SPLITS[dataset])}")
    spec = SPLITS[dataset][split]
    settings = json.dumps([GENERATOR_VERSION, dataset, split, asdict(spec)])
    name = f"{split}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"
    folder = (root or cache_dir() / "data") / f"core_{dataset}_tiny" / name
    if not folder.exists():
        try:
            _write(folder, dataset, split, spec)
        except OSError as error:
            raise UserError(f"{folder}: generated data cannot be written: {error.strerror or error}") from error
    return folder


def _write(folder: Path, dataset: str, split: str, spec: Split) -> None:
    draft = folder.with_name(f"{folder.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    shutil.rmtree(draft, ignore_errors=True)  # what a killed process of the same number left
    draft.mkdir(parents=True)
    try:
        _WRITERS[dataset](draft, split, spec)
        draft.rename(folder)
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        if not (isinstance(error, OSError) and folder.exists()):  # else another finished first: its bytes are the same
            raise


def scenes(split: str, spec: Split) -> Iterator[tuple[str, Scene, np.random.Generator]]:
    """(id, scene, generator for the question) of every item; item i depends on the seed and i alone."""
    for number in range(spec.n):
        rng = np.random.default_rng((spec.seed, number))
        rows, cols = (int(side) for side in rng.integers(spec.sides[0], spec.sides[1] + 1, size=2))
        n_objects = int(rng.integers(spec.objects[0], spec.objects[1] + 1))
        yield f"{split}-{number:04d}", make_scene(rng, rows, cols, n_objects), rng


def _write_refcocog(folder: Path, split: str, spec: Split) -> None:
    lines = []
    for name, scene, rng in scenes(split, spec):
        thing = scene.objects[rng.integers(len(scene.objects))]
        template = words.COLOR_QUESTIONS[rng.integers(len(words.COLOR_QUESTIONS))]
        file_name = f"{name}.png"
        Image.fromarray(scene.pixels).save(folder / file_name, optimize=False)
        x0, y0, x1, y1 = thing.box
        row = {
            "question_id": name,
            "image": file_name,
            "question": "Describe the marked region of the picture.",
            "answer": [words.phrase(thing.shape)],
            "segmentation": [x0, y0, x1, y0, x1, y1, x0, y1],
            "bbox": [x0, y0, x1 - x0, y1 - y0],
            "iscrowd": 0,
            "file_name": file_name,
            "vqa_question": template.format(phrase=words.phrase(thing.shape)),
            "vqa_answer": thing.color,
            "vqa_phrase": words.phrase(thing.shape),
        }
        lines.append(json.dumps(row))
    (folder / "annotations.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


_WRITERS = {"refcocog": _write_refcocog}
