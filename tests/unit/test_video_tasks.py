"""The tasks over videos: moments, boxes, options and scores of generated and of genuine records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_bench.errors import SampleError
from core_bench.schema import Region
from core_bench.tasks import core_mlvu, core_videomme, core_vidstg


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3-7", (3, 7)),
        ("3 - 7", (3, 7)),
        ("from 3 to 7.5 seconds", (3, 7.5)),
        ("From second 3 until second 7", (3, 7)),
        ("0:03 - 1:07", (3, 67)),
        ("It starts at 2.5 s and ends at 4 s.", (2.5, 4)),
        ("7-3", None),
        ("3-3", None),
        ("3", None),
        ("", None),
        ("never", None),
        ("3-7 or 8-9", None),
        ("1, 2, 3", None),
    ],
)
def test_moments_are_read(text: str, expected: tuple[float, float] | None) -> None:
    assert core_vidstg.read_moment(text) == expected


moments = st.tuples(st.integers(0, 40), st.integers(1, 30)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(a=moments, b=moments)
def test_temporal_iou_is_that_of_sets(a: tuple[int, int], b: tuple[int, int]) -> None:
    one, two = set(range(*a)), set(range(*b))
    assert core_vidstg.temporal_iou(a, b) == pytest.approx(len(one & two) / len(one | two))


def record(**changes: Any) -> dict[str, Any]:
    gt = {"begin_fid": 20, "end_fid": 60}
    segment = {"begin_fid": 0, "end_fid": 99}
    text = {"description": "a dog runs", "type": "subject", "target_id": 1}
    base = {"vid": "1", "fps": 10.0, "frame_count": 100, "temporal_gt": gt, "used_segment": segment}
    return {**base, "captions": [text], "questions": [{**text, "description": "what runs?"}], **changes}


def test_scores_are_strict_and_apart_for_the_two_kinds() -> None:
    declarative, interrogative = core_vidstg.rows([record()])
    assert (declarative["kind"], interrogative["kind"]) == ("declarative", "interrogative")
    assert declarative["item"] != interrogative["item"]
    half = core_vidstg.results(declarative, ["2-4"])  # 2 of 4 seconds: exactly 0.5, and that is not above it
    assert (half["tiou_0.5"], half["tiou_0.3"], half["m_tiou"], half["unparsed"]) == (0.0, 1.0, 0.5, 0.0)
    assert (half["m_tiou_declarative"], half["m_tiou_interrogative"]) == (0.5, None)
    right = core_vidstg.results(interrogative, ["2-6"])
    assert (right["tiou_0.5"], right["tiou_0.5_interrogative"], right["tiou_0.5_declarative"]) == (1.0, 1.0, None)
    nothing = core_vidstg.results(declarative, ["6-2"])
    assert (nothing["m_tiou"], nothing["unparsed"]) == (0.0, 1.0)
    assert core_vidstg.target(declarative) == "2-6"


def test_the_segment_ends_with_its_last_frame() -> None:
    whole = record(temporal_gt={"begin_fid": 0, "end_fid": 100})
    (medium,) = core_vidstg.media(core_vidstg.rows([whole])[0], Path("nowhere"))
    assert medium.span == (0, 100), "a moment may end where the inclusive segment does"


def test_boxes_are_the_targets_in_the_moment(tmp_path: Path) -> None:
    box = {"xmin": 1, "ymin": 2, "xmax": 10, "ymax": 20}
    frames: list[list[dict[str, Any]]] = [[{"tid": 1, "bbox": box}, {"tid": 0, "bbox": box}] for _ in range(100)]
    frames[30] = [{"tid": 0, "bbox": box}]  # the target is not in this one
    file = tmp_path / "annotation/0/1.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"trajectories": frames}))
    row = core_vidstg.rows([record()])[0]
    found = core_vidstg.evidence(row, tmp_path)
    assert [region.frame for region in found] == [frame for frame in range(20, 60) if frame != 30]
    assert found[0] == Region(medium=0, box=(1.0, 2.0, 11.0, 21.0), frame=20)
    with pytest.raises(ValueError, match="100 frames, the record 90"):
        core_vidstg.evidence({**row, "frame_count": 90}, tmp_path)
    assert core_vidstg.evidence(row, tmp_path / "empty") == []


def test_mlvu_defects() -> None:
    good: dict[str, Any] = {"video": "a.mp4", "question": " What? ", "candidates": [" red", "blue ", "green", "black"]}
    good |= {"answer": "blue", "question_type": "findNeedle"}
    docs: list[dict[str, Any]] = [
        good,
        {**good, "question_type": "plotQA"},
        good,
        {**good, "answer": "pink"},
        dict.fromkeys(good, ""),
    ]
    rows = core_mlvu.rows(docs)
    assert [row["item"] for row in rows] == [
        "findNeedle-a-0",
        "plotQA-a-0",
        "untyped--0",
        "findNeedle-a-1",
        "findNeedle-a-2",
    ]
    first, empty, odd = rows[0], rows[2], rows[4]
    assert (first["question"], first["candidates"]) == ("What?", ["red", "blue", "green", "black"])
    assert core_mlvu.target(first) == "B"
    assert core_mlvu.media(first)[0].path == "video/2_needle/a.mp4"
    for refused in (lambda: core_mlvu.target(odd), lambda: core_mlvu.media(empty)):
        with pytest.raises((ValueError, SampleError)):
            refused()
    assert core_mlvu.results(first, ["(B)"]) == {"m_avg": 1.0, "accuracy": 1.0, "unparsed": 0.0}
    assert core_mlvu.results(first, ["hm"]) == {"m_avg": 0.0, "accuracy": 0.0, "unparsed": 1.0}


def test_videomme_letters() -> None:
    doc = {
        "options": ["A. red", "B. blue", "C. green", "D. black"],
        "answer": "C",
        "question": "Which?",
        "videoID": "x",
    }
    assert core_videomme.prompt(doc).endswith("Which?\nA. red\nB. blue\nC. green\nD. black\nThe best answer is:")
    assert core_videomme.media(doc)[0].path == "data/x.mp4"
    assert core_videomme.results(doc, ["C"]) == {"accuracy": 1.0, "accuracy_answered": 1.0, "unparsed": 0.0}
    assert core_videomme.results(doc, ["green"])["accuracy"] == 1.0
    assert core_videomme.results(doc, ["B."])["accuracy_answered"] == 0.0
    assert core_videomme.results(doc, ["?"]) == {"accuracy": 0.0, "accuracy_answered": None, "unparsed": 1.0}
    with pytest.raises(ValueError, match="expected the letter of one of 4 options"):
        core_videomme.target({**doc, "answer": "E"})


def test_genuine_vidstg(genuine_data: Path) -> None:
    records = [
        found
        for path in sorted((genuine_data / "annotations/vidstg").glob("*annotations*.json"))
        for found in json.loads(path.read_text(encoding="utf-8"))
    ]
    rows = core_vidstg.rows(records)
    assert len(rows) == sum(len(r["captions"]) + len(r["questions"]) for r in records) > len(records)
    assert len({row["item"] for row in rows}) == len(rows)
    for row in rows:
        begin, end = core_vidstg.moment(row)
        (medium,) = core_vidstg.media(row, genuine_data / "annotations/vidstg")
        assert medium.span is not None
        assert medium.span[0] / row["fps"] <= begin < end <= medium.span[1] / row["fps"] + 1e-9
        assert core_vidstg.results(row, [core_vidstg.target(row)])["tiou_0.5"] == 1.0
        assert row["query"] in core_vidstg.prompt(row)


def test_genuine_mlvu(genuine_data: Path) -> None:
    docs = [
        doc
        for path in sorted((genuine_data / "annotations/mlvu").rglob("*.json"))
        for doc in json.loads(path.read_text(encoding="utf-8"))
        if doc.get("question_type") in core_mlvu.FOLDERS and doc.get("candidates")
    ]
    rows = core_mlvu.rows(docs)
    assert len(rows) == len(docs) > 0
    assert len({row["item"] for row in rows}) == len(rows)
    scored = 0
    for row in rows:
        try:
            letter = core_mlvu.target(row)
        except SampleError:
            assert row["candidates"].count(row["answer"]) != 1
            continue
        scored += 1
        assert core_mlvu.results(row, [f"({letter}) {row['answer']}"])["m_avg"] == 1.0
    assert scored > 0.8 * len(rows), "the slices hold most of the data set's defective records"
