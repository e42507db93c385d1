"""Seeded clips: a still background of faint noise on which objects come, hop from cell to cell, and go.

One picture a second: a video file shows each twice (2 frames a second), which Qwen3-VL merges into one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core_bench.bundled.scene import CELL, OBJECT_SIZES, draw, noise
from core_bench.bundled.words import COLORS, SHAPES
from core_bench.schema import Box

FPS = 2  # native frames a second of the files
MOMENT_SECONDS = 9  # longest clips of which moments are asked: every second is one digit
_HOP = 0.3  # probability that an object stands in another cell a second later


@dataclass(frozen=True)
class Track:
    """One object from second `first` on; `boxes` has one half-open pixel box for each second that shows it."""

    shape: str
    color: str
    first: int
    boxes: tuple[Box, ...]

    @property
    def end(self) -> int:
        """The second after its last one."""
        return self.first + len(self.boxes)


@dataclass(frozen=True)
class Clip:
    """`pixels`: uint8 [seconds, height, width, 3]; tracks have distinct shapes, the first four distinct colors."""

    pixels: np.ndarray
    tracks: tuple[Track, ...]


def draw_duration(rng: np.random.Generator, seconds: int) -> int:
    """For how long an object of a clip of `seconds` (at least 2) is seen: 2 seconds to half of it, now and then all."""
    longest = seconds if rng.random() < 0.2 else max(2, seconds // 2)
    return int(rng.integers(2, longest + 1))


def make_clip(rng: np.random.Generator, rows: int, cols: int, seconds: int, durations: Sequence[int]) -> Clip:
    """A clip of rows x cols cells with one object a wanted duration (seconds, at most the clip's), 16 at most.

    Shapes are distinct and the first four colors too. An object for which no cell is free stays out: with at most
    half the cells in use at any time that does not happen.
    """
    pixels = np.repeat(noise(rng, rows * CELL, cols * CELL)[None], seconds, axis=0)
    shapes = rng.permutation(len(SHAPES))[: len(durations)]
    colors = [*rng.permutation(len(COLORS))[:4], *rng.integers(len(COLORS), size=len(durations))]
    taken = np.zeros((seconds, rows * cols), dtype=bool)
    tracks = []
    for shape, color, duration in zip(shapes, colors, durations, strict=False):
        first = int(rng.integers(seconds - duration + 1))
        cells = _walk(rng, taken[first : first + duration], rows, cols)
        if cells is None:
            continue
        size = int(rng.choice(OBJECT_SIZES))
        left, top = (int(n) for n in rng.integers(0, CELL - size + 1, size=2))
        name, ink, boxes = SHAPES[shape], list(COLORS)[color], []
        for second, cell in enumerate(cells, start=first):
            x, y = (cell % cols) * CELL + left, (cell // cols) * CELL + top
            boxes.append(draw(pixels[second], name, ink, x, y, size).box)
        tracks.append(Track(name, ink, first, tuple(boxes)))
    return Clip(pixels, tuple(tracks))


def _walk(rng: np.random.Generator, taken: np.ndarray, rows: int, cols: int) -> list[int] | None:
    """A free cell for each second of `taken` (bool [seconds, cells], marked here), or None when one has none left."""
    cells: list[int] = []
    for busy in taken:
        free = np.flatnonzero(~busy)
        if not len(free):
            return None
        stays = cells and not busy[cells[-1]] and rng.random() >= _HOP
        cells.append(cells[-1] if stays else int(rng.choice(free)))
    taken[np.arange(len(cells)), cells] = True
    return cells
