"""`core_mmlongbench_doc` on records of the data set itself, and on spoilt copies of its files.

The PDF files are blank ones of our own: the real ones may not be shipped. Their lengths are chosen so that those
records are out of range that are so in the data set.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pypdfium2
import pytest

from core_bench.registry import known_tasks
from core_bench.schema import Region, Sample
from core_bench.taskspec import FailedSample, TaskSpec

TASK = "core_mmlongbench_doc"
LENGTHS = {"PS_2018.01.09_STEM_FINAL.pdf": 100, "san-francisco-11-contents.pdf": 60}
LENGTHS |= {"e639029d16094ea71d964e2fb953952b.pdf": 12, "379f44022bb27aa53efd5d322c7b57bf.pdf": 130}
ROW = {
    "doc_id": "a.pdf", "doc_type": "Guidebook", "question": "Which color?", "answer": "red", "evidence_pages": "[2]",
    "evidence_sources": "['Figure']", "answer_format": "Str",
}  # fmt: skip


@cache
def spec() -> TaskSpec:
    return known_tasks()[TASK]


def write(folder: Path, rows: Any, layout: str = "data/documents", pages: int = 40) -> Path:
    """The data set's folder in `folder`, as the repository (data/documents) or the hub (documents) lays it out."""
    root = folder / "MMLongBench-Doc"
    (root / "data").mkdir(parents=True)
    (root / layout).mkdir(parents=True, exist_ok=True)
    (root / "data/samples.json").write_text(json.dumps(rows), encoding="utf-8")
    for name in {row["doc_id"] for row in rows if isinstance(row, dict) and isinstance(row.get("doc_id"), str)}:
        with pypdfium2.PdfDocument.new() as document:
            for _ in range(LENGTHS.get(name, pages)):
                document.new_page(100, 100)
            document.save(root / layout / name)
    return folder


@pytest.fixture(scope="module")
def genuine(genuine_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    path = genuine_data / "annotations/mmlongbench_doc/samples.slice.json"
    records = json.loads(path.read_text(encoding="utf-8"))
    return records, write(tmp_path_factory.mktemp("mmlongbench_doc"), records)


def samples_of(folder: Path, said: list[str] | None = None) -> list[Sample]:
    found = spec().samples("train", data_dir=str(folder), report=None if said is None else said.append)
    assert not [sample for sample in found if isinstance(sample, FailedSample)]
    return [sample for sample in found if isinstance(sample, Sample)]


def test_every_record_of_the_slice_becomes_a_sample(genuine: tuple[list[dict[str, Any]], Path]) -> None:
    records, folder = genuine
    samples = samples_of(folder)
    assert len(samples) == len(records) == 45
    assert {record["answer_format"] for record in records} == {"Str", "Int", "Float", "List", "None"}
    assert len({sample.id for sample in samples}) == 45
    assert {sample.cluster for sample in samples} == {record["doc_id"] for record in records}
    for sample, record in zip(samples, records, strict=True):
        assert (sample.target, sample.question) == (record["answer"], record["question"])
        assert sample.question in sample.prompt
        assert [medium.page for medium in sample.media] == list(range(min(LENGTHS.get(record["doc_id"], 40), 120)))


def test_the_defects_of_the_slice_are_told_by_kind(genuine: tuple[list[dict[str, Any]], Path]) -> None:
    said: list[str] = []
    samples_of(genuine[1], said)
    [line] = said
    assert line.startswith("core_mmlongbench_doc: defective records among the first 45 rows: ")
    assert set(line.partition("rows: ")[2].split("; ")) == {
        "3 name page 0, pages count from 1 (no evidence)",
        "4 name a page beyond the document (no evidence)",
        "3 have an answer and no page of evidence (no evidence)",
        "2 name a page twice (counted once)",
        "3 name pages out of order (sorted)",
    }


def test_defective_evidence_is_left_out_whole_and_the_rest_counts_from_0(
    genuine: tuple[list[dict[str, Any]], Path],
) -> None:
    records, folder = genuine
    without = []
    for sample, record in zip(samples_of(folder), records, strict=True):
        pages = ast.literal_eval(record["evidence_pages"])
        if sample.evidence:
            assert sample.evidence == tuple(Region(medium=page - 1) for page in sorted(set(pages)))
            continue
        assert not pages or 0 in pages or max(pages) > len(sample.media)
        without.append(record)
    assert sum(record["answer"] != "Not answerable" for record in without) == 9, "3 and 3, and 3 of 4 out of range"
    assert any("1418" in record["evidence_pages"] for record in without)


def test_a_true_answer_scores_1_and_an_answer_of_another_is_no_mistake(
    genuine: tuple[list[dict[str, Any]], Path],
) -> None:
    for sample in samples_of(genuine[1]):
        right = spec().score(sample, str(sample.target))
        assert right.scores["acc"] == 1, sample.doc
        assert not right.unparsed
        assert ("f1_recall" in right.scores) == (sample.target != "Not answerable")


def test_the_record_holds_acc_and_the_official_f1(
    repo_root: Path, tmp_path: Path, dense_record: Callable[..., dict[str, Any]]
) -> None:
    """F1 is no mean over samples: the record works it out of the two means."""
    cases = json.loads((repo_root / "tests/cases/mmlongbench_doc.json").read_text(encoding="utf-8"))["f1"]
    assert len(cases) >= 10
    for number, case in enumerate(cases):
        rows = [
            {**ROW, "answer": answer, "answer_format": "None" if answer == "Not answerable" else "Str"}
            for answer, _ in case["said"]
        ]
        samples = samples_of(write(tmp_path / str(number), rows))
        lines = [
            {"task": TASK, "id": sample.id, "cluster": f"c{n % 3}", "arm": "dense", "draw": None, "failure": None,
             "scores": spec().score(sample, reply).scores}
            for n, (sample, (_, reply)) in enumerate(zip(samples, case["said"], strict=True))
        ]  # fmt: skip
        metrics = dense_record(TASK, "acc", lines)["tasks"][TASK]["arms"]["dense"]["metrics"]
        assert metrics["acc"]["value"] == pytest.approx(case["acc"]), case
        if "f1" in metrics:
            assert metrics["f1"]["value"] == pytest.approx(case["f1"]), case
            low, high = metrics["f1"]["ci95"] or (0, 1)
            assert 0 <= low <= metrics["f1"]["value"] <= high <= 1
        else:
            assert case["f1"] == 0, "no question was answered"


def test_the_record_says_how_answers_were_read(tmp_path: Path, bench: Callable[..., Any]) -> None:
    folder = write(tmp_path / "data", [{**ROW, "evidence_pages": "[0]"}], pages=2)
    ended = bench("dense", "--tasks", TASK, "--data-dir", folder, "--max-new-tokens", "2")
    assert ended.code == 0, ended.said
    assert "rule-based" in ended.record["run"]["settings"]["scoring"][TASK]["notes"]["extraction"]
    [told] = [line for line in ended.said if "defective" in line]
    assert "1 name page 0" in told
    assert next(iter(ended.record["tasks"][TASK]["arms"]["dense"]["metrics"])) == "acc"


@pytest.mark.parametrize("layout", ["data/documents", "documents"])
def test_both_layouts_and_the_folder_itself_are_found(tmp_path: Path, layout: str) -> None:
    folder = write(tmp_path, [ROW], layout, pages=3)
    for place in (folder, folder / "MMLongBench-Doc"):
        [sample] = samples_of(place)
        assert len(sample.media) == 3
        assert all(Path(medium.path).is_file() for medium in sample.media)


def test_no_more_than_120_pages_are_shown(tmp_path: Path) -> None:
    said: list[str] = []
    late, within = {**ROW, "evidence_pages": "[121]"}, {**ROW, "evidence_pages": "[120]"}
    samples = samples_of(write(tmp_path, [late, within], pages=125), said)
    assert [len(sample.media) for sample in samples] == [120, 120]
    assert [sample.evidence for sample in samples] == [(), (Region(medium=119),)]
    assert said == [], "a page that is not shown is no defect of the record"


def spoil(folder: Path, name: str) -> None:
    file = folder / "MMLongBench-Doc/data/samples.json"
    rows = json.loads(file.read_text())
    if name == "column":
        file.write_text(json.dumps([{key: row[key] for key in row if key != "evidence_pages"} for row in rows]))
    elif name == "type":
        file.write_text(json.dumps([{**row, "evidence_pages": [2]} for row in rows]))
    elif name == "media":
        for path in (folder / "MMLongBench-Doc/data/documents").iterdir():
            path.unlink()
    elif name == "broken media":
        for path in (folder / "MMLongBench-Doc/data/documents").iterdir():
            path.write_bytes(b"")
    elif name == "empty":
        file.write_bytes(b"")
    elif name == "no rows":
        file.write_text("[]")
    elif name == "not UTF-8":
        file.write_bytes(json.dumps(rows).encode().replace(b"Which", b"Wh\xff\xfech"))
    elif name == "cut short":
        file.write_bytes(file.read_bytes()[:-20])
    elif name == "object":
        file.write_text(json.dumps({"rows": rows}, indent=1))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "column",
            "none of 2 rows can be used, 2 of them so: evidence: core_mmlongbench_doc.evidence: KeyError: 'evid",
        ),
        ("type", "none of 2 rows can be used, 2 of them so: evidence: core_mmlongbench_doc.evidence: ValueError"),
        ("media", "a.pdf: not a readable PDF (No such file or directory)"),
        ("broken media", "a.pdf: not a readable PDF"),
        ("empty", "no rows in"),
        ("no rows", "no rows in"),
        ("not UTF-8", "expected UTF-8 text, got"),
        ("cut short", "expected a JSON array of rows, got"),
        ("object", "none of"),
    ],
)
def test_spoilt_files_are_refused_in_one_line(
    tmp_path: Path, refused: Callable[..., str], name: str, said: str
) -> None:
    folder = write(tmp_path, [ROW, {**ROW, "question": "Which shape?"}], pages=3)
    spoil(folder, name)
    line = refused(TASK, folder)
    assert said in line
    assert "samples.json" in line


def test_absent_files_say_what_to_get(tmp_path: Path, refused: Callable[..., str]) -> None:
    for line in (refused(TASK, None), refused(TASK, tmp_path)):
        for part in ("135 PDF files", "mayubo2333/MMLongBench-Doc", "CC BY-NC 4.0", "--data-dir", "MMLongBench-Doc"):
            assert part in line
    assert str(tmp_path) in refused(TASK, tmp_path)


def test_one_bad_record_is_that_records_failure(tmp_path: Path) -> None:
    folder = write(tmp_path, [ROW, {**ROW, "question": None}, {**ROW, "evidence_pages": "__import__('os').getcwd()"}])
    found = spec().samples("train", data_dir=str(folder))
    assert [type(sample).__name__ for sample in found] == ["Sample", "FailedSample", "FailedSample"]
