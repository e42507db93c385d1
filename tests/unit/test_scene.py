"""Generated pictures against what was really painted: the background drawn alone is the oracle."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_bench.bundled.scene import CELL, OBJECT_SIZES, Scene, draw, make_scene, noise, sprite
from core_bench.bundled.words import COLORS, SHAPES

PALETTE = {ink: name for name, ink in COLORS.items()}


def extent(mask: np.ndarray) -> tuple[float, float, float, float]:
    """The tight half-open box of the true pixels."""
    y, x = np.nonzero(mask)
    return float(x.min()), float(y.min()), float(x.max() + 1), float(y.max() + 1)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(4, 12),
    cols=st.integers(4, 12),
    n_objects=st.integers(0, 16),
)
def test_boxes_are_exactly_what_was_painted(seed: int, rows: int, cols: int, n_objects: int) -> None:
    scene = make_scene(np.random.default_rng(seed), rows, cols, n_objects)
    background = noise(np.random.default_rng(seed), rows * CELL, cols * CELL)
    assert scene.pixels.dtype == np.uint8
    assert scene.pixels.shape == (rows * CELL, cols * CELL, 3)
    painted = (scene.pixels != background).any(axis=2)
    cells = []
    for thing in scene.objects:
        x0, y0, x1, y1 = (int(edge) for edge in thing.box)
        row, col = y0 // CELL, x0 // CELL
        assert ((y1 - 1) // CELL, (x1 - 1) // CELL) == (row, col), "an object lies in one cell"
        cells.append((row, col))
        mine = np.zeros_like(painted)
        mine[row * CELL : (row + 1) * CELL, col * CELL : (col + 1) * CELL] = True
        assert extent(painted & mine) == thing.box
        inked = Counter(PALETTE.get(tuple(pixel)) for pixel in scene.pixels[mine & painted].tolist())
        del inked[None]  # mixed edges
        assert inked.most_common(1)[0][0] == thing.color
        painted &= ~mine
    assert not painted.any(), "nothing is painted outside the boxes"
    assert len(set(cells)) == len(scene.objects) == n_objects
    assert len({thing.shape for thing in scene.objects}) == n_objects


def test_the_seed_alone_decides_the_bytes() -> None:
    def scene(seed: int) -> Scene:
        return make_scene(np.random.default_rng(seed), 6, 5, 12)

    first, others = scene(7), scene(8)
    sprite.cache_clear()
    np.random.seed(99)  # the global state must not matter
    again = scene(7)
    assert first.pixels.tobytes() == again.pixels.tobytes()
    assert first.objects == again.objects
    assert first.pixels.tobytes() != others.pixels.tobytes()
    assert first.objects != others.objects


@pytest.mark.parametrize("size", [min(OBJECT_SIZES), max(OBJECT_SIZES)])
def test_all_shapes_are_told_apart(size: int) -> None:
    assert len(SHAPES) == 16
    drawn = {shape: sprite(shape, size) for shape in SHAPES}
    for shape, cover in drawn.items():
        assert cover.shape == (size, size), shape
        assert cover.dtype == np.float32
        assert 0 <= cover.min() <= cover.max() == 1, shape
        assert cover.mean() > 0.15, f"a {shape} has enough ink to be seen"
    for one, two in combinations(SHAPES, 2):
        difference = float(np.abs(drawn[one] - drawn[two]).mean())
        assert difference > 0.04, f"{one} and {two} differ in {difference:.1%} of the square"


def test_colors_stand_out_from_the_noise_and_from_each_other() -> None:
    background = noise(np.random.default_rng(0), 64, 64)
    low, high = int(background.min()), int(background.max())
    for name, ink in COLORS.items():
        assert max(max(low - value, value - high) for value in ink) > 50, name
    for one, two in combinations(COLORS.values(), 2):
        assert max(abs(a - b) for a, b in zip(one, two, strict=True)) > 50


def test_noise_fills_any_size_and_is_grey() -> None:
    grain = noise(np.random.default_rng(3), 37, 50)
    assert grain.shape == (37, 50, 3)
    assert (grain == grain[..., :1]).all()
    assert len(np.unique(grain)) > 10


def test_drawing_changes_only_its_own_square() -> None:
    pixels = noise(np.random.default_rng(1), 64, 64)
    before = pixels.copy()
    thing = draw(pixels, "ring", "white", 10, 20, 24)
    changed = (pixels != before).any(axis=2)
    assert extent(changed) == thing.box
    assert not changed[:20].any()
    assert not changed[:, 34:].any()
    assert not changed[32, 22], "the middle of a ring is empty"
