"""Generated RefCOCOg: `annotations.jsonl` and the PNG files it names.

The rows have the columns of the RefCOCOg hub table, and three of our own for a question about the referred object
(`vqa_question`, `vqa_answer`, `vqa_phrase`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from core_bench.bundled import words
from core_bench.bundled.dataset import Dataset
from core_bench.bundled.scene import Scene, make_scene

_TEXT_TOKENS = 30  # what a prompt has beside its picture, about


@dataclass(frozen=True)
class Split:
    """`n` pictures, each of one of `sizes` (rows, columns of cells; a cell is one visual token), with `objects` things
    (a closed range) in each."""

    seed: int
    n: int
    sizes: tuple[tuple[int, int], ...]
    objects: tuple[int, int]


def sized(spec: Split, tokens: int) -> Split:
    """`spec` with square pictures, so that a prompt has about `tokens` tokens."""
    side = max(2, round(math.sqrt(max(0, tokens - _TEXT_TOKENS))))
    most = min(spec.objects[1], max(1, side * side // 2))
    return replace(spec, sizes=((side, side),), objects=(min(spec.objects[0], most), most))


def scenes(split: str, spec: Split) -> Iterator[tuple[str, Scene, np.random.Generator]]:
    """(id, scene, generator for the question) of every item; item i depends on the seed and i alone."""
    for number in range(spec.n):
        rng = np.random.default_rng((spec.seed, number))
        rows, cols = spec.sizes[rng.integers(len(spec.sizes))]
        n_objects = int(rng.integers(spec.objects[0], spec.objects[1] + 1))
        yield f"{split}-{number:04d}", make_scene(rng, rows, cols, n_objects), rng


def write_refcocog(folder: Path, split: str, spec: Split) -> None:
    """The files of one split."""
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


DATASETS = {
    "refcocog": Dataset(
        splits={
            "detect": Split(seed=101, n=64, sizes=((8, 8), (8, 16), (16, 8)), objects=(8, 16)),
            "eval": Split(seed=202, n=128, sizes=((8, 16), (16, 8), (16, 16)), objects=(8, 16)),
            "long": Split(seed=303, n=50, sizes=((32, 32),), objects=(16, 16)),
        },
        write=write_refcocog,
        sized=sized,
    )
}
