"""Seeded documents: pages of running text and a panel of figures, each figure one object in its own cell.

`Page` says what stands where; the PDF writer sets its text in a PDF font, the training draws it with Pillow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from core_bench.bundled.scene import CELL, Object, noise, place
from core_bench.bundled.words import DOCUMENT_WORDS, SHAPES
from core_bench.schema import Box

FONT_PIXELS = 14  # height of a line of text at the rendered resolution
LINES = 2  # of text in a row of cells
_WIDEST = 7.6  # pixels: what a character takes on average, generously
MARGIN = 6  # pixels left and right of text


@dataclass(frozen=True)
class Line:
    """One line of text; (x, y) is its upper left corner in pixels."""

    x: int
    y: int
    text: str


@dataclass(frozen=True)
class Page:
    """`pixels`: uint8 [height, width, 3], white paper with the panel painted in and no text yet; boxes in pixels."""

    pixels: np.ndarray
    panel: Box
    objects: tuple[Object, ...]
    lines: tuple[Line, ...]

    def with_text(self) -> np.ndarray:
        """The pixels with the text drawn by Pillow."""
        pixels = self.pixels.copy()
        for line in self.lines:
            strip = _strip(line.text)[:, : pixels.shape[1] - line.x]
            pixels[line.y : line.y + strip.shape[0], line.x : line.x + strip.shape[1]] = strip[..., None]
        return pixels


def make_document(rng: np.random.Generator, pages: int, rows: int, cols: int, n_objects: int) -> tuple[Page, ...]:
    """`pages` pages of rows x cols cells that share `n_objects` (at most 16) objects of distinct shapes."""
    shapes = rng.permutation(len(SHAPES))[:n_objects]
    owners = rng.integers(pages, size=n_objects)
    return tuple(_make_page(rng, rows, cols, [SHAPES[n] for n in shapes[owners == page]]) for page in range(pages))


def _make_page(rng: np.random.Generator, rows: int, cols: int, shapes: list[str]) -> Page:
    pixels = np.full((rows * CELL, cols * CELL, 3), 255, dtype=np.uint8)
    least = min(rows - 1, max(2, -(-len(shapes) // cols)))
    height = int(rng.integers(least, max(least, rows - 2) + 1))
    top = int(rng.integers(rows - height + 1))
    pixels[top * CELL : (top + height) * CELL] = noise(rng, height * CELL, cols * CELL)
    cells = rng.choice(height * cols, size=len(shapes), replace=False)
    objects = [
        place(rng, pixels, shape, top + int(cell // cols), int(cell % cols))
        for shape, cell in zip(shapes, cells, strict=True)
    ]
    written = [row for row in range(rows) if not top <= row < top + height]
    lines = [line for row in written if rng.random() < 0.85 for line in _paragraph(rng, row, cols)]
    panel = (0.0, float(top * CELL), float(cols * CELL), float((top + height) * CELL))
    return Page(pixels, panel, tuple(objects), tuple(lines))


def _paragraph(rng: np.random.Generator, row: int, cols: int) -> list[Line]:
    room = int((cols * CELL - 2 * MARGIN) / _WIDEST)
    lines = []
    for number in range(LINES):
        text = ""
        while True:
            word = DOCUMENT_WORDS[rng.integers(len(DOCUMENT_WORDS))]
            if len(text) + 1 + len(word) > room:
                break
            text = f"{text} {word}".strip()
        if text:
            lines.append(Line(MARGIN, row * CELL + 1 + number * (CELL // LINES), text))
    return lines


@lru_cache(maxsize=4096)
def _strip(text: str) -> np.ndarray:
    """The text in black on white: uint8 [FONT_PIXELS, width]."""
    font = ImageFont.load_default(FONT_PIXELS - 2)
    width = int(font.getlength(text)) + 2
    picture = Image.new("L", (width, FONT_PIXELS), 255)
    ImageDraw.Draw(picture).text((0, -1), text, font=font, fill=0)
    return np.asarray(picture)
