"""report.html: all figures in one file that loads nothing, with their numbers, and what they were made from."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template

from tabulate import tabulate

from core_bench.board.rows import checkpoint, command, hardware, is_bundled
from core_bench.report.figure import Figure, Table
from core_bench.report.inputs import Inputs
from core_bench.tables import run_notes

BUNDLED = (
    "Small models that come with the suite, on generated data, are among them: they show that mechanism and "
    "measurement work, not what the study found."
)


def page(inputs: Inputs, figures: Sequence[Figure], images: Mapping[str, bytes]) -> str:
    """The whole file. `images`: the SVG of each figure, by name."""
    contents = "".join(f'<li><a href="#{figure.name}">{html.escape(figure.title)}</a></li>' for figure in figures)
    parts = [_section(figure, images[figure.name]) for figure in figures]
    bundled = f"<p>{BUNDLED}</p>" if any(map(is_bundled, inputs.records)) else ""
    template = resources.files("core_bench.report").joinpath("template.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        contents=contents, bundled=bundled, body="\n".join(parts), runs=_html(_runs(inputs), "Runs")
    )


def _section(figure: Figure, image: bytes) -> str:
    name, title, caption = figure.name, html.escape(figure.title), html.escape(figure.caption)
    source = base64.b64encode(image).decode()
    links = ", ".join(f'<a href="figures/{name}.{ending}">{ending.upper()}</a>' for ending in ("png", "svg", "csv"))
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in figure.notes)
    return "\n".join(
        [
            f'<section id="{name}">\n<h2>{title}</h2>\n<figure>',
            f'<div><img alt="{title}. {caption}" src="data:image/svg+xml;base64,{source}"></div>',
            f"<figcaption>{caption} Numbers and pictures: {links}.</figcaption>\n</figure>",
            _html(figure.shown, figure.title) if figure.shown else "",
            f"<ul>{notes}</ul>" if notes else "",
            "</section>",
        ]
    )


def _html(table: Table, label: str) -> str:
    """tabulate's "html" escapes; wide tables scroll by themselves."""
    rows = [["-" if cell is None else str(cell) for cell in row] for row in table.rows]
    inner = tabulate(rows, headers=table.header, tablefmt="html", disable_numparse=True)
    return f'<div class="wide" role="region" aria-label="{html.escape(label)}: numbers" tabindex="0">\n{inner}\n</div>'


def _runs(inputs: Inputs) -> Table:
    rows: list[tuple[str | int | float | None, ...]] = []
    for record in inputs.records:
        run, environment = record["run"], record["environment"]
        notes = "; ".join(run_notes(record)) or "-"
        where = hardware(environment)
        rows.append((run["id"], run["mode"], checkpoint(run), where, run["seed"], command(run), notes))
    for one in inputs.detections:
        if not one.runs:
            rows.append((f"head tables of {len(one.tables)} tasks", "detect", one.label, "-", "-", "-", "no samples"))
    for file in inputs.speeds:
        rows.append((file.name, "speed", file.label, str(file.environment.get("device", "-")), "-", "-", "-"))
    return Table(("run", "mode", "checkpoint", "device", "seed", "command", "notes"), rows)
