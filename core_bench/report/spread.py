"""Figures: how few heads hold the mass, and in which layers it lies, to compare tasks, sizes and families."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from core_bench.heads import k_for
from core_bench.report.figure import (
    COLOURS,
    DASHES,
    GREY,
    MARKS,
    Cell,
    Figure,
    Table,
    bounds,
    panels,
    short_task,
    whiskers,
    with_interval,
)
from core_bench.report.heads import POOLED, Spread, TaskHeads, spread_of
from core_bench.sparsity import lorenz
from core_bench.stats import Floats

SHARES = ("5%", "10%")
ALL = "all checkpoints"
COLUMNS = 2


@dataclass(frozen=True)
class Line:
    """One head table in a panel, under its name there."""

    panel: str
    name: str
    one: TaskHeads
    spread: Spread


def lines_of(checkpoints: Sequence[tuple[str, Sequence[TaskHeads]]]) -> list[Line]:
    """A panel a checkpoint with a line a task; of several checkpoints one more, with the last table of each."""
    found = []
    for label, tasks in checkpoints:
        for one in tasks:
            spread = spread_of(one, {share: k_for(share, one.table.ram.size) for share in SHARES})
            if spread is not None:
                found.append(Line(label, f"{short_task(one.task)}, n {one.table.n}", one, spread))
    last = {line.panel: line for line in found}
    if len(last) > 1:
        found += [Line(ALL, line.panel, line.one, line.spread) for line in last.values()]
    return found


def sparsity(lines: Sequence[Line]) -> Figure:
    """Lorenz-type curves of RAM, and of what is left above regions without evidence."""
    return Figure(
        name="sparsity",
        title="Sparsity: how few heads hold the mass",
        caption=(
            "Share of the summed RAM that the leading heads hold, against their share of all heads: the further above "
            "the dashed line, the sparser. Gini: 0 for even, near 1 for one head. Right, the same for sink-corrected "
            "RAM, heads below zero counted as zero. Intervals: bootstrap over pictures, videos or documents."
        ),
        table=Table(
            ("checkpoint", "task", "rank", "share_of_heads", "share_of_ram", "share_of_sink_corrected"), _curves(lines)
        ),
        draw=lambda: _draw_sparsity(lines),
        shown=Table(
            ("checkpoint", "task", "heads", "Gini", "Gini, sink-corrected", "heads with half of RAM", "RAM in top 5%",
             "RAM in top 10%"),
            [_sparsity_row(line) for line in lines if line.panel != ALL],
        ),
    )  # fmt: skip


def depth(lines: Sequence[Line]) -> Figure:
    """Share of RAM by depth, with its centre and spread."""
    return Figure(
        name="layers",
        title="Concentration by layer",
        caption=(
            "Share of the summed RAM in each layer, against depth (0: input of the first layer, 1: output of the last) "
            "times the number of layers, so that models compare: 1 is an even share. Mark above: mean depth, its bar "
            "the standard deviation of depth, 0.29 if even. Intervals: bootstrap over pictures, videos or documents."
        ),
        table=Table(
            ("checkpoint", "task", "layer", "depth", "share_of_ram", "low", "high"),
            [
                (
                    line.panel, line.one.task, layer, (layer + 0.5) / len(line.spread.layer_share), float(share),
                    *bounds(line.spread.layer_ci[layer]),
                )
                for line in lines
                if line.panel != ALL
                for layer, share in enumerate(line.spread.layer_share)
            ],
        ),
        draw=lambda: _draw_depth(lines),
        shown=Table(
            ("checkpoint", "task", "layers", "mean depth", "standard deviation of depth"),
            [
                (
                    line.panel, line.name, len(line.spread.layer_share),
                    with_interval(line.spread.centroid, line.spread.centroid_ci),
                    with_interval(line.spread.depth_sd, line.spread.depth_sd_ci),
                )
                for line in lines
                if line.panel != ALL
            ],
        ),
    )  # fmt: skip


def _gains(line: Line) -> Floats:
    gains: Floats = np.clip(np.nan_to_num(line.one.table.sink_corrected), 0, None)
    return gains


def _curves(lines: Sequence[Line]) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for line in lines:
        if line.panel == ALL:
            continue
        heads, held = lorenz(line.one.table.ram)
        gains = _gains(line)
        corrected = lorenz(gains)[1].tolist() if gains.sum() > 0 else [None] * len(held)
        rows += [
            (line.panel, line.one.task, rank, float(heads[rank]), float(held[rank]), corrected[rank])
            for rank in range(len(held))
        ]
    return rows


def _sparsity_row(line: Line) -> tuple[Cell, ...]:
    spread, size = line.spread, line.one.table.ram.size
    tops = [f"{spread.top[share]:.0%} ({k_for(share, size)} heads)" for share in SHARES]
    corrected = with_interval(spread.corrected_gini, spread.corrected_ci)
    gini = with_interval(spread.gini, spread.gini_ci)
    return line.panel, line.name, size, gini, corrected, f"{spread.holding} ({spread.holding / size:.0%})", *tops


def _by_panel(lines: Sequence[Line]) -> dict[str, list[Line]]:
    names = dict.fromkeys(line.panel for line in lines)
    return {name: [line for line in lines if line.panel == name] for name in names}


def _draw_sparsity(lines: Sequence[Line]) -> Drawing:
    by_panel = _by_panel(lines)
    drawing, grid = panels(len(by_panel), 2, 4.8, 5.0)
    for (name, own), axes in zip(by_panel.items(), grid, strict=True):
        for axis, what in zip(axes, ("RAM", "sink-corrected RAM"), strict=True):
            axis.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, label="even over heads")
            for n, line in enumerate(own):
                mass = line.one.table.ram if what == "RAM" else _gains(line)
                if mass.sum() > 0:
                    gini = line.spread.gini if what == "RAM" else line.spread.corrected_gini
                    ci = line.spread.gini_ci if what == "RAM" else line.spread.corrected_ci
                    label = f"{line.name}: Gini {with_interval(gini, ci)}"
                    axis.plot(*lorenz(mass), color=_colour(n), linestyle=_dash(n), label=label)
            axis.set_title(f"{name}: {what}")
            axis.set_xlabel("share of heads, leading ones first")
            axis.set_ylabel(f"share of {what}")
            axis.set_xlim(0, 1)
            axis.set_ylim(0, 1.01)
            axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14))
    return drawing


def _draw_depth(lines: Sequence[Line]) -> Drawing:
    by_panel = _by_panel(lines)
    columns = min(COLUMNS, len(by_panel))
    drawing, grid = panels(-(-len(by_panel) // columns), columns, 6.2, 4.6)
    flat = [axis for axes in grid for axis in axes]
    for axis, (name, own) in zip(flat, by_panel.items(), strict=False):
        _depth_panel(axis, own)
        axis.set_title(name)
    for axis in flat[len(by_panel) :]:
        axis.remove()
    return drawing


def _depth_panel(axis: Axes, own: Sequence[Line]) -> None:
    peak = max(float(line.spread.layer_share.max()) * len(line.spread.layer_share) for line in own)
    axis.axhline(1, color=GREY, linestyle="--", linewidth=1)
    for n, line in enumerate(own):
        share, n_layers = line.spread.layer_share, len(line.spread.layer_share)
        at = (np.arange(n_layers) + 0.5) / n_layers
        bold = 2.2 if line.one.task == POOLED else 1.4
        axis.plot(
            at, share * n_layers, color=_colour(n), marker=_mark(n), linestyle=_dash(n), linewidth=bold, markersize=4,
            label=line.name,
        )  # fmt: skip
        for x, value, ci in zip(at, share, line.spread.layer_ci, strict=True):
            low, high = whiskers(value * n_layers, None if ci is None else [bound * n_layers for bound in ci])
            axis.errorbar(x, value * n_layers, yerr=[low, high], color=_colour(n))
        height = peak * (1.12 + 0.07 * (len(own) - 1 - n))
        centre = line.spread.centroid
        axis.errorbar(
            centre, height, xerr=line.spread.depth_sd, color=_colour(n), marker=_mark(n), capsize=3, linewidth=1.2
        )
    above = peak * (1.16 + 0.07 * len(own))
    axis.text(0.99, above, "marks with bars: mean depth ± standard deviation", ha="right", fontsize=8.5, color=GREY)
    axis.set_xlim(0, 1)
    axis.set_ylim(0, peak * (1.25 + 0.07 * len(own)))
    axis.set_xlabel("depth, share of all layers")
    axis.set_ylabel("share of RAM x layers (1: even)")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)


def _colour(n: int) -> str:
    return COLOURS[n % len(COLOURS)]


def _dash(n: int) -> object:
    return DASHES[n % len(DASHES)]


def _mark(n: int) -> str:
    return MARKS[n % len(MARKS)]
