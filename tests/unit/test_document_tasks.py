"""The tasks over documents: rows, evidence and scores of generated and of genuine records."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pypdfium2
import pytest

from core_bench.bundled import generate
from core_bench.bundled.architectures.qwen3vl import build_processor
from core_bench.bundled.documents import DATASETS, Documents, documents
from core_bench.evidence import omega
from core_bench.instructions import NOT_ANSWERABLE
from core_bench.media import load_page, read_visual
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.registry import load_tasks
from core_bench.schema import Region, Sample
from core_bench.taskfile import YamlMap
from core_bench.tasks.core_mmdocir import evidence as layout_evidence
from core_bench.tasks.core_mmdocir import questions
from core_bench.tasks.core_mmlongbench_doc import evidence as page_evidence
from core_bench.tasks.core_mmlongbench_doc import media as page_media
from core_bench.tasks.core_mmlongbench_doc import with_ids
from core_bench.taskspec import FailedSample, TaskSpec

SPEC = Documents(seed=5, n=5, absent_every=5)
NAMES = {"mmlongbench_doc": "core_mmlongbench_doc_tiny", "mmdocir": "core_mmdocir_tiny"}


def task(name: str) -> TaskSpec:
    (spec,) = load_tasks([NAMES[name]], "dense", generated=True)
    return spec


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Sample]]]:
    """The samples of a small `eval` split of each task."""
    root = tmp_path_factory.mktemp("generated")
    with pytest.MonkeyPatch.context() as patch:
        found: dict[str, list[Sample]] = {}
        for name, dataset in DATASETS.items():
            patch.setitem(generate.DATASETS, name, replace(dataset, splits={"eval": SPEC}))
            rows = task(name).samples("eval", data_dir=str(root))
            found[name] = [row for row in rows if isinstance(row, Sample)]
            assert len(found[name]) == SPEC.n, [row for row in rows if isinstance(row, FailedSample)]
        yield found


def blank_pdf(path: Path, sizes: list[tuple[float, float]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pypdfium2.PdfDocument.new() as document:
        for width, height in sizes:
            document.new_page(width, height)
        document.save(path)


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_a_sample_shows_the_whole_document_and_is_one_of_a_kind(name: str, samples: dict[str, list[Sample]]) -> None:
    assert len({sample.id for sample in samples[name]}) == len({sample.cluster for sample in samples[name]}) == SPEC.n
    for sample, (_, pages, _) in zip(samples[name], documents(SPEC), strict=True):
        assert [medium.page for medium in sample.media] == list(range(len(pages)))
        assert {medium.kind for medium in sample.media} == {"page"}
        assert {Path(medium.path).name for medium in sample.media} == {sample.cluster}
        assert sample.question in sample.prompt


def test_evidence_of_mmlongbench_doc_is_the_page_with_the_figure(samples: dict[str, list[Sample]]) -> None:
    for sample, (_, pages, _) in zip(samples["mmlongbench_doc"], documents(SPEC), strict=True):
        shown = [
            number for number, page in enumerate(pages) for thing in page.objects if thing.shape in sample.question
        ]
        assert sample.evidence == tuple(Region(medium=number) for number in shown)
        assert (sample.target == NOT_ANSWERABLE) == (not shown)


def test_the_box_of_mmdocir_holds_the_figure_in_its_color(samples: dict[str, list[Sample]]) -> None:
    for sample, (_, pages, _) in zip(samples["mmdocir"], documents(SPEC), strict=True):
        (region,) = sample.evidence
        (thing,) = [thing for thing in pages[region.medium].objects if thing.shape in sample.question]
        assert region.box == thing.box
        x0, y0, x1, y1 = map(int, thing.box)
        page = sample.media[region.medium]
        crop = np.asarray(load_page(page.path, page.page or 0))[y0:y1, x0:x1]
        np.testing.assert_array_equal(crop, pages[region.medium].pixels[y0:y1, x0:x1])
        assert sample.target == thing.color


def test_boxes_follow_the_dpi_of_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(generate.DATASETS, "mmdocir", replace(DATASETS["mmdocir"], splits={"eval": SPEC}))
    spec, half = task("mmdocir"), YamlMap()
    half.update(spec.core, dpi=72)
    plain, small = (
        [row for row in found.samples("eval", data_dir=str(tmp_path)) if isinstance(row, Sample)]
        for found in (spec, replace(spec, core=half))
    )
    for one, other in zip(plain, small, strict=True):
        (region,), (smaller,) = one.evidence, other.evidence
        assert region.box is not None
        assert smaller.box == pytest.approx([edge / 2 for edge in region.box], abs=0.5)
        sizes = [read_visual(sample.media[region.medium]).size for sample in (one, other)]
        assert sizes[1] == pytest.approx([side / 2 for side in sizes[0]], abs=1)


def test_prompts_have_the_wanted_size_and_evidence_has_tokens(
    samples: dict[str, list[Sample]], tiny_model: Any
) -> None:
    wrapper = Qwen3VL(tiny_model, build_processor())
    for sample in [*samples["mmlongbench_doc"][:3], *samples["mmdocir"][:3]]:
        prepared = wrapper.prepare(sample)
        assert 150 <= prepared.token_map.length <= 320
        tokens = omega(sample.evidence, prepared.token_map)
        whole_page = sample.evidence[0].box is None
        cells = [block.rows * block.cols for block in prepared.token_map.blocks]
        assert len(tokens) == (cells[sample.evidence[0].medium] if whole_page else 1)


def test_scores_of_mmlongbench_doc(samples: dict[str, list[Sample]]) -> None:
    spec, (answerable, *_, absent) = task("mmlongbench_doc"), samples["mmlongbench_doc"]
    right = spec.score(answerable, f" {str(answerable.target).capitalize()}.")
    assert (right.scores, right.unparsed) == ({"acc": 1.0, "recall": 1.0, "precision": 1.0}, False)
    assert spec.score(answerable, "Not answerable").scores == {"acc": 0.0, "recall": 0.0}
    assert spec.score(absent, "not answerable.").scores == {"acc": 1.0}
    assert spec.score(absent, "red").scores == {"acc": 0.0, "precision": 0.0}
    near = spec.score(absent, "not answered").scores
    assert near["acc"] > 0.5
    assert near["precision"] == 0, "only questions with an answer add to it"
    nothing = spec.score(answerable, " ")
    assert (nothing.scores["acc"], nothing.unparsed) == (0.0, True)
    assert spec.headline == "acc"


def test_scores_of_mmdocir(samples: dict[str, list[Sample]]) -> None:
    spec, sample = task("mmdocir"), samples["mmdocir"][0]
    wrong = "red" if sample.target != "red" else "blue"
    assert spec.score(sample, f"{sample.target}").scores == {"accuracy": 1.0}
    assert spec.score(sample, wrong).scores == {"accuracy": 0.0}
    assert spec.score(sample, "a page").unparsed


@pytest.mark.parametrize(
    ("pages", "expected"),
    [("[2]", [1]), ("[3, 1, 1]", [0, 2]), ("[]", []), ("[0]", []), ("[2, 1418]", []), ("[121]", []), ("[120]", [119])],
)
def test_evidence_that_is_not_shown_is_left_out_whole(tmp_path: Path, pages: str, expected: list[int]) -> None:
    blank_pdf(tmp_path / "documents" / "a.pdf", [(100, 100)] * 125)
    doc = {"doc_id": "a.pdf", "evidence_pages": pages}
    assert len(page_media(doc, tmp_path)) == 120
    assert page_evidence(doc, tmp_path) == [Region(medium=page) for page in expected]


@pytest.mark.parametrize("pages", ["two", "2", "['2']", "__import__('os')"])
def test_pages_that_are_no_list_of_numbers_are_the_rows_failure(tmp_path: Path, pages: str) -> None:
    blank_pdf(tmp_path / "documents" / "a.pdf", [(100, 100)])
    with pytest.raises((ValueError, SyntaxError)):
        page_evidence({"doc_id": "a.pdf", "evidence_pages": pages}, tmp_path)


def test_boxes_scale_from_the_annotation_to_the_rendered_page(tmp_path: Path) -> None:
    path = tmp_path / "documents" / "a.pdf"
    blank_pdf(path, [(100, 50), (99.6, 60.2)])
    assert load_page(str(path), 1).size == (200, 121)

    def regions(page: int, size: list[float], *boxes: list[float]) -> list[Region]:
        places = [{"page": page, "page_size": size, "bbox": box} for box in boxes]
        return layout_evidence({"doc_name": "a.pdf", "layout_mapping": places}, tmp_path)

    assert regions(0, [100, 50], [10, 20, 30, 40]) == [Region(medium=0, box=(20, 40, 60, 80))]
    assert regions(0, [50, 25], [10, 20, 30, 24]) == [Region(medium=0, box=(40, 80, 120, 96))]
    (odd,) = regions(1, [99.6, 60.2], [0, 0, 99.6, 60.2])
    assert odd.box == pytest.approx((0, 0, 200, 121))
    assert regions(0, [100, 50], [90, 40, 130, 60]) == [Region(medium=0, box=(180, 80, 260, 120))]
    assert regions(0, [100, 50], [30, 10, 30, 40]) == [], "no width"
    assert regions(0, [100, 50], [30, 40, 50, 40]) == [], "no height"
    assert regions(0, [100, 50], [30, -9, 50, 0]) == [], "above the page"
    assert regions(0, [100, 50], [10, 20, 30, 40], [101, 0, 120, 40]) == [], "one of them lies outside"


def test_a_line_without_questions_is_one_row_that_fails(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"doc_name": "a.pdf"},
        {"doc_name": "b.pdf", "page_indices": [3, 4], "questions": [{"Q": "?"}, {"Q": "!"}]},
    ]
    rows = questions(lines)
    assert [row["id"] for row in rows] == ["a.pdf-0", "b.pdf-1", "b.pdf-2"]
    assert "Q" not in rows[0]
    assert [(row["Q"], row["page_indices"]) for row in rows[1:]] == [("?", [3, 4]), ("!", [3, 4])]


def test_genuine_mmlongbench_doc_records(genuine_data: Path, tmp_path: Path) -> None:
    path = genuine_data / "annotations" / "mmlongbench_doc" / "samples.slice.json"
    records = with_ids(json.loads(path.read_text(encoding="utf-8")))
    assert len({record["id"] for record in records}) == len(records)
    left_out = []
    for record in records:
        blank_pdf(tmp_path / "documents" / record["doc_id"], [(100, 100)] * 30)
        named = ast.literal_eval(record["evidence_pages"])
        found = page_evidence(record, tmp_path)
        if all(1 <= page <= 30 for page in named):
            assert [region.medium + 1 for region in found] == sorted(set(named))
        else:
            assert found == []
            left_out.append(named)
    assert [0] in left_out
    assert any(1418 in named for named in left_out)


def test_genuine_mmdocir_lines(genuine_data: Path, tmp_path: Path) -> None:
    path = genuine_data / "annotations" / "mmdocir" / "MMDocIR_annotations.slice.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = questions(lines)
    assert len(rows) == sum(len(line["questions"]) for line in lines) > 100
    for line in lines:
        sizes = [(612.0, 792.0)] * (line["page_indices"][1] - line["page_indices"][0] + 1)
        for question in line["questions"]:
            for place in question["layout_mapping"]:
                sizes[place["page"]] = tuple(place["page_size"])
        blank_pdf(tmp_path / "documents" / line["doc_name"], sizes)
    without = []
    for row in rows:
        found = layout_evidence(row, tmp_path)
        if not found:
            without.append([place["bbox"] for place in row["layout_mapping"]])
            continue
        assert {region.medium for region in found} == {place["page"] for place in row["layout_mapping"]}
        for region, place in zip(found, row["layout_mapping"], strict=True):
            width = place["page_size"][0]
            assert region.box is not None
            assert region.box[2] == pytest.approx(place["bbox"][2] * math.ceil(width * 2) / width)
    assert without == [[[300, 100, 300, 450]]], "the box of no width; boxes that reach over an edge count"
