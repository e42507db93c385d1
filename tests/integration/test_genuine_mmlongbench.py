"""`core_mmlongbench` on rows of our own in the documented schema: no genuine ones are at hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from core_bench.registry import known_tasks
from core_bench.schema import Region, Sample
from core_bench.taskspec import FailedSample, TaskSpec

TASK = "core_mmlongbench"
LENGTHS = ("K8", "K16", "K32", "K64", "K128")
ROW: dict[str, Any] = {
    "id": "q1", "doc_name": "report.pdf", "page_list": ["other/other_page4.jpg", "report/report_page7.jpg",
    "report/report_page3.jpg", "report/report_page12.jpg"], "ans_page_list": [12, 7], "question": "Which color?",
    "answer": "red", "answer_format": "String",
}  # fmt: skip


@cache
def spec() -> TaskSpec:
    return known_tasks()[TASK]


def write(folder: Path, rows: list[Any], lengths: tuple[str, ...] = LENGTHS, media: bool = True) -> Path:
    data = folder / "MMLongBench/mmlb_data/documentQA"
    data.mkdir(parents=True, exist_ok=True)
    for length in lengths:
        (data / f"mmlongdoc_{length}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    for page in ROW["page_list"] if media else []:
        file = folder / "MMLongBench/mmlb_image" / page
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 60)).save(file)
    return folder


def samples_of(folder: Path, split: str = "all", said: list[str] | None = None) -> list[Sample]:
    found = spec().samples(split, data_dir=str(folder), report=None if said is None else said.append)
    assert not [sample for sample in found if isinstance(sample, FailedSample)], found
    return [sample for sample in found if isinstance(sample, Sample)]


def test_every_length_is_a_part_of_the_whole(tmp_path: Path) -> None:
    folder = write(tmp_path, [ROW])
    samples = samples_of(folder)
    assert [sample.id for sample in samples] == [f"mmlongdoc_{length}-q1" for length in LENGTHS]
    assert {sample.cluster for sample in samples} == {"report.pdf"}
    for length, sample in zip(LENGTHS, samples, strict=True):
        assert samples_of(folder, length) == [sample]
        scores = spec().score(sample, "Answer: red").scores
        assert scores == {"doc_qa": 1.0, f"doc_qa_{length}": 1.0}
    assert spec().score(samples[0], "Answer:").unparsed


def test_pages_of_evidence_are_those_of_the_original_document(tmp_path: Path) -> None:
    said: list[str] = []
    rows = [
        ROW,
        ROW | {"id": "q2", "ans_page_list": [3, 99]},  # page 99 is not shown
        ROW | {"id": "q3", "ans_page_list": [4]},  # that of another document
        ROW | {"id": "q4", "ans_page_list": [], "answer": "Not answerable", "answer_format": "None"},
        ROW | {"id": "q5", "ans_page_list": [3, 3], "doc_name": "report"},
    ]
    samples = samples_of(write(tmp_path, rows, ("K8",)), "K8", said)
    assert [sample.evidence for sample in samples] == [
        (Region(medium=1), Region(medium=3)), (), (), (), (Region(medium=2),),
    ]  # fmt: skip
    assert said == [
        "core_mmlongbench: defective records among the first 5 rows: "
        "2 name a page of the answer that is not shown (no evidence)"
    ]
    for sample in samples:
        assert [Path(medium.path).name for medium in sample.media] == [Path(page).name for page in ROW["page_list"]]
        assert all(Path(medium.path).is_file() for medium in sample.media)
        assert sample.question in sample.prompt
        assert "Based on Document report" in sample.prompt


def test_all_formats_are_scored(tmp_path: Path) -> None:
    kinds = [("Integer", 19), ("Float", "18.29%"), ("List", '["red", "blue"]'), ("None", "Not answerable")]
    kinds.append(("Integer", "19"))
    rows = [ROW | {"id": str(n), "answer_format": kind, "answer": answer} for n, (kind, answer) in enumerate(kinds)]
    samples = samples_of(write(tmp_path, rows, ("K8",)), "K8")
    replies = ["There are 19.", "0.1829", "blue, red", "Answer: Not answerable.", "20"]
    found = [spec().score(sample, reply).scores["doc_qa"] for sample, reply in zip(samples, replies, strict=True)]
    assert found == [1, 1, 1, 1, 0]


def test_documents_are_parted_for_detection(tmp_path: Path) -> None:
    rows = [ROW | {"id": name, "doc_name": f"{name}.pdf"} for name in "abcdefghijkl"]
    folder = write(tmp_path, rows)
    parts = {split: {sample.cluster for sample in samples_of(folder, split)} for split in ("detect", "eval", "all")}
    assert parts["detect"] | parts["eval"] == parts["all"]
    assert parts["detect"]
    assert not parts["detect"] & parts["eval"]


def spoil(folder: Path, name: str) -> None:
    for file in (folder / "MMLongBench/mmlb_data/documentQA").glob("*.jsonl"):
        if name == "column":
            file.write_text(json.dumps({key: ROW[key] for key in ROW if key != "page_list"}))
        elif name == "type":
            file.write_text(json.dumps(ROW | {"page_list": "report/report_page7.jpg"}))
        elif name == "pages":
            file.write_text(json.dumps(ROW | {"ans_page_list": ["7"]}))
        elif name == "empty":
            file.write_bytes(b"")
        elif name == "not UTF-8":
            file.write_bytes(json.dumps(ROW).encode().replace(b"Which", b"Wh\xe9ch"))
        elif name == "cut short":
            file.write_bytes(file.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("column", "none of 5 rows can be used, 5 of them so: media: core_mmlongbench.media: KeyError: 'page_list'"),
        ("type", "none of 5 rows can be used, 5 of them so: media: core_mmlongbench.media: ValueError"),
        ("pages", "none of 5 rows can be used, 5 of them so: evidence: core_mmlongbench.evidence: ValueError"),
        ("media", "none of 4 media files is there, among them "),
        ("empty", "no rows in"),
        ("not UTF-8", "expected UTF-8 text, got"),
        ("cut short", "none of 5 rows can be used"),
    ],
)
def test_spoilt_files_are_refused_in_one_line(
    tmp_path: Path, refused: Callable[..., str], name: str, said: str
) -> None:
    spoil(write(tmp_path, [ROW], media=name != "media"), name)
    assert said in refused(TASK, tmp_path)


def test_absent_files_say_what_to_get(tmp_path: Path, refused: Callable[..., str]) -> None:
    for line in (refused(TASK, None), refused(TASK, tmp_path)):
        for part in ("mmlb_data.tar.gz", "ZhaoweiWang/MMLongBench", "MIT", "--data-dir", "folder MMLongBench"):
            assert part in line
    one_missing = write(tmp_path, [ROW], LENGTHS[:-1])
    assert "mmlongdoc_K128.jsonl" in refused(TASK, one_missing)
