"""Figure: RAM of every head by layer, and beside it what is left above regions without evidence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure as Drawing

from core_bench.report.figure import Figure, Table, panels, short_task
from core_bench.report.heads import POOLED, Q, TaskHeads
from core_bench.stats import Floats

HEADER = ("checkpoint", "task", "layer", "head", "ram", "stderr", "chance", "sink_corrected", "samples", "clusters",
          "q_above_chance_by", "q_above_chance_bh", "q_above_placebo_by")  # fmt: skip
RINGS_UP_TO = 20  # layers or heads; dots beyond


def head_map(label: str, name: str, tasks: Sequence[TaskHeads]) -> Figure:
    """The map of one checkpoint, a row of panels a task."""
    return Figure(
        name=name,
        title=f"RAM by layer and head: {label}",
        caption=(
            "Left: RAM, the share of a head's attention that the question puts on the evidence; the black line in the "
            "colour bar is chance, what evenly spread attention would put there. Right: RAM minus the mean RAM of "
            "regions of the same shape elsewhere, which an attention sink raises as well. "
            f"Ring or dot: above chance (left) or above those regions (right), Benjamini-Yekutieli at {Q:.0%}; in the "
            "last row in every task. That bound holds whatever the dependence between heads, which are tested on the "
            "same samples; Benjamini-Hochberg's, which is less strict, does not. A head can be above by very little."
        ),
        table=Table(HEADER, [row for one in tasks for row in _rows(label, one)]),
        draw=lambda: _draw(label, tasks),
        shown=Table(
            ("task", "n", "clusters", "chance", "highest RAM (layer, head)", "above chance, B-Y", "by B-H",
             "above placebo, B-Y"),
            [_summary(one) for one in tasks],
        ),
        notes=[f"{short_task(one.task)}: {one.note}" for one in tasks if one.note],
    )  # fmt: skip


def _rows(label: str, one: TaskHeads) -> list[tuple[str | int | float | None, ...]]:
    table = one.table
    grids = [table.ram, table.stderr, table.chance, table.sink_corrected]
    adjusted = [one.above_by, one.above_bh, one.placebo_by]
    return [
        (
            label, one.task, layer, head, *(float(grid[layer, head]) for grid in grids), table.n, one.clusters,
            *(None if grid is None else float(grid[layer, head]) for grid in adjusted),
        )
        for layer, head in np.ndindex(table.ram.shape)
    ]  # fmt: skip


def _summary(one: TaskHeads) -> tuple[str | int | float | None, ...]:
    (layer, head), size = one.table.top(1)[0], one.table.ram.size
    counts = [
        "-" if grid is None else f"{int((grid <= Q).sum())} of {size}"
        for grid in (one.above_by, one.above_bh, one.placebo_by)
    ]
    error = one.table.stderr[layer, head]
    ram = f"{one.table.ram[layer, head]:.3f}" + (f" ± {error:.3f}" if np.isfinite(error) else "")
    chance = f"{one.table.chance.mean():.3f}"
    return short_task(one.task), one.table.n, one.clusters, chance, f"{ram} ({layer}, {head})", *counts


def _draw(label: str, tasks: Sequence[TaskHeads]) -> Drawing:
    n_layers, n_heads = tasks[0].table.ram.shape
    height = float(np.clip(0.12 * n_layers, 1.0, 3.6)) + 0.75
    drawing, grid = panels(len(tasks), 2, 5.0, height)
    drawing.suptitle(f"{label}: {n_layers} layers x {n_heads} heads", fontsize=11)
    for axes, one in zip(grid, tasks, strict=True):
        table, chance = one.table, float(one.table.chance.mean())
        clusters = "" if one.clusters is None or one.task == POOLED else f", {one.clusters} clusters"
        raw = _panel(
            axes[0], table.ram, Normalize(0, float(max(table.ram.max(), chance))), "viridis", "white", one.above_by
        )
        axes[0].set_title(f"{short_task(one.task)}, n {table.n}{clusters}, chance {chance:.3f}", fontsize=9)
        bar = drawing.colorbar(raw, ax=axes[0], aspect=12, label="RAM")
        bar.ax.axhline(chance, color="black", linewidth=2.2)
        bar.ax.axhline(chance, color="white", linewidth=0.7)
        limit = float(np.nanmax(np.abs(table.sink_corrected), initial=1e-9))
        corrected = _panel(axes[1], table.sink_corrected, Normalize(-limit, limit), "PuOr_r", "black", one.placebo_by)
        axes[1].set_title(short_task(one.task), fontsize=9)
        drawing.colorbar(corrected, ax=axes[1], aspect=12, label="sink-corrected")
    for axis in grid[-1]:
        axis.set_xlabel("query head")
    return drawing


def _panel(
    axis: Axes, grid: Floats, norm: Normalize, colours: str, dot: str, adjusted: Floats | None
) -> ScalarMappable:
    image = axis.imshow(grid, norm=norm, cmap=colours, origin="lower", aspect="auto", interpolation="nearest")
    axis.grid(False)
    axis.set_ylabel("layer")
    axis.locator_params(integer=True)
    axis.set_facecolor("#bbbbbb")
    if adjusted is not None:
        layer, head = np.nonzero(adjusted <= Q)
        if max(grid.shape) > RINGS_UP_TO:
            axis.scatter(head, layer, s=2.5, linewidths=0, color=dot)
        else:
            for width, colour in ((2.0, "black"), (0.9, "white")):
                axis.scatter(head, layer, s=26, linewidths=width, facecolors="none", edgecolors=colour)
    return image
