"""`core_mmdocir` on lines of the data set itself; PDF files and the table of layouts are ours, in its schema."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pypdfium2
import pytest

from core_bench.errors import SampleError
from core_bench.evidence import omega
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.ram import measure
from core_bench.ranking import rank
from core_bench.registry import known_tasks
from core_bench.schema import Sample
from core_bench.taskspec import FailedSample, TaskSpec

TASK = "core_mmdocir"
SIZE = [100.0, 200.0]
LINE: dict[str, Any] = {"doc_name": "a.pdf", "domain": "News", "page_indices": [0, 2], "layout_indices": [0, 3]}
QUESTION: dict[str, Any] = {
    "Q": "Which color?", "A": "red", "page_id": [1], "type": "['Chart']",
    "layout_mapping": [{"page": 1, "page_size": SIZE, "bbox": [10, 20, 60, 120]}],
}  # fmt: skip
LAYOUTS = [(0, [0, 0, 50, 50]), (1, [10, 20, 60, 120]), (1, [0, 150, 90, 190]), (2, [0, 0, 100, 200])]


@cache
def spec() -> TaskSpec:
    return known_tasks()[TASK]


def write(folder: Path, lines: list[dict[str, Any]], *, place: str = "documents", table: bool = True) -> Path:
    root = folder / "MMDocIR"
    (root / place).mkdir(parents=True, exist_ok=True)
    (root / "MMDocIR_annotations.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    for line in lines:
        first, last = line["page_indices"]
        sizes = [tuple(SIZE)] * (last - first + 1)
        for question in line["questions"]:
            for layout in question["layout_mapping"]:
                sizes[layout["page"]] = tuple(layout["page_size"])
        with pypdfium2.PdfDocument.new() as document:
            for width, height in sizes:
                document.new_page(width, height)
            document.save(root / place / line["doc_name"])
    if table:
        rows = [
            {"doc_name": "a.pdf", "type": "text", "layout_id": n, "page_id": page, "bbox": box, "page_size": SIZE}
            for n, (page, box) in enumerate(LAYOUTS)
        ]
        pq.write_table(pa.Table.from_pylist(rows), root / "MMDocIR_layouts.parquet")
    return folder


def own(folder: Path, **changes: Any) -> Path:
    return write(folder, [LINE | {"questions": [QUESTION | changes]}])


def samples_of(folder: Path, split: str = "test", said: list[str] | None = None) -> list[Sample]:
    found = spec().samples(split, data_dir=str(folder), report=None if said is None else said.append)
    assert not [sample for sample in found if isinstance(sample, FailedSample)], found
    return [sample for sample in found if isinstance(sample, Sample)]


@pytest.fixture(scope="module")
def genuine(genuine_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    file = genuine_data / "annotations/mmdocir/MMDocIR_annotations.slice.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return lines, write(tmp_path_factory.mktemp("mmdocir"), lines, table=False)


def test_every_question_becomes_a_sample(genuine: tuple[list[dict[str, Any]], Path]) -> None:
    lines, folder = genuine
    samples = samples_of(folder)
    assert len(lines) == 14
    assert len(samples) == sum(len(line["questions"]) for line in lines) == 190
    assert {frozenset(question) for line in lines for question in line["questions"]} >= {frozenset(QUESTION)}
    assert {len(question) for line in lines for question in line["questions"]} == {5, 7}, "both sets of keys"
    assert len({sample.id for sample in samples}) == 190
    pages = {line["doc_name"]: line["page_indices"][1] - line["page_indices"][0] + 1 for line in lines}
    for sample in samples:
        assert [medium.page for medium in sample.media] == list(range(pages[sample.cluster])), "inclusive rows"
        assert all(0 <= page < pages[sample.cluster] for page in sample.doc["page_id"]), "0-based"
        assert sample.question == sample.prompt == sample.doc["Q"]
    assert any(0 in sample.doc["page_id"] for sample in samples)


def test_the_defects_of_the_slice_are_told_by_kind(genuine: tuple[list[dict[str, Any]], Path]) -> None:
    said: list[str] = []
    samples = samples_of(genuine[1], "test", said)
    [line] = said
    assert set(line.partition("190 rows: ")[2].split("; ")) == {
        "1 have a box without area on its page (no evidence)",
        "3 have a box that reaches over the edge of its page (the part on the page counts)",
        "2 have layouts that overlap (the official layout recall can exceed 1)",
    }
    without = [sample for sample in samples if not sample.evidence]
    assert [sample.doc["layout_mapping"][0]["bbox"] for sample in without] == [[300, 100, 300, 450]]


def test_the_truth_ranked_first_has_full_recall(genuine: tuple[list[dict[str, Any]], Path]) -> None:
    above, no_area = 0, 0
    for sample in samples_of(genuine[1]):
        pages, layouts = sample.target["pages"], sample.target["layouts"]
        text = json.dumps({"pages": pages[:5], "layouts": layouts[:10]})
        found = spec().score(sample, text).scores
        assert found["page_recall_5"] == pytest.approx(min(1, 5 / len(pages)))
        assert found["page_recall_1"] == pytest.approx(1 / len(pages))
        assert spec().score(sample, text).groups["page_recall_1_macro"] == sample.doc["domain"]
        if "layout_recall_10" not in found:
            no_area += 1
            continue
        assert found["layout_recall_10_capped"] == min(1, found["layout_recall_10"])
        above += found["layout_recall_10"] > 1 + 1e-9
        if len(layouts) <= 10:
            assert found["layout_recall_10"] >= 1 - 1e-9
        nothing = spec().score(sample, "the first page")
        assert (nothing.scores["page_recall_1"], nothing.unparsed) == (0, True)
    assert (above, no_area) == (2, 1), "two questions have overlapping layouts, one a box of no area"


def test_documents_are_parted_for_detection(genuine: tuple[list[dict[str, Any]], Path]) -> None:
    folder = genuine[1]
    parts = {split: {sample.cluster for sample in samples_of(folder, split)} for split in ("detect", "eval", "test")}
    assert parts["detect"] | parts["eval"] == parts["test"]
    assert not parts["detect"] & parts["eval"]
    assert min(len(parts["detect"]), len(parts["eval"])) > 0
    assert [spec().split_for(mode) for mode in ("detect", "dense")] == ["detect", "eval"]
    others = known_tasks()["core_mmlongbench_doc"]  # half of the documents are its
    for name in parts["test"]:
        assert others._for_detection({"doc_id": name}, 0.2) == (name in parts["detect"]), name
    first = samples_of(folder, "eval")[:3]
    limited = spec().samples("eval", data_dir=str(folder), limit=3)
    assert [sample.id for sample in limited] == [sample.id for sample in first]


def test_candidates_are_all_pages_and_the_layouts_of_the_document(tmp_path: Path) -> None:
    [sample] = samples_of(own(tmp_path))
    found = spec().candidates(sample)
    assert [label for label, _ in found["pages"]] == [0, 1, 2]
    assert [label for label, _ in found["layouts"]] == [[page, *box] for page, box in LAYOUTS]
    assert [region.medium for _, region in found["layouts"]] == [0, 1, 1, 2]
    assert found["layouts"][1][1] == sample.evidence[0], "points of the page became pixels of its picture"
    (tmp_path / "MMDocIR/MMDocIR_layouts.parquet").unlink()
    assert list(spec().candidates(sample)) == ["pages"], "without the table pages alone are ranked"
    score = spec().score(sample, '{"pages":[1,0,2]}')
    assert score.scores["page_recall_1"] == 1
    assert not [name for name in score.scores if "layout" in name]


def test_a_ranking_is_that_of_summed_ram(tmp_path: Path, tiny_model: Any, tiny_processor: Any) -> None:
    wrapper = Qwen3VL(tiny_model, tiny_processor)
    [sample] = samples_of(own(tmp_path))
    prepared = wrapper.prepare(sample)
    candidates, heads = spec().candidates(sample), [(1, 0), (0, 2)]
    found, rows = rank(wrapper, prepared, candidates, heads), prepared.spans["question"]
    for kind, pairs in candidates.items():
        mass = [
            sum(measure(wrapper, prepared, omega([region], prepared.token_map), (), rows).ram[head] for head in heads)
            for _, region in pairs
        ]
        expected = [pairs[index][0] for index in sorted(range(len(pairs)), key=lambda index: -mass[index])]
        assert found[kind] == expected
        assert len(set(mass)) > 1


def test_a_run_finds_heads_and_ranks_by_them(tmp_path: Path, bench: Callable[..., Any]) -> None:
    """Detection on a fifth of the documents, ranking on the others, through the command line."""
    lines = [
        {**LINE, "doc_name": f"{name}.pdf", "questions": [QUESTION, QUESTION | {"page_id": [0]}]} for name in "abcdefgh"
    ]
    folder = write(tmp_path / "data", lines, table=False)
    flags = ("--tasks", TASK, "--data-dir", folder)
    detected = bench("detect", *flags, out="detect")
    assert detected.code == 0, detected.said
    ended = bench("dense", *flags, "--heads", detected.folder / "heads.tsv")
    assert ended.code == 0, ended.said
    arm = ended.record["tasks"][TASK]["arms"]["dense"]
    assert next(iter(arm["metrics"])) == "page_recall_1"
    assert arm["metrics"]["page_recall_3"]["value"] == 1, "there are three pages"
    assert {row["cluster"] for row in ended.rows}.isdisjoint({row["cluster"] for row in detected.rows})
    assert all(len(json.loads(row["prediction"])["pages"]) == 3 for row in ended.rows)
    assert ended.record["run"]["settings"]["ranking"]["heads"] == "10%"
    assert ended.record["run"]["heads"]["where"].endswith("heads.tsv")
    refusal = bench("ablate", *flags, "--heads", detected.folder / "heads.tsv", out="ablate").refusal
    assert "expected --mode dense" in refusal


def spoil(folder: Path, name: str) -> None:
    file = folder / "MMDocIR/MMDocIR_annotations.jsonl"
    line = LINE | {"questions": [QUESTION]}
    if name == "column":
        file.write_text(json.dumps({key: line[key] for key in line if key != "questions"}))
    elif name == "question":
        file.write_text(json.dumps(LINE | {"questions": [{k: QUESTION[k] for k in QUESTION if k != "layout_mapping"}]}))
    elif name == "type":
        file.write_text(json.dumps(line | {"page_indices": "0-2"}))
    elif name == "boxes":
        boxes = [QUESTION["layout_mapping"][0] | {"bbox": "10 20 60 120"}]
        file.write_text(json.dumps(LINE | {"questions": [QUESTION | {"layout_mapping": boxes}]}))
    elif name == "media":
        (folder / "MMDocIR/documents/a.pdf").unlink()
    elif name == "broken media":
        (folder / "MMDocIR/documents/a.pdf").write_bytes(b"%PDF-1.4 cut")
    elif name == "empty":
        file.write_bytes(b"")
    elif name == "not UTF-8":
        file.write_bytes(json.dumps(line).encode().replace(b"Which", b"Wh\xe9ch"))
    elif name == "not JSON":
        file.write_text("doc_name,domain\na.pdf,News\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("column", "none of 1 rows can be used"),
        ("question", "none of 1 rows can be used, 1 of them so: doc_to_target: core_mmdocir.target: KeyError"),
        ("type", "none of 1 rows can be used, 1 of them so: media: core_mmdocir.media: ValueError"),
        ("boxes", "none of 1 rows can be used, 1 of them so: evidence: core_mmdocir.evidence: "),
        ("media", "a.pdf: not a readable PDF (No such file or directory)"),
        ("broken media", "a.pdf: not a readable PDF"),
        ("empty", "no rows in"),
        ("not UTF-8", "expected UTF-8 text, got"),
        ("not JSON", "none of 2 rows can be used"),
    ],
)
def test_spoilt_files_are_refused_in_one_line(
    tmp_path: Path, refused: Callable[..., str], name: str, said: str
) -> None:
    assert not spec()._for_detection({"doc_name": "a.pdf"}, 0.2), "the document is among those that are scored"
    spoil(own(tmp_path), name)
    assert said in refused(TASK, tmp_path)


def test_a_spoilt_table_of_layouts_is_the_failure_of_its_samples(tmp_path: Path) -> None:
    [sample] = samples_of(own(tmp_path))
    table = tmp_path / "MMDocIR/MMDocIR_layouts.parquet"
    whole = pq.read_table(table)
    for spoilt in (whole.drop_columns(["bbox"]), whole.set_column(0, "doc_name", pa.array(["b.pdf"] * 4))):
        pq.write_table(spoilt, table)
        with pytest.raises(SampleError, match=r"ranking: core_mmdocir\.candidates"):
            spec().candidates(sample)
    table.write_bytes(b"")
    with pytest.raises(SampleError, match=r"ranking: core_mmdocir\.candidates"):
        spec().candidates(sample)


def test_absent_files_say_what_to_get(tmp_path: Path, refused: Callable[..., str]) -> None:
    for line in (refused(TASK, None), refused(TASK, tmp_path)):
        for part in ("doc_pdfs.rar", "layouts.parquet", "1.1 GB", "CC BY-NC 4.0", "--data-dir", "folder MMDocIR"):
            assert part in line


def test_domains_weigh_alike_in_macro(genuine: tuple[list[dict[str, Any]], Path]) -> None:
    domains = Counter(sample.doc["domain"] for sample in samples_of(genuine[1]))
    assert len(domains) == 8
    assert set(spec().core["groups"].values()) == {"domain"}
    assert len(spec().core["groups"]) == 9
