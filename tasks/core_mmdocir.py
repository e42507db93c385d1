"""MMDocIR: lines of `MMDocIR_annotations.jsonl`, one a document, as samples, one a question.

A document is shown as the pages of its PDF file in `documents/`: the lines count pages as the file does, and give boxes
in points of its pages. (The images of `MMDocIR_pages.parquet` are of other sizes.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pypdfium2

from core_bench.bundled.words import COLORS
from core_bench.errors import SampleError
from core_bench.instructions import ONE_WORD
from core_bench.media import PAGE_DPI
from core_bench.metrics import known_answer
from core_bench.schema import Box, Media, Region

_POINTS_PER_INCH = 72


def questions(docs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a question: its own fields, those of its document, and an `id`. A line without questions stays a row,
    which then fails."""
    rows: list[dict[str, Any]] = []
    for doc in docs:
        shared = {key: value for key, value in doc.items() if key != "questions"}
        asked = doc.get("questions")
        if not isinstance(asked, list) or not all(isinstance(question, dict) for question in asked):
            rows.append({**doc, "id": f"{doc.get('doc_name')}-0"})
            continue
        rows += [
            {**shared, **question, "id": f"{doc.get('doc_name')}-{number}"}
            for number, question in enumerate(asked, start=1)
        ]
    return rows


def media(doc: Mapping[str, Any]) -> list[Media]:
    """All pages, in order; `page_indices` are the first and the last row of the document in the table of pages."""
    first, last = doc["page_indices"]
    path = f"documents/{doc['doc_name']}"
    return [Media(kind="page", path=path, page=page) for page in range(last - first + 1)]


def evidence(doc: Mapping[str, Any], base: Path) -> list[Region]:
    """The boxes of `layout_mapping` in pixels of the rendered pages; none where one of them has no area on its page.

    Of a box that reaches over the edge of its page, the part on the page counts.
    """
    path = base / "documents" / doc["doc_name"]
    found = []
    for layout in doc["layout_mapping"]:
        box = _in_pixels(layout["bbox"], layout["page_size"], _rendered_size(path, layout["page"]))
        if box is None:
            return []
        found.append(Region(medium=layout["page"], box=box))
    return found


def _in_pixels(bbox: Sequence[float], page_size: Sequence[float], rendered: tuple[int, int]) -> Box | None:
    (x0, y0, x1, y1), (width, height) = bbox, page_size
    if min(x1, width) <= max(x0, 0) or min(y1, height) <= max(y0, 0):
        return None
    across, down = rendered[0] / width, rendered[1] / height
    return (x0 * across, y0 * down, x1 * across, y1 * down)


def _rendered_size(path: Path, page: int) -> tuple[int, int]:
    """Width and height in pixels of a page as it is shown."""
    try:
        with pypdfium2.PdfDocument(path) as document:
            if not 0 <= page < len(document):
                raise SampleError(f"{path}: evidence on page {page}, the document has {len(document)} pages (0-based)")
            width, height = document.get_page_size(page)
    except (pypdfium2.PdfiumError, OSError) as error:
        raise SampleError(f"{path}: not a readable PDF ({error})") from error
    return math.ceil(width * PAGE_DPI / _POINTS_PER_INCH), math.ceil(height * PAGE_DPI / _POINTS_PER_INCH)


def prompt(doc: Mapping[str, Any]) -> str:
    return f"{doc['Q']}\n{ONE_WORD}"


def color_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Whether the color that the answer names is the figure's; an answer that names none is unparsed."""
    value, unparsed = known_answer(results[0], doc["A"], tuple(COLORS))
    return {"accuracy": value, "unparsed": float(unparsed)}
