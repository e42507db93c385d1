"""Generated documents: real PDF files whose rendered pixels are the drawn ones, in the data sets' own files."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pypdfium2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_bench.bundled import words
from core_bench.bundled.documents import DATASETS, Documents, documents, sized
from core_bench.bundled.pages import FONT_PIXELS, Line, Page, make_document
from core_bench.bundled.pdf import pdf_bytes
from core_bench.bundled.scene import CELL
from core_bench.media import load_image, load_page
from core_bench.schema import Box

SMALL = Documents(seed=5, n=10, absent_every=5)
RECORD_FIELDS = (
    "doc_id",
    "doc_type",
    "question",
    "answer",
    "evidence_pages",
    "evidence_sources",
    "answer_format",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small split of each data set."""
    found = {}
    for name, dataset in DATASETS.items():
        found[name] = tmp_path_factory.mktemp(name)
        dataset.write(found[name], "eval", SMALL)
    return found


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def lines_of(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "MMDocIR_annotations.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def asked_shape(question: str) -> str:
    (shape,) = [shape for shape in words.SHAPES if words.phrase(shape) in question]
    return shape


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(2, 7), st.integers(2, 9))
@settings(max_examples=8, deadline=None)
def test_a_rendered_page_shows_the_drawn_pixels_and_its_text(seed: int, n: int, rows: int, cols: int) -> None:
    pages = make_document(np.random.default_rng(seed), n, rows, cols, min(6, (rows - 1) * cols))
    packed = pdf_bytes(pages)
    assert packed == pdf_bytes(pages)
    with pypdfium2.PdfDocument(packed) as document:
        assert len(document) == n
        for number, page in enumerate(pages):
            shown = np.asarray(document[number].render(scale=2).to_pil().convert("RGB"))
            assert shown.shape == page.pixels.shape == (rows * CELL, cols * CELL, 3)
            x0, y0, x1, y1 = map(int, page.panel)
            np.testing.assert_array_equal(shown[y0:y1, x0:x1], page.pixels[y0:y1, x0:x1])
            text = document[number].get_textpage().get_text_range()
            assert text.split() == " ".join(line.text for line in page.lines).split()


def test_text_stands_where_the_page_says(tmp_path: Path) -> None:
    pixels = np.full((4 * CELL, 6 * CELL, 3), 255, dtype=np.uint8)
    panel: Box = (0.0, 96.0, 192.0, 128.0)
    line = Line(20, 33, r"growth (of) a\b")
    (tmp_path / "a.pdf").write_bytes(pdf_bytes([Page(pixels, panel, (), (line,))]))
    ink = np.asarray(load_page(str(tmp_path / "a.pdf"), 0)).min(axis=2) < 128
    rows, cols = np.nonzero(ink)
    assert line.y <= rows.min() <= rows.max() < line.y + FONT_PIXELS
    assert line.x <= cols.min() <= line.x + 3
    with pypdfium2.PdfDocument(tmp_path / "a.pdf") as document:
        assert document[0].get_textpage().get_text_range() == line.text


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_one_seed_gives_the_same_bytes_and_another_gives_others(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    for folder, spec in (("again", SMALL), ("fewer", replace(SMALL, n=2)), ("other", replace(SMALL, seed=6))):
        (tmp_path / folder).mkdir()
        DATASETS[name].write(tmp_path / folder, "eval", spec)
    expected = content(folders[name])
    assert content(tmp_path / "again") == expected
    fewer, other = content(tmp_path / "fewer"), content(tmp_path / "other")
    documents_of = [path for path in fewer if path.endswith(".pdf")]
    assert len(documents_of) == 2
    assert all(fewer[path] == expected[path] for path in documents_of), "an item depends on the seed and its number"
    assert not any(other[path] == expected[path] for path in documents_of)


def test_records_have_the_fields_of_mmlongbench_doc_and_are_true(folders: dict[str, Path]) -> None:
    folder = folders["mmlongbench_doc"]
    records = json.loads((folder / "samples.json").read_text(encoding="utf-8"))
    assert len(records) == SMALL.n
    assert len({record["doc_id"] for record in records}) == SMALL.n
    for record, (number, pages, _) in zip(records, documents(SMALL), strict=True):
        assert tuple(record) == RECORD_FIELDS
        assert all(isinstance(value, str) for value in record.values())
        with pypdfium2.PdfDocument(folder / "documents" / record["doc_id"]) as document:
            assert len(document) == len(pages)
        shape = asked_shape(record["question"])
        where = [
            (page, thing) for page, sheet in enumerate(pages, 1) for thing in sheet.objects if thing.shape == shape
        ]
        if number % 5 == 4:
            assert not where
            expected: tuple[str, list[int], list[str], str] = ("Not answerable", [], [], "None")
        else:
            ((page, thing),) = where
            expected = (thing.color, [page], ["Figure"], "Str")
        evidence, sources = (ast.literal_eval(record[f"evidence_{part}"]) for part in ("pages", "sources"))
        assert (record["answer"], evidence, sources, record["answer_format"]) == expected


def test_detection_has_an_answer_to_every_question_and_evaluation_to_four_fifths() -> None:
    splits = DATASETS["mmlongbench_doc"].splits
    assert not any(splits["detect"].absent(number) for number in range(splits["detect"].n))
    absent = [number for number in range(splits["eval"].n) if splits["eval"].absent(number)]
    assert abs(len(absent) / splits["eval"].n - 0.2) < 0.01
    seeds = [spec.seed for dataset in DATASETS.values() for spec in dataset.splits.values()]
    assert len(set(seeds)) == len(seeds)


def test_annotations_of_mmdocir_name_the_figure_and_the_rows_of_both_tables(folders: dict[str, Path]) -> None:
    folder = folders["mmdocir"]
    pages = pyarrow.parquet.read_table(folder / "MMDocIR_pages.parquet").to_pylist()
    layouts = pyarrow.parquet.read_table(folder / "MMDocIR_layouts.parquet").to_pylist()
    next_page = next_layout = 0
    for line, (_, drawn, _) in zip(lines_of(folder), documents(SMALL), strict=True):
        (first, last), (start, end) = line["page_indices"], line["layout_indices"]
        assert (first, start) == (next_page, next_layout), "documents follow each other in the tables"
        next_page, next_layout = last + 1, end + 1
        own_pages, own_layouts = pages[first:next_page], layouts[start:next_layout]
        assert [row["passage_id"] for row in own_pages] == [str(page) for page in range(len(drawn))]
        assert {row["doc_name"] for row in (*own_pages, *own_layouts)} == {line["doc_name"]}
        assert [row["layout_id"] for row in own_layouts] == list(range(start, next_layout))
        (question,) = line["questions"]
        (place,) = question["layout_mapping"]
        assert question["page_id"] == [place["page"]]
        height, width = drawn[place["page"]].pixels.shape[:2]
        assert place["page_size"] == [width / 2, height / 2]
        shape = asked_shape(question["Q"])
        (thing,) = [thing for thing in drawn[place["page"]].objects if thing.shape == shape]
        assert question["A"] == thing.color
        assert tuple(edge * 2 for edge in place["bbox"]) == thing.box
        same = [row for row in own_layouts if row["page_id"] == place["page"] and row["bbox"] == place["bbox"]]
        assert [row["type"] for row in same] == ["image"]
        assert sum(row["type"] == "image" for row in own_layouts) == sum(len(page.objects) for page in drawn)
        said = " ".join(row["text"] for row in own_layouts if row["type"] == "text")
        assert said == " ".join(text.text for page in drawn for text in page.lines)
    assert (next_page, next_layout) == (len(pages), len(layouts))


def test_the_table_of_pages_holds_the_rendered_pages(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["mmdocir"]
    row = pyarrow.parquet.read_table(folder / "MMDocIR_pages.parquet").to_pylist()[1]
    (tmp_path / "page.png").write_bytes(row["image_binary"])
    rendered = load_page(str(folder / "documents" / row["doc_name"]), int(row["passage_id"]))
    np.testing.assert_array_equal(np.asarray(load_image(str(tmp_path / "page.png"))), np.asarray(rendered))


@given(st.integers(64, 65_536))
@settings(max_examples=60, deadline=None)
def test_a_sized_document_has_about_so_many_visual_tokens(tokens: int) -> None:
    spec = sized(SMALL, tokens)
    (pages, _), (rows, _), (cols, _) = spec.pages, spec.rows, spec.cols
    assert abs(35 + pages * (rows * cols + 2) - tokens) <= max(8, 0.06 * tokens)
    assert 1 <= spec.objects[0] <= spec.objects[1] <= (rows - 1) * cols


@pytest.mark.parametrize("tokens", [64, 150, 1024])
def test_documents_of_every_size_can_be_drawn(tokens: int) -> None:
    for _, pages, _ in documents(replace(sized(SMALL, tokens), n=3)):
        pdf_bytes(pages)
