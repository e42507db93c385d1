"""Drawing a sample: pictures with evidence boxes, cells and heat maps, captions above, all on one sheet."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from core_bench.schema import Box
from core_bench.show_panels import Panel, cell_box

FloatArray = NDArray[np.float64]
Rectangle = tuple[int, int, int, int]

BOX, OMEGA, INK, PAPER = (255, 40, 90), (0, 200, 220), (20, 20, 20), (255, 255, 255)
_HEAT_AT = (0.0, 0.3, 0.6, 0.85, 1.0)
_HEAT_RGB = ((10, 5, 40), (95, 15, 120), (215, 55, 70), (250, 155, 30), (255, 250, 190))
_GAP, _MARGIN, _MIN_WIDTH = 8, 16, 900
_TEXT, _SMALL = 16, 13
_LINE = 70  # how much darker or brighter a line between cells is than the picture under it
_LEAST_CELL = 5  # screen pixels of a cell below which its grid lines would hide the picture


@dataclass(frozen=True)
class HeatColumn:
    """One head's column of the sheet: its name, its mass on every token of the prompt [tokens], and the mass at the
    bright end of its colors."""

    title: str
    mass_M: FloatArray
    top: float


def draw_sheet(caption: Sequence[str], panels: Sequence[Panel], columns: Sequence[HeatColumn]) -> Image.Image:
    """One RGB picture: the caption, then for every panel its evidence and one heat map a column."""
    side = 1024 if len(panels) == 1 else 640 if len(panels) <= 3 else 400
    strips = [_strip(panel, columns, side) for panel in panels]
    across = 2 if len(strips) > 3 and len(columns) <= 2 else 1
    lines = [strips[at : at + across] for at in range(0, len(strips), across)]
    width = max(_MIN_WIDTH, *(sum(s.width for s in line) + 3 * _GAP * (len(line) - 1) for line in lines))
    header = _stacked(_text_block(caption, width), _legend(width))
    height = header.height + sum(max(s.height for s in line) + 2 * _GAP for line in lines)
    sheet = Image.new("RGB", (width + 2 * _MARGIN, height + 2 * _MARGIN), PAPER)
    sheet.paste(header, (_MARGIN, _MARGIN))
    y = _MARGIN + header.height + 2 * _GAP
    for line in lines:
        x = _MARGIN
        for strip in line:
            sheet.paste(strip, (x, y))
            x += strip.width + 3 * _GAP
        y += max(s.height for s in line) + 2 * _GAP
    return sheet


def _legend(width: int) -> Image.Image:
    """What the colors mean."""
    text = _text_block(
        ["Red: evidence. Cyan: its tokens. Heat, from no mass to the head's brightest cell:"], width, _SMALL
    )
    bar = heat_colors(np.tile(np.linspace(0, 1, 256), (10, 1)))
    legend = Image.new("RGB", (width, text.height + 16), PAPER)
    legend.paste(text, (0, 0))
    legend.paste(Image.fromarray(bar), (0, text.height + 2))
    return legend


def _stacked(*parts: Image.Image) -> Image.Image:
    stack = Image.new("RGB", (max(part.width for part in parts), sum(part.height for part in parts)), PAPER)
    y = 0
    for part in parts:
        stack.paste(part, (0, y))
        y += part.height
    return stack


def scale_of(size: tuple[int, int], side: int) -> float:
    """Screen pixels a picture pixel: 1 where the longer side fits `side`, a fraction where it does not, a whole
    number where the picture is small, so that it fills at most two thirds of `side`."""
    longer = max(size)
    return side / longer if longer > side else float(max(1, side * 2 // 3 // longer))


def cells_on_screen(panel: Panel, scale: float) -> dict[int, Rectangle]:
    """Token position -> (x0, y0, x1, y1), half-open, in screen pixels, cut to the picture. Cells that lie in padding,
    or that are less than a screen pixel, are left out."""
    width, height = _scaled(panel.picture.size, scale)
    found: dict[int, Rectangle] = {}
    for block in panel.blocks:
        for index, position in enumerate(block.positions()):
            x0, y0, x1, y1 = (round(edge * scale) for edge in cell_box(block, *divmod(index, block.cols)))
            x0, y0, x1, y1 = max(x0, 0), max(y0, 0), min(x1, width), min(y1, height)
            if x0 < x1 and y0 < y1:
                found[position] = (x0, y0, x1, y1)
    return found


def heat_colors(share: FloatArray) -> NDArray[np.uint8]:
    """RGB [..., 3] for values in [0, 1], dark to bright."""
    channels = [np.interp(share, _HEAT_AT, [color[c] for color in _HEAT_RGB]) for c in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def _scaled(size: tuple[int, int], scale: float) -> tuple[int, int]:
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _strip(panel: Panel, columns: Sequence[HeatColumn], side: int) -> Image.Image:
    """One panel: a line of text, then the evidence and one heat map a column, side by side."""
    scale = scale_of(panel.picture.size, side)
    size = _scaled(panel.picture.size, scale)
    enlarged = scale >= 1
    picture = panel.picture.resize(size, Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS)
    cells = cells_on_screen(panel, scale)
    views = [("evidence", _evidence_view(picture, panel, cells, scale))]
    views += [(column.title, _heat_view(picture, panel, cells, scale, column)) for column in columns]
    wide = max(size[0], 130)
    title_height, label = _SMALL + 6, f"{panel.label}: {panel.picture.width} x {panel.picture.height}{_said(scale)}"
    width = len(views) * (wide + _GAP) - _GAP
    head = _text_block([label], width, _SMALL)
    strip = Image.new("RGB", (width, head.height + title_height + size[1]), PAPER)
    strip.paste(head, (0, 0))
    draw = ImageDraw.Draw(strip)
    for number, (title, view) in enumerate(views):
        x = number * (wide + _GAP)
        draw.text((x, head.height), title, fill=INK, font=ImageFont.load_default(_SMALL))
        strip.paste(view, (x, head.height + title_height))
    return strip


def _said(scale: float) -> str:
    if scale == 1:
        return ""
    return f", drawn x{scale:.0f}" if scale > 1 else f", drawn at {scale:.0%}"


def _evidence_view(picture: Image.Image, panel: Panel, cells: dict[int, Rectangle], scale: float) -> Image.Image:
    """The picture in its colors under thin lines between cells, Omega's cells tinted and framed, the evidence boxes."""
    pixels = np.asarray(picture, dtype=np.float64).copy()
    width, height = picture.size
    line_YX, omega_YX = np.zeros((height, width), dtype=bool), np.zeros((height, width), dtype=bool)
    for position, (x0, y0, x1, y1) in cells.items():
        omega_YX[y0:y1, x0:x1] |= position in panel.omega
        line_YX[[y0, min(y1, height - 1)], x0:x1] = True
        line_YX[y0:y1, [x0, min(x1, width - 1)]] = True
    line_YX &= all(x1 - x0 >= _LEAST_CELL and y1 - y0 >= _LEAST_CELL for x0, y0, x1, y1 in _inner(cells))
    bright_YX = pixels.mean(axis=2) >= 128
    pixels[line_YX & bright_YX] -= _LINE  # seen on any picture, and hides none of it
    pixels[line_YX & ~bright_YX] += _LINE
    for where_YX, weight in (
        (omega_YX & ~line_YX, 0.15),
        (omega_YX & line_YX, 0.5),
        (omega_YX & ~_inside(omega_YX, 2), 1.0),
    ):
        pixels[where_YX] = (1 - weight) * pixels[where_YX].clip(0, 255) + weight * np.array(OMEGA)
    view = Image.fromarray(pixels.clip(0, 255).round().astype(np.uint8))
    _boxes(ImageDraw.Draw(view), panel, scale, view.size)
    return view


def _inside(mask_YX: NDArray[np.bool_], distance: int) -> NDArray[np.bool_]:
    """Pixels of the mask that have none outside it, or beyond the picture, within `distance` on either axis."""
    wide = np.pad(mask_YX, distance)
    for axis in (0, 1):
        wide = np.logical_and.reduce([np.roll(wide, step, axis) for step in range(-distance, distance + 1)])
    inside: NDArray[np.bool_] = wide[distance:-distance, distance:-distance]
    return inside


def _heat_view(
    picture: Image.Image, panel: Panel, cells: dict[int, Rectangle], scale: float, column: HeatColumn
) -> Image.Image:
    """The picture in grey under one head's mass, each cell one color; the evidence boxes."""
    pixels = np.asarray(picture.convert("L").convert("RGB"), dtype=np.float64).copy()
    for position, (x0, y0, x1, y1) in cells.items():
        share = float(column.mass_M[position]) / column.top if column.top > 0 else 0.0
        weight = 0.5 + 0.25 * share
        color = heat_colors(np.array(share)).astype(np.float64)
        pixels[y0:y1, x0:x1] = (1 - weight) * pixels[y0:y1, x0:x1] + weight * color
    view = Image.fromarray(pixels.round().astype(np.uint8))
    _boxes(ImageDraw.Draw(view), panel, scale, view.size)
    return view


def _inner(cells: dict[int, Rectangle]) -> list[Rectangle]:
    """A cell of the usual size for each: those cut at the edge of the picture do not count."""
    if not cells:
        return []
    widths, heights = sorted(c[2] - c[0] for c in cells.values()), sorted(c[3] - c[1] for c in cells.values())
    return [(0, 0, widths[len(widths) // 2], heights[len(heights) // 2])]


def _boxes(draw: ImageDraw.ImageDraw, panel: Panel, scale: float, size: tuple[int, int]) -> None:
    for boxes, width in ((panel.others, 1), (panel.boxes, 3 if min(size) >= 200 else 2)):
        for box in boxes:
            _outline(draw, _on_screen(box, scale, size), BOX, width)


def _on_screen(box: Box, scale: float, size: tuple[int, int]) -> Rectangle:
    """A box in screen pixels, cut to the picture, at least one pixel each way."""
    x0, y0 = (min(max(round(edge * scale), 0), limit - 1) for edge, limit in zip(box[:2], size, strict=True))
    x1, y1 = (min(max(round(edge * scale), 1), limit) for edge, limit in zip(box[2:], size, strict=True))
    return x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)


def _outline(draw: ImageDraw.ImageDraw, rectangle: Rectangle, color: tuple[int, int, int], width: int) -> None:
    x0, y0, x1, y1 = rectangle
    draw.rectangle((x0, y0, x1 - 1, y1 - 1), outline=color, width=width)


def _text_block(lines: Sequence[str], width: int, size: int = _TEXT) -> Image.Image:
    """Lines of text, broken at spaces (a longer word anywhere) to fit `width`."""
    font = ImageFont.load_default(size)
    broken = [piece for line in lines for piece in wrapped(line, lambda text: font.getlength(text) <= width)]
    step = size + 5
    block = Image.new("RGB", (width, step * len(broken)), PAPER)
    draw = ImageDraw.Draw(block)
    for number, piece in enumerate(broken):
        draw.text((0, number * step), piece, fill=INK, font=font)
    return block


def wrapped(line: str, fits: Callable[[str], bool]) -> list[str]:
    """`line` in pieces that `fits` accepts, broken at spaces, or inside a word that is too long alone; white space is
    evened out. A single character always counts as fitting."""
    pieces: list[str] = []
    current = ""
    for word in line.split():
        if current and not fits(f"{current} {word}"):
            pieces.append(current)
            current = ""
        current = f"{current} {word}" if current else word
        while len(current) > 1 and not fits(current):
            # The shortest start that does not fit, by bisection: measuring text is slow.
            cut = max(1, bisect.bisect_left(range(1, len(current) + 1), True, key=lambda n: not fits(current[:n])))
            pieces.append(current[:cut])
            current = current[cut:]
    return [*pieces, current] if current or not pieces else pieces
