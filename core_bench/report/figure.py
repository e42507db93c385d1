"""What a figure of the report is, and how all of them look: readable, colour-blind-safe, the same bytes every time."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from PIL import Image

# Okabe and Ito's colours, made for colour-blind readers, without their yellow; marks and dashes differ too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 2)))
GREY = "#6b6b6b"
DPI = 130
STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "axes.labelsize": 9.5,
    "figure.constrained_layout.use": True,
    "font.size": 9.5,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.framealpha": 0.85,
    "lines.linewidth": 1.6,
    "svg.fonttype": "path",
    "svg.hashsalt": "core_bench",
    "text.parse_math": False,
}

Cell = str | int | float | None
Interval = Sequence[float] | None


@dataclass(frozen=True)
class Table:
    """Numbers: None is an empty cell."""

    header: tuple[str, ...]
    rows: list[tuple[Cell, ...]]

    def csv(self) -> str:
        """Comma-separated, floats to 6 significant digits: further ones differ between machines."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows([_cell(cell) for cell in row] for row in self.rows)
        return text.getvalue()


@dataclass(frozen=True)
class Figure:
    """A figure: `name` of its files, `table` with the numbers behind it, `shown`: a few of them for the page, `notes`:
    what a reader must know, `draw`: makes it, under `styled`."""

    name: str
    title: str
    caption: str
    table: Table
    draw: Callable[[], Drawing]
    shown: Table | None = None
    notes: list[str] = field(default_factory=list)


def rendered(figure: Figure) -> dict[str, bytes]:
    """Its PNG and SVG, by ending."""
    with styled():
        drawing = figure.draw()
        images = {}
        for ending, stamp in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            data = io.BytesIO()
            drawing.savefig(data, format=ending, dpi=DPI, metadata=stamp, facecolor="white")
            images[ending] = data.getvalue()
    return {**images, "png": _small(images["png"])}


def _small(png: bytes) -> bytes:
    """The same picture in 256 colours, a quarter of the size, with none that is rare lost (a colour bar's are)."""
    few = (
        Image.open(io.BytesIO(png))
        .convert("RGB")
        .quantize(256, Image.Quantize.MAXCOVERAGE, 2, dither=Image.Dither.NONE)
    )
    data = io.BytesIO()
    few.save(data, "png", optimize=True)
    return data.getvalue()


@contextmanager
def styled() -> Iterator[None]:
    """matplotlib's defaults and ours, whatever settings the user has; theirs come back on exit."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def panels(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Drawing, list[list[Axes]]]:
    """A drawing of rows x columns panels of this size in inches, each."""
    drawing = Drawing(figsize=(width * columns, height * rows))
    axes = drawing.subplots(rows, columns, squeeze=False, **options)
    return drawing, axes.tolist()


def whiskers(value: float, interval: Interval) -> tuple[list[float], list[float]]:
    """Lengths of an error bar down and up, as matplotlib takes them; NaN, which draws nothing, without an interval."""
    if interval is None:
        return [math.nan], [math.nan]
    return [max(0.0, value - interval[0])], [max(0.0, interval[1] - value)]


def bounds(interval: Interval) -> tuple[float | None, float | None]:
    """As two cells."""
    return (None, None) if interval is None else (interval[0], interval[1])


def with_interval(value: float | None, interval: Interval, digits: int = 2) -> str:
    """0.62 [0.58, 0.66]; a dash without a value."""
    if value is None:
        return "-"
    ends = "" if interval is None else f" [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"
    return f"{value:.{digits}f}{ends}"


def short_task(name: str) -> str:
    """Without what all names of the suite's tasks have in common."""
    return name.removeprefix("core_")


def _cell(cell: Cell) -> Cell:
    if isinstance(cell, float):
        return f"{cell:.6g}" if math.isfinite(cell) else ""
    return cell
