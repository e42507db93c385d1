"""`core_vidstg` on the authors' records, with VidOR boxes and video files of our own: no genuine ones are at hand.

The boxes are in VidOR's documented schema. The video files stay unread here: names and spans are what counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from core_bench.registry import known_tasks
from core_bench.schema import Region, Sample
from core_bench.taskspec import FailedSample, TaskSpec

TASK = "core_vidstg"
BOX = {"xmin": 10, "ymin": 20, "xmax": 29, "ymax": 59}  # inclusive corners: 20 wide, 40 high
RECORD: dict[str, Any] = {
    "vid": "1001", "fps": 10, "frame_count": 100, "width": 200, "height": 100,
    "used_segment": {"begin_fid": 0, "end_fid": 99}, "subject/objects": [{"tid": 0, "category": "dog"}],
    "used_relation": {"subject_tid": 0, "object_tid": 0, "predicate": "watch", "begin_fid": 20, "end_fid": 60},
    "temporal_gt": {"begin_fid": 20, "end_fid": 60},
    "captions": [{"description": "a dog watches.", "type": "object", "target_id": 0}],
    "questions": [{"description": "what watches?", "type": "object", "target_id": 0}],
}  # fmt: skip


@cache
def spec() -> TaskSpec:
    return known_tasks()[TASK]


def write(folder: Path, records: Any, split: str = "test", *, boxes: bool = True, videos: bool = True) -> Path:
    root = folder / "VidSTG"
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / f"annotations/{split}_annotations.json").write_text(json.dumps(records), encoding="utf-8")
    of_video = {record["vid"]: record for record in records if isinstance(record, dict) and "vid" in record}
    for vid, record in of_video.items():
        place = f"{int(vid) % 7:04d}/{vid}"  # VidOR's folders, which the records do not name
        if videos:
            (root / f"validation/video/{place}.mp4").parent.mkdir(parents=True, exist_ok=True)
            (root / f"validation/video/{place}.mp4").write_bytes(vid.encode())
        if boxes:
            things = [{"tid": thing["tid"], "bbox": BOX, "generated": 0} for thing in record["subject/objects"]]
            (root / f"validation/{place}.json").parent.mkdir(parents=True, exist_ok=True)
            content = {"trajectories": [things] * record["frame_count"]}
            (root / f"validation/{place}.json").write_text(json.dumps(content))
    return folder


def samples_of(folder: Path, split: str = "test", said: list[str] | None = None) -> list[Sample]:
    found = spec().samples(split, data_dir=str(folder), report=None if said is None else said.append)
    assert not [sample for sample in found if isinstance(sample, FailedSample)]
    return [sample for sample in found if isinstance(sample, Sample)]


@pytest.fixture(scope="module")
def genuine(genuine_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[Any]], Path]:
    folder, records = tmp_path_factory.mktemp("vidstg"), {}
    for split in ("test", "val"):
        file = genuine_data / f"annotations/vidstg/{split}_annotations.slice.json"
        records[split] = json.loads(file.read_text(encoding="utf-8"))
        write(folder, records[split], split)
    return records, folder


@pytest.mark.parametrize(("split", "n", "kinds"), [("test", 30, (30, 39)), ("val", 15, (15, 23))])
def test_every_sentence_becomes_a_sample_and_no_record_is_defective(
    genuine: tuple[dict[str, list[Any]], Path], split: str, n: int, kinds: tuple[int, int]
) -> None:
    records, folder = genuine
    said: list[str] = []
    samples = samples_of(folder, split, said)
    assert said == [], "a moment that ends one past the segment is no defect"
    assert len(records[split]) == n
    found = Counter(sample.doc["kind"] for sample in samples)
    assert (found["declarative"], found["interrogative"]) == kinds
    assert len({sample.id for sample in samples}) == len(samples) == sum(kinds)
    assert {sample.cluster for sample in samples} == {record["vid"] for record in records[split]}
    assert all(sample.question in sample.prompt for sample in samples)


def test_the_quirks_of_the_slice(genuine: tuple[dict[str, list[Any]], Path]) -> None:
    records = genuine[0]["test"] + genuine[0]["val"]
    assert {record["fps"] for record in records} >= {10, 15, 24, 25, 29.97}
    ends = [record["temporal_gt"]["end_fid"] - record["used_segment"]["end_fid"] for record in records]
    assert max(ends) == 1
    assert ends.count(1) == 16
    assert any(record["height"] > record["width"] for record in records)
    assert any(record["width"] % 2 or record["height"] % 2 for record in records)
    assert {len(record["questions"]) for record in records} == {0, 1, 2}
    assert any(record["used_segment"]["end_fid"] != record["frame_count"] - 1 for record in records)
    for split in ("test", "val"):
        for sample in samples_of(genuine[1], split):
            doc, [medium] = sample.doc, sample.media
            assert medium.span is not None
            assert medium.span == (doc["used_segment"]["begin_fid"], doc["used_segment"]["end_fid"] + 1)
            assert 0 <= medium.span[0] < medium.span[1] <= doc["frame_count"]
            frames = [-1 if region.frame is None else region.frame for region in sample.evidence]
            assert frames == list(range(doc["temporal_gt"]["begin_fid"], doc["temporal_gt"]["end_fid"]))
            assert medium.span[0] <= frames[0] <= frames[-1] < medium.span[1], "the last frame is in the segment"
            assert sample.evidence[0].box == (10, 20, 30, 60), "inclusive corners end a pixel further"


def test_the_true_tube_scores_1(genuine: tuple[dict[str, list[Any]], Path]) -> None:
    for sample in samples_of(genuine[1]):
        answer = f"{sample.target} [10, 20, 30, 60]"
        found = spec().score(sample, answer, boxes="pixel")
        kind = sample.doc["kind"]
        assert not found.unparsed
        assert found.scores["m_tiou"] == pytest.approx(1, abs=1e-3), "the answer has six digits"
        assert found.scores["m_viou"] >= 0.9, (sample.id, "the last of few frames may fall to rounding of the answer")
        assert found.scores["viou_0.5"] == found.scores["tiou_0.5"] == 1
        other = {"declarative": "interrogative", "interrogative": "declarative"}[kind]
        assert {f"m_viou_{kind}", f"m_tiou_{kind}"} <= found.scores.keys()
        assert not [name for name in found.scores if name.endswith(other)]


def test_scores_of_one_tube(tmp_path: Path) -> None:
    declarative, interrogative = samples_of(write(tmp_path, [RECORD]))
    assert [sample.doc["kind"] for sample in (declarative, interrogative)] == ["declarative", "interrogative"]
    assert declarative.target == "2-6"
    half = spec().score(declarative, "2-6 [50, 200, 150, 400]", boxes="thousandths").scores  # the upper half of the box
    assert (half["m_tiou"], half["m_viou"], half["viou_0.3"], half["viou_0.5"]) == (1, 0.5, 1, 0), (
        "0.5 is not above 0.5"
    )
    assert (half["m_viou_declarative"], "m_viou_interrogative" in half) == (0.5, False)
    late = spec().score(interrogative, "4-8 [10, 20, 30, 60]", boxes="pixel").scores
    assert late["m_tiou"] == pytest.approx(1 / 3)
    assert late["m_viou"] == pytest.approx(10 / 30)
    assert (late["m_viou_interrogative"], late["viou_0.3_interrogative"]) == (late["m_viou"], 1)
    times_only = spec().score(declarative, "2-6", boxes="pixel")
    assert (times_only.scores["tiou_0.5"], times_only.scores["m_viou"], times_only.unparsed) == (1, 0, False)
    nothing = spec().score(declarative, "a dog", boxes="pixel")
    assert (nothing.scores["m_tiou"], nothing.scores["m_viou"], nothing.unparsed) == (0, 0, True)


def test_defects_are_told_by_kind_and_cost_no_more_than_they_must(tmp_path: Path) -> None:
    outside = RECORD | {"vid": "1002", "temporal_gt": {"begin_fid": 20, "end_fid": 101}}
    other = RECORD | {"vid": "1003", "captions": [RECORD["captions"][0] | {"target_id": 7}], "questions": []}
    said: list[str] = []
    folder = write(tmp_path, [RECORD, other])
    samples = samples_of(folder, "test", said)
    assert said == [
        "core_vidstg: defective records among the first 3 rows: "
        "1 ask for an object that the video does not have (no evidence, no vIoU)"
    ]
    assert [bool(sample.evidence) for sample in samples] == [True, True, False]
    assert "m_viou" not in spec().score(samples[2], "2-6 [10, 20, 30, 60]", boxes="pixel").scores
    said.clear()
    found = spec().samples("test", data_dir=str(write(tmp_path, [RECORD, outside])), report=said.append)
    assert [type(sample).__name__ for sample in found] == ["Sample", "Sample", "FailedSample", "FailedSample"]
    assert "2 have a moment outside their segment (not scored)" in said[0]


def test_without_boxes_times_are_scored_and_it_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    samples = samples_of(write(tmp_path, [RECORD], boxes=False), "test", said)
    assert "2 lack VidOR's boxes (no evidence, no vIoU)" in said[0]
    scores = spec().score(samples[0], "2-6 [10, 20, 30, 60]", boxes="pixel").scores
    assert scores["tiou_0.5"] == 1
    assert not [name for name in scores if "viou" in name]
    assert samples[0].evidence == ()


def test_an_object_that_a_frame_does_not_show_is_absent_there(tmp_path: Path) -> None:
    folder = write(tmp_path, [RECORD])
    [file] = (folder / "VidSTG/validation").glob("0*/1001.json")
    content = json.loads(file.read_text())
    content["trajectories"][25] = []
    file.write_text(json.dumps(content))
    sample = samples_of(folder)[0]
    assert Region(medium=0, box=(10, 20, 30, 60), frame=24) in sample.evidence
    assert 25 not in {region.frame for region in sample.evidence}


def spoil(folder: Path, name: str) -> None:
    file = folder / "VidSTG/annotations/test_annotations.json"
    if name == "column":
        file.write_text(json.dumps([{key: RECORD[key] for key in RECORD if key != "temporal_gt"}]))
    elif name == "type":
        file.write_text(json.dumps([RECORD | {"fps": "ten"}]))
    elif name == "sentences":
        file.write_text(json.dumps([RECORD | {"captions": "a dog watches."}]))
    elif name == "media":
        for path in (folder / "VidSTG/validation/video").rglob("*.mp4"):
            path.unlink()
    elif name == "boxes":
        for path in (folder / "VidSTG/validation").glob("0*/*.json"):
            path.write_text('{"boxes": []}')
    elif name == "empty":
        file.write_bytes(b"")
    elif name == "not UTF-8":
        file.write_bytes(json.dumps([RECORD]).encode().replace(b"watches", b"w\xe9tches"))
    elif name == "cut short":
        file.write_bytes(file.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("column", "none of 2 rows can be used, 2 of them so: doc_to_target: core_vidstg.target: KeyError"),
        ("type", "none of 2 rows can be used, 2 of them so: doc_to_target: core_vidstg.target: ValueError"),
        ("sentences", "process_docs: core_vidstg.rows: TypeError"),
        ("media", "none of 1 media files is there, among them "),
        ("boxes", "none of 2 rows can be used, 2 of them so: evidence: core_vidstg.evidence: KeyError: 'trajectories'"),
        ("empty", "no rows in"),
        ("not UTF-8", "expected UTF-8 text, got"),
        ("cut short", "expected a JSON array of rows, got"),
    ],
)
def test_spoilt_files_are_refused_in_one_line(
    tmp_path: Path, refused: Callable[..., str], name: str, said: str
) -> None:
    spoil(write(tmp_path, [RECORD]), name)
    assert said in refused(TASK, tmp_path)


def test_absent_files_say_what_to_get(tmp_path: Path, refused: Callable[..., str]) -> None:
    for line in (refused(TASK, None), refused(TASK, tmp_path)):
        for part in ("Guaranteer/VidSTG-Dataset", "VidOR", "3.5 GB", "CC BY-SA 4.0", "--data-dir", "folder VidSTG"):
            assert part in line
