"""Seeded pictures: objects of distinct shapes on a grid of 32-pixel cells of faint noise, with their boxes.

Drawn by comparing coordinates with inequalities in numpy, so that one seed gives the same pixels everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from core_bench.bundled.words import COLORS, SHAPES
from core_bench.schema import Box

CELL = 32  # pixels: one visual token of the bundled models (patch 16, merge 2)
NOISE_BLOCK = 4  # pixels; keeps the PNG files small
OBJECT_SIZES = range(20, 29)  # pixels
_SUPERSAMPLE = 4


@dataclass(frozen=True)
class Object:
    """One drawn object; `box` is half-open, in pixels, tight around the drawn extent."""

    shape: str
    color: str
    box: Box


@dataclass(frozen=True)
class Scene:
    """`pixels`: uint8 [height, width, 3]; `objects` have pairwise distinct shapes."""

    pixels: np.ndarray
    objects: tuple[Object, ...]


def _polygon_star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    angle = np.arctan2(x, -y)
    sector = np.abs(((angle / (2 * np.pi / 5)) + 0.5) % 1.0 - 0.5) * 2
    return np.hypot(x, y) <= 1.0 - 0.62 * sector


def _heart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    u, v = 1.2 * x, -1.2 * y + 0.15
    return (u * u + v * v - 0.75) ** 3 - u * u * v**3 <= 0


_FORMULAS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "circle": lambda x, y: x * x + y * y <= 1,
    "square": lambda x, y: (abs(x) <= 0.95) & (abs(y) <= 0.95),
    "triangle": lambda x, y: (y <= 0.95) & (abs(x) <= (y + 1) / 2),
    "diamond": lambda x, y: abs(x) + abs(y) <= 1,
    "cross": lambda x, y: (abs(abs(x) - abs(y)) <= 0.3) & (np.maximum(abs(x), abs(y)) <= 0.95),
    "plus": lambda x, y: (np.minimum(abs(x), abs(y)) <= 0.28) & (np.maximum(abs(x), abs(y)) <= 0.95),
    "star": _polygon_star,
    "ring": lambda x, y: (x * x + y * y <= 1) & (x * x + y * y >= 0.3),
    "heart": _heart,
    "arrow": lambda x, y: ((abs(y) <= 0.25) & (abs(x) <= 0.95)) | ((x >= 0) & (abs(y) <= 0.95 - x)),
    "moon": lambda x, y: (x * x + y * y <= 1) & ((x - 0.5) ** 2 + y * y >= 0.6),
    "bar": lambda x, y: (abs(y) <= 0.32) & (abs(x) <= 0.98),
    "column": lambda x, y: (abs(x) <= 0.32) & (abs(y) <= 0.98),
    "frame": lambda x, y: (np.maximum(abs(x), abs(y)) <= 0.95) & (np.maximum(abs(x), abs(y)) >= 0.55),
    "hourglass": lambda x, y: (abs(y) <= 0.95) & (abs(x) <= abs(y)),
    "house": lambda x, y: ((y >= 0) & (y <= 0.95) & (abs(x) <= 0.7)) | ((y < 0) & (abs(x) <= y + 1)),
}


@cache
def sprite(shape: str, size: int) -> np.ndarray:
    """Coverage in [0, 1] of a shape in a square of `size` pixels: float32 [size, size]."""
    fine = size * _SUPERSAMPLE
    axis = ((np.arange(fine) + 0.5) / fine * 2 - 1).astype(np.float64)
    inside = _FORMULAS[shape](axis[None, :], axis[:, None])
    return inside.reshape(size, _SUPERSAMPLE, size, _SUPERSAMPLE).mean(axis=(1, 3)).astype(np.float32)


def noise(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Faint grey noise, uint8 [height, width, 3]."""
    coarse = rng.integers(118, 139, size=(-(-height // NOISE_BLOCK), -(-width // NOISE_BLOCK), 1), dtype=np.uint8)
    fine = coarse.repeat(NOISE_BLOCK, axis=0).repeat(NOISE_BLOCK, axis=1)[:height, :width]
    return np.repeat(fine, 3, axis=2)


def draw(pixels: np.ndarray, shape: str, color: str, x: int, y: int, size: int) -> Object:
    """Paint one object into `pixels` with its square's corner at (x, y); returns it with its tight box."""
    cover = sprite(shape, size)[..., None]
    patch = pixels[y : y + size, x : x + size]
    ink = np.array(COLORS[color], dtype=np.float32)
    patch[:] = np.rint(patch * (1 - cover) + ink * cover).astype(np.uint8)
    drawn_y, drawn_x = np.nonzero(sprite(shape, size) > 0)
    box = (x + drawn_x.min(), y + drawn_y.min(), x + drawn_x.max() + 1, y + drawn_y.max() + 1)
    return Object(shape, color, tuple(float(edge) for edge in box))  # type: ignore[arg-type]


def place(rng: np.random.Generator, pixels: np.ndarray, shape: str, row: int, col: int) -> Object:
    """Paint an object of random size and color somewhere in one cell."""
    size = int(rng.choice(OBJECT_SIZES))
    left, top = (int(n) for n in rng.integers(0, CELL - size + 1, size=2))
    color = list(COLORS)[rng.integers(len(COLORS))]
    return draw(pixels, shape, color, col * CELL + left, row * CELL + top, size)


def make_scene(rng: np.random.Generator, rows: int, cols: int, n_objects: int) -> Scene:
    """A picture of rows x cols cells with `n_objects` (at most 16) objects of distinct shapes, one a cell."""
    pixels = noise(rng, rows * CELL, cols * CELL)
    cells = rng.choice(rows * cols, size=n_objects, replace=False)
    shapes = rng.choice(len(SHAPES), size=n_objects, replace=False)
    objects = []
    for cell, shape in zip(cells, shapes, strict=True):
        objects.append(place(rng, pixels, SHAPES[shape], int(cell // cols), int(cell % cols)))
    return Scene(pixels, tuple(objects))
