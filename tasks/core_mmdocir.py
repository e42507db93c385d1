"""MMDocIR: lines of `MMDocIR_annotations.jsonl`, one a document, as samples, one a question.

A document is shown as the pages of its PDF file in `documents/`: the lines count pages as the file does, and give boxes
in points of its pages. (The images of `MMDocIR_pages.parquet` are of other sizes.)

The real task generates nothing: heads rank the document's pages, and its layouts, which `MMDocIR_layouts.parquet`
lists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

from core_bench.bundled.words import COLORS
from core_bench.errors import SampleError
from core_bench.instructions import ONE_WORD
from core_bench.media import page_sizes
from core_bench.metrics import known_answer
from core_bench.schema import PAGE_DPI, Box, Media, Region
from core_bench.scoring_mmdocir import LAYOUT_KS, PAGE_KS, layout_recall, page_recall, read_ranking

FOLDERS = ("documents", "doc_pdfs", "doc_miscellaneous/doc_pdfs")
LAYOUTS = ("MMDocIR_layouts.parquet", "dataset/MMDocIR_layouts.parquet")
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


def media(doc: Mapping[str, Any], base: Path) -> list[Media]:
    """All pages, in order; `page_indices` are the first and the last row of the document in the table of pages."""
    first, last = doc["page_indices"]
    path = _file(doc, base)
    return [Media(kind="page", path=path, page=page) for page in range(last - first + 1)]


def evidence(doc: Mapping[str, Any], base: Path, dpi: int = PAGE_DPI) -> list[Region]:
    """The boxes of `layout_mapping` in pixels of the rendered pages; none where one of them has no area on its page.

    Of a box that reaches over the edge of its page, the part on the page counts.
    """
    path = base / _file(doc, base)
    found = []
    for layout in doc["layout_mapping"]:
        box = _in_pixels(layout["bbox"], layout["page_size"], _rendered_size(path, layout["page"], dpi))
        if box is None:
            return []
        found.append(Region(medium=layout["page"], box=box))
    return found


def defects(doc: Mapping[str, Any]) -> list[str]:
    """What is wrong with a question's answer and layouts, by kind."""
    found = []
    layouts = [(layout["page"], *layout["bbox"], *layout["page_size"]) for layout in doc["layout_mapping"]]
    if any(_outside(layout) for layout in layouts):
        found.append("have a box without area on its page (no evidence)")
    elif any(x0 < 0 or y0 < 0 or x1 > width or y1 > height for _, x0, y0, x1, y1, width, height in layouts):
        found.append("have a box that reaches over the edge of its page (the part on the page counts)")
    if any(_overlap(one, other) for one, other in combinations(layouts, 2)):
        found.append("have layouts that overlap (the official layout recall can exceed 1)")
    if not str(doc["A"]).strip():
        found.append("have an empty answer (it is not used)")
    return found


def _outside(layout: Sequence[float]) -> bool:
    _, x0, y0, x1, y1, width, height = layout
    return min(x1, width) <= max(x0, 0) or min(y1, height) <= max(y0, 0)


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    across = min(one[3], other[3]) > max(one[1], other[1])
    return one[0] == other[0] and across and min(one[4], other[4]) > max(one[2], other[2])


def target(doc: Mapping[str, Any]) -> dict[str, Any]:
    """The true pages, and the true layouts as page and box."""
    layouts = [[layout["page"], *layout["bbox"]] for layout in doc["layout_mapping"]]
    return {"pages": sorted(set(doc["page_id"])), "layouts": layouts}


def candidates(doc: Mapping[str, Any], media: Sequence[Media]) -> dict[str, list[tuple[Any, Region]]]:
    """Every page, labelled by its number, and every layout on one, by page and box; no layouts where their table is
    not at hand. Layouts without area on their page are left out."""
    pages: list[tuple[Any, Region]] = [(number, Region(medium=number)) for number in range(len(media))]
    path = Path(media[0].path)
    table = next((folder / name for folder in path.parents[:4] for name in LAYOUTS if (folder / name).is_file()), None)
    if table is None:
        return {"pages": pages}
    first, last = doc["layout_indices"]
    layouts: list[tuple[Any, Region]] = []
    for row in _layouts(table, table.stat().st_mtime_ns).slice(first, last - first + 1).to_pylist():
        if row["doc_name"] != doc["doc_name"]:
            raise ValueError(f"layout_indices: rows {first} to {last} are of {row['doc_name']}, not {doc['doc_name']}")
        box = _in_pixels(row["bbox"], row["page_size"], _rendered_size(path, row["page_id"], media[0].dpi))
        if box is not None:
            layouts.append(([row["page_id"], *row["bbox"]], Region(medium=row["page_id"], box=box)))
    return {"pages": pages, "layouts": layouts}


@lru_cache(maxsize=1)
def _layouts(path: Path, changed: int) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path, columns=["doc_name", "page_id", "bbox", "page_size"])


def ranking_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float | None]:
    """Page recall, official and capped layout recall of a ranking; `_macro` is to be averaged by domain."""
    read, true = read_ranking(results[0]), target(doc)
    pages, layouts = read or ([], [])
    truth = [(int(page), box) for page, *box in true["layouts"]]
    scores: dict[str, float | None] = {f"page_recall_{k}": page_recall(pages, true["pages"], k) for k in PAGE_KS}
    for k in LAYOUT_KS:
        value = layout_recall(layouts, truth, k) if layouts else None
        scores[f"layout_recall_{k}"] = value
        scores[f"layout_recall_{k}_capped"] = None if value is None else min(value, 1.0)
    macro = {f"{name}_macro": value for name, value in scores.items()}
    return {**scores, **macro, "unparsed": float(read is None)}


def _file(doc: Mapping[str, Any], base: Path) -> str:
    """Path of the document from `base`."""
    return next((f"{folder}/{doc['doc_name']}" for folder in FOLDERS if (base / folder).is_dir()), str(doc["doc_name"]))


def _in_pixels(bbox: Sequence[float], page_size: Sequence[float], rendered: tuple[int, int]) -> Box | None:
    (x0, y0, x1, y1), (width, height) = bbox, page_size
    if min(x1, width) <= max(x0, 0) or min(y1, height) <= max(y0, 0):
        return None
    across, down = rendered[0] / width, rendered[1] / height
    return (x0 * across, y0 * down, x1 * across, y1 * down)


def _rendered_size(path: Path, page: int, dpi: int) -> tuple[int, int]:
    """Width and height in pixels of a page as it is shown."""
    sizes = page_sizes(path)
    if not 0 <= page < len(sizes):
        raise SampleError(f"{path}: evidence on page {page}, the document has {len(sizes)} pages (0-based)")
    width, height = sizes[page]
    return math.ceil(width * dpi / _POINTS_PER_INCH), math.ceil(height * dpi / _POINTS_PER_INCH)


def prompt(doc: Mapping[str, Any]) -> str:
    return f"{doc['Q']}\n{ONE_WORD}"


def color_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Whether the color that the answer names is the figure's; an answer that names none is unparsed."""
    value, unparsed = known_answer(results[0], doc["A"], tuple(COLORS))
    return {"accuracy": value, "unparsed": float(unparsed)}
