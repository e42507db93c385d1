"""Accuracy against prefill speed-up as an inline SVG: the same points give the same bytes, and nothing is loaded."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from core_bench.board.details import Point

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 44
# Okabe and Ito's palette without black and yellow: told apart with any colour vision, in light and in dark.
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
SHAPES = ("circle", "square", "diamond", "triangle")


def scatter(points: Sequence[Point], label: str) -> str:
    """One mark a point with its intervals: color by model, shape by task; each says in words what it is."""
    fastest = max([2.0, *(point.speedup for point in points)])
    most = math.ceil(fastest * 2 + 0.5) / 2
    models, tasks = (sorted({getattr(point, name) for point in points}) for name in ("model", "task"))
    step = 0.5 if most <= 4 else 1.0 if most <= 10 else float(math.ceil(most / 10))
    lines = [f'<line class="axis" x1="{LEFT}" y1="{_y(0)}" x2="{WIDTH - RIGHT}" y2="{_y(0)}"/>']
    for share in range(0, 101, 20):
        y = _y(share / 100)
        lines.append(f'<line class="grid" x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:g}" text-anchor="end">{share}%</text>')
    for tick in range(int(most / step) + 1):
        x = _x(tick * step, most)
        lines.append(f'<text x="{x}" y="{_y(0) + 18:g}" text-anchor="middle">{tick * step:g}x</text>')
    lines.append(f'<line class="dense" x1="{_x(1, most)}" y1="{TOP}" x2="{_x(1, most)}" y2="{_y(0)}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    lines.append(f'<text x="{middle:g}" y="{HEIGHT - 6}" text-anchor="middle">prefill speed-up over dense</text>')
    lines += [_mark(point, most, models, tasks) for point in points]
    inner = "\n".join(lines)
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(label)}">\n{inner}\n</svg>'
    return f'<figure class="plot">\n{svg}\n<figcaption>{_legend(models, tasks)}</figcaption>\n</figure>'


def _x(speedup: float, most: float) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * min(max(speedup, 0.0), most) / most, 1)


def _y(share: float) -> float:
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(max(share, 0.0), 1.0), 1)


def _mark(point: Point, most: float, models: list[str], tasks: list[str]) -> str:
    x, y = _x(point.speedup, most), _y(point.accuracy)
    color = COLORS[models.index(point.model) % len(COLORS)]
    dense = "" if point.dense is None else f", dense {100 * point.dense:.1f}%"
    about = f"{point.model}, {point.task}, {point.arm}: {100 * point.accuracy:.1f}%{dense}, {point.speedup:.2f}x"
    bars = ""
    if point.accuracy_ci is not None:
        low, high = (_y(value) for value in point.accuracy_ci)
        bars += f'<line x1="{x}" y1="{low}" x2="{x}" y2="{high}"/>'
    if point.speedup_ci is not None:
        low, high = (_x(value, most) for value in point.speedup_ci)
        bars += f'<line x1="{low}" y1="{y}" x2="{high}" y2="{y}"/>'
    data = "".join(
        f' data-{name}="{html.escape(value)}"'
        for name, value in (("model", point.model), ("task", point.task), ("device", point.device))
    )
    shape = _shape(SHAPES[tasks.index(point.task) % len(SHAPES)], x, y)
    return (
        f'<a class="point"{data} href="#run-{html.escape(point.run_id)}" style="color:{color}">'
        f"<title>{html.escape(about)}</title>{bars}{shape}</a>"
    )


def _shape(shape: str, x: float, y: float) -> str:
    if shape == "circle":
        return f'<circle cx="{x}" cy="{y}" r="5"/>'
    corners = {
        "square": ((-5, -5), (5, -5), (5, 5), (-5, 5)),
        "diamond": ((0, -7), (7, 0), (0, 7), (-7, 0)),
        "triangle": ((0, -6), (6, 5), (-6, 5)),
    }[shape]
    return f'<polygon points="{" ".join(f"{x + dx:g},{y + dy:g}" for dx, dy in corners)}"/>'


def _legend(models: list[str], tasks: list[str]) -> str:
    parts = [
        f'<span><b style="color:{COLORS[at % len(COLORS)]}">&#9632;</b> {html.escape(model)}</span>'
        for at, model in enumerate(models)
    ]
    for at, task in enumerate(tasks):
        sign = _shape(SHAPES[at % len(SHAPES)], 8, 8)
        parts.append(
            f'<span><svg class="sign" viewBox="0 0 16 16" aria-hidden="true">{sign}</svg> {html.escape(task)}</span>'
        )
    return " ".join(parts)
