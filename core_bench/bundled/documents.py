"""Generated MMLongBench-Doc and MMDocIR: PDF documents with one question each, in the data sets' own files.

MMLongBench-Doc: `samples.json` with its seven text fields, `documents/<doc_id>`. A question about a shape that is
nowhere in the document is "Not answerable".

MMDocIR: `MMDocIR_annotations.jsonl`, `MMDocIR_pages.parquet` (the rendered pages) and `MMDocIR_layouts.parquet`
(paragraphs and figures), of whose columns those are left out that other models' readings fill; the documents
themselves are in `documents/` too, because boxes are in points of their pages.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from core_bench.bundled import words
from core_bench.bundled.dataset import Dataset
from core_bench.bundled.pages import MARGIN, Line, Page, make_document
from core_bench.bundled.pdf import PIXELS_PER_POINT, pdf_bytes
from core_bench.bundled.scene import CELL
from core_bench.bundled.turns import color_question
from core_bench.instructions import NOT_ANSWERABLE
from core_bench.media import load_page
from core_bench.schema import Box

_TEXT_TOKENS = 35  # what a prompt has beside its pages, about
_PAGE_TOKENS = 2  # marks around one page
_PAGE_CELLS = 256  # of the pages of long documents, until there are MOST_PAGES of them
MOST_PAGES = 16


@dataclass(frozen=True)
class Documents:
    """`n` documents of `pages` pages of `rows` x `cols` cells with `objects` figures; all four are closed ranges.

    `absent_every`: one question of so many is about a shape that the document does not have; 0 for none.
    """

    seed: int
    n: int
    pages: tuple[int, int] = (3, 4)
    rows: tuple[int, int] = (8, 8)
    cols: tuple[int, int] = (8, 8)
    objects: tuple[int, int] = (6, 12)
    absent_every: int = 0

    def absent(self, number: int) -> bool:
        """Whether question `number` is about a shape that is not there."""
        return bool(self.absent_every) and number % self.absent_every == self.absent_every - 1


def sized(spec: Documents, tokens: int) -> Documents:
    """`spec` with documents of one size, so that a prompt has about `tokens` tokens.

    Two to sixteen pages of 256 cells, then larger ones; figures become fewer where a page could not hold them.
    """
    room = max(1, tokens - _TEXT_TOKENS)
    pages = min(MOST_PAGES, max(2, round(room / (_PAGE_CELLS + _PAGE_TOKENS))))
    cells = room / pages - _PAGE_TOKENS
    rows = max(2, round(cells**0.5))
    cols = max(2, round(cells / rows))
    most = min(spec.objects[1], (rows - 1) * cols)
    objects = (min(spec.objects[0], most), most)
    return replace(spec, pages=(pages, pages), rows=(rows, rows), cols=(cols, cols), objects=objects)


def documents(spec: Documents) -> Iterator[tuple[int, tuple[Page, ...], np.random.Generator]]:
    """(number, pages, generator for the question) of every item; item i depends on the seed and i alone."""
    for number in range(spec.n):
        rng = np.random.default_rng((spec.seed, number))
        ranges = (spec.pages, spec.rows, spec.cols, spec.objects)
        pages, rows, cols, objects = (int(rng.integers(least, most + 1)) for least, most in ranges)
        yield number, make_document(rng, pages, rows, cols, objects), rng


def write_mmlongbench_doc(folder: Path, split: str, spec: Documents) -> None:
    """The files of one split."""
    (folder / "documents").mkdir()
    records = []
    for number, pages, rng in documents(spec):
        name = f"{split}-{number:04d}.pdf"
        (folder / "documents" / name).write_bytes(pdf_bytes(pages))
        figures = [(page, thing) for page, sheet in enumerate(pages) for thing in sheet.objects]
        if spec.absent(number):
            shape = str(rng.choice(sorted(set(words.SHAPES) - {thing.shape for _, thing in figures})))
            answer, evidence, kind = NOT_ANSWERABLE, "[]", "None"
        else:
            page, thing = figures[rng.integers(len(figures))]
            shape, answer, evidence, kind = thing.shape, thing.color, f"[{page + 1}]", "Str"
        record = {
            "doc_id": name,
            "doc_type": "Generated",
            "question": color_question(rng, shape),
            "answer": answer,
            "evidence_pages": evidence,
            "evidence_sources": "[]" if kind == "None" else "['Figure']",
            "answer_format": kind,
        }
        records.append(record)
    (folder / "samples.json").write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


def write_mmdocir(folder: Path, split: str, spec: Documents) -> None:
    """The files of one split."""
    (folder / "documents").mkdir()
    page_rows: list[dict[str, Any]] = []
    layout_rows: list[dict[str, Any]] = []
    lines = []
    for number, pages, rng in documents(spec):
        name = f"{split}-{number:04d}.pdf"
        (folder / "documents" / name).write_bytes(pdf_bytes(pages))
        first_page, first_layout = len(page_rows), len(layout_rows)
        for page, sheet in enumerate(pages):
            page_rows.append(_page_row(folder, name, page))
            found = _layouts(sheet)
            layout_rows += [
                {"doc_name": name, "domain": "Generated", "layout_id": len(layout_rows) + at, "page_id": page, **row}
                for at, row in enumerate(found)
            ]
        figures = [(page, thing) for page, sheet in enumerate(pages) for thing in sheet.objects]
        page, thing = figures[rng.integers(len(figures))]
        place = {"page": page, "page_size": _page_size(pages[page]), "bbox": _points(thing.box)}
        question = {
            "Q": color_question(rng, thing.shape),
            "A": thing.color,
            "type": "['Figure']",
            "page_id": [page],
            "layout_mapping": [place],
        }
        line = {
            "doc_name": name,
            "domain": "Generated",
            "page_indices": [first_page, len(page_rows) - 1],
            "layout_indices": [first_layout, len(layout_rows) - 1],
            "questions": [question],
        }
        lines.append(json.dumps(line))
    (folder / "MMDocIR_annotations.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _write_parquet(folder / "MMDocIR_pages.parquet", page_rows)
    _write_parquet(folder / "MMDocIR_layouts.parquet", layout_rows)


def _page_row(folder: Path, name: str, page: int) -> dict[str, Any]:
    packed = io.BytesIO()
    load_page(str(folder / "documents" / name), page).save(packed, format="PNG")
    return {
        "doc_name": name,
        "domain": "Generated",
        "passage_id": str(page),
        "image_path": f"{Path(name).stem}_{page}.png",
        "image_binary": packed.getvalue(),
    }


def _layouts(page: Page) -> list[dict[str, Any]]:
    """The layouts of a page: each paragraph (the lines of one row of cells, as wide as the column of text), then each
    figure."""
    paragraphs: dict[int, list[Line]] = {}
    for line in page.lines:
        paragraphs.setdefault(line.y // CELL, []).append(line)
    width = page.pixels.shape[1]
    found: list[tuple[str, str, Box]] = [
        ("text", " ".join(line.text for line in lines), (MARGIN, row * CELL, width - MARGIN, (row + 1) * CELL))
        for row, lines in sorted(paragraphs.items())
    ]
    found += [("image", "", thing.box) for thing in page.objects]
    size = _page_size(page)
    return [{"type": kind, "text": text, "bbox": _points(box), "page_size": size} for kind, text, box in found]


def _page_size(page: Page) -> list[float]:
    """[width, height] in points."""
    height, width = page.pixels.shape[:2]
    return [width / PIXELS_PER_POINT, height / PIXELS_PER_POINT]


def _points(box: Box) -> list[float]:
    return [edge / PIXELS_PER_POINT for edge in box]


def _write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


DATASETS = {
    "mmlongbench_doc": Dataset(
        # Detection needs evidence, so every question of that split has an answer.
        splits={"detect": Documents(seed=701, n=64), "eval": Documents(seed=702, n=128, absent_every=5)},
        write=write_mmlongbench_doc,
        sized=sized,
    ),
    "mmdocir": Dataset(
        splits={"detect": Documents(seed=801, n=64), "eval": Documents(seed=802, n=128)},
        write=write_mmdocir,
        sized=sized,
    ),
}
