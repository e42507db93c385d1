"""`core_refcocog` on genuine expressions and boxes, in rows of the hub table's schema that are our own.

No genuine row of the table is at hand with its picture: one row's columns are (quoted in a public document), and a
genuine COCO picture with its box. The rows here are put together of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from core_bench.registry import known_tasks
from core_bench.schema import Region, Sample
from core_bench.scoring_boxes import in_pixels, read_box
from core_bench.tasks.core_refcocog import cluster, expressions
from core_bench.taskspec import TaskSpec

TASK = "core_refcocog"
BOX = [280.79, 44.73, 218.7, 346.68]  # of the person in coco_000000000785.jpg
SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        ("question", pa.string()),
        ("answer", pa.list_(pa.string())),
        ("segmentation", pa.list_(pa.float32())),
        ("bbox", pa.list_(pa.float32())),
        ("iscrowd", pa.int8()),
        ("file_name", pa.string()),
    ]
)


@cache
def spec() -> TaskSpec:
    return known_tasks()[TASK]


def row(picture: bytes | None, **changes: Any) -> dict[str, Any]:
    found = {
        "question_id": "442619",
        "image": {"bytes": picture, "path": "COCO_train2014_000000000785_442619.jpg"},
        "question": "Please carefully observe the area circled in the image and come up with a caption for the area.",
        "answer": ["the skier", "a woman in red  "],
        "segmentation": [1.0, 2.0],
        "bbox": BOX,
        "iscrowd": 0,
        "file_name": "COCO_train2014_000000000785_442619.jpg",
    }
    return found | changes


def write(folder: Path, rows: list[dict[str, Any]], split: str = "test", schema: Any = SCHEMA) -> Path:
    (folder / "RefCOCOg/data").mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema=schema)
    pq.write_table(table, folder / f"RefCOCOg/data/{split}-00000-of-00001.parquet")
    return folder


def samples_of(folder: Path, split: str = "test", **options: Any) -> list[Sample]:
    found = spec().samples(split, data_dir=str(folder), **options)
    assert all(isinstance(sample, Sample) for sample in found), found
    return [sample for sample in found if isinstance(sample, Sample)]


@pytest.fixture
def picture(tmp_path: Path) -> bytes:
    file = tmp_path / "any.jpg"
    Image.new("RGB", (640, 425), "white").save(file)
    return file.read_bytes()


def test_a_genuine_picture_and_its_box(genuine_data: Path, tmp_path: Path, cache: Path) -> None:
    content = (genuine_data / "media/coco_000000000785.jpg").read_bytes()
    annotation = json.loads((genuine_data / "annotations/refcocog/coco_785_instances.json").read_text())
    [thing] = annotation["annotations"]
    assert thing["bbox"] == BOX
    one, other = samples_of(write(tmp_path, [row(content, bbox=thing["bbox"])]))
    assert (one.id, other.id) == ("442619-0", "442619-1")
    assert (one.question, other.phrase) == ("the skier", "a woman in red  ")
    assert "circled" not in one.prompt, "the column `question` is a captioning prompt"
    assert one.cluster == other.cluster == "COCO_train2014_000000000785.jpg"
    assert Path(one.media[0].path).read_bytes() == content
    [region] = one.evidence
    x, y, width, height = BOX
    assert region.box == pytest.approx((x, y, x + width, y + height), abs=1e-3)
    with Image.open(one.media[0].path) as opened:
        size = opened.size
    assert size == (annotation["images"][0]["width"], annotation["images"][0]["height"])
    relative = [round(1000 * edge / side) for edge, side in zip(region.box or (), size * 2, strict=True)]
    answer = f'```json\n[{{"bbox_2d": {relative}, "label": "the skier"}}]\n```'
    right = spec().score(one, answer, boxes="thousandths")
    assert (right.scores, right.unparsed) == ({"acc_0.5": 1.0}, False)
    assert spec().score(one, answer, boxes="pixel").scores == {"acc_0.5": 0.0}, "no other reading is tried"
    assert spec().score(one, str(relative[2:] + relative[:2]), boxes="thousandths").unparsed, "inverted"
    assert spec().score(one, "I see a skier.", boxes="thousandths").unparsed


def test_the_genuine_row_that_is_quoted_in_public(
    genuine_data: Path, tmp_path: Path, cache: Path, picture: bytes
) -> None:
    file = genuine_data / "annotations/refcocog/thirdparty_records.jsonl"
    hub, shares, _, pixels = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    quoted = {key: hub[key] for key in ("question_id", "iscrowd", "file_name", "answer", "bbox")}
    samples = samples_of(write(tmp_path, [row(picture, **quoted)]))
    assert [sample.question for sample in samples] == ["guy petting elephant", "foremost person", "green shirt"]
    assert {sample.cluster for sample in samples} == {"COCO_train2014_000000296747.jpg"}
    # 59.05 comes back as the float32 nearest to it
    assert samples[0].evidence[0].box == pytest.approx((59.05, 93.24, 59.05 + 375.02, 93.24 + 362.58), abs=1e-4)
    size = shares["width"], shares["height"]
    read = read_box(str(shares["bbox"]))
    assert read is not None
    expected = [side * of for side, of in zip(shares["bbox"], size * 2, strict=True)]
    assert in_pixels(read, "shares", size) == pytest.approx(expected)
    assert read_box(str(pixels["bbox"])) == tuple(pixels["bbox"])


def test_genuine_expressions_and_names(genuine_data: Path) -> None:
    file = genuine_data / "annotations/refcocog/google_val_expressions.slice.jsonl"
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(found) == 50
    rows = expressions([{**one, "question_id": str(one["ann_id"]), "answer": [one["refexp"]]} for one in found])
    assert [one["expression"] for one in rows] == [one["refexp"] for one in found]
    for one in found:
        assert cluster(one) == f"COCO_train2014_{one['image_id']:012d}.jpg"
        for x, y, width, height in one["all_coco_boxes_in_image_xywh_int_shuffled"]:
            assert read_box(f"[{x}, {y}, {x + width}, {y + height}]") == (x, y, x + width, y + height)


def test_an_object_without_expression_or_area_fails_alone(tmp_path: Path, cache: Path, picture: bytes) -> None:
    rows = [
        row(picture, question_id="1"),
        row(picture, question_id="2", answer=[]),
        row(picture, question_id="3", bbox=[1.0, 2.0, 0.0, 5.0]),
        row(picture, question_id="4", answer=["  ", "a dog"]),
    ]
    found = spec().samples("test", data_dir=str(write(tmp_path, rows)))
    assert {sample.id: isinstance(sample, Sample) for sample in found} == {
        "1-0": True, "1-1": True, "2-0": False, "3-0": False, "3-1": False, "4-0": False, "4-1": True,
    }  # fmt: skip


def test_detection_reads_val_and_the_rest_test(tmp_path: Path, cache: Path, picture: bytes) -> None:
    write(tmp_path, [row(picture, question_id=str(n)) for n in range(3)], "val")
    write(tmp_path, [row(picture, question_id="9")])
    splits = {mode: spec().split_for(mode) for mode in ("detect", "ablate", "dense", "hybrid")}
    assert splits == {"detect": "val", "ablate": "test", "dense": "test", "hybrid": "test"}
    assert len(samples_of(tmp_path, "val")) == 6
    assert [sample.id for sample in samples_of(tmp_path, "val", limit=3)] == ["0-0", "0-1", "1-0"]
    assert samples_of(tmp_path, "test")[0].evidence == samples_of(tmp_path, "val")[0].evidence != (Region(medium=0),)


def test_the_record_says_in_which_coordinates_boxes_were_read(
    tmp_path: Path, picture: bytes, bench: Callable[..., Any]
) -> None:
    folder = write(tmp_path / "data", [row(picture, question_id=str(n)) for n in range(2)])
    ended = bench("dense", "--tasks", TASK, "--data-dir", folder, "--limit", "2", "--max-new-tokens", "2")
    assert ended.code == 0, ended.said
    scoring = ended.record["run"]["settings"]["scoring"][TASK]
    assert scoring["boxes"] == "thousandths"
    assert "one item an expression" in scoring["notes"]["rec"]
    assert [row["unparsed"] for row in ended.rows] == [True, True], "an untrained model names no box"


def spoil(folder: Path, name: str, picture: bytes) -> None:
    file = folder / "RefCOCOg/data/test-00000-of-00001.parquet"
    if name == "column":
        pq.write_table(pq.read_table(file).drop_columns(["bbox"]), file)
    elif name == "type":
        schema = SCHEMA.set(SCHEMA.get_field_index("bbox"), pa.field("bbox", pa.string()))
        write(folder, [row(picture, bbox="280.79, 44.73")], schema=schema)
    elif name == "answers":
        schema = SCHEMA.set(SCHEMA.get_field_index("answer"), pa.field("answer", pa.string()))
        write(folder, [row(picture, answer="the skier")], schema=schema)
    elif name == "media":
        write(folder, [row(None)])
    elif name == "empty":
        file.write_bytes(b"")
    elif name == "no rows":
        write(folder, [])
    elif name == "not UTF-8":
        ends, content = pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")
        broken = pa.Array.from_buffers(pa.string(), 1, [None, ends, content])
        table = pa.Table.from_pylist([row(picture)], schema=SCHEMA)
        pq.write_table(table.set_column(table.column_names.index("file_name"), "file_name", broken), file)
    elif name == "cut short":
        file.write_bytes(file.read_bytes()[:-30])
    elif name == "text":
        file.write_text("question_id,bbox\n1,2\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("column", "none of 2 rows can be used, 2 of them so: doc_to_target: the row has no column 'bbox'"),
        ("type", "none of 2 rows can be used, 2 of them so: evidence: core_refcocog.evidence: ValueError"),
        ("answers", "none of 1 rows can be used, 1 of them so: doc_to_text: core_refcocog.box_prompt: KeyError"),
        ("media", "none of 1 media files is there, among them "),
        ("empty", "expected a Parquet file, got"),
        ("no rows", "no rows in"),
        ("not UTF-8", "expected UTF-8 text, got"),
        ("cut short", "expected a Parquet file, got"),
        ("text", "expected a Parquet file, got"),
    ],
)
def test_spoilt_files_are_refused_in_one_line(
    tmp_path: Path, refused: Callable[..., str], picture: bytes, name: str, said: str
) -> None:
    folder = write(tmp_path, [row(picture)])
    spoil(folder, name, picture)
    assert said in refused(TASK, folder)


def test_absent_files_say_what_to_get(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for line in (refused(TASK, None), refused(TASK, tmp_path)):
        for part in ("test-*.parquet", "lmms-lab/RefCOCOg", "0.8 GB", "CC BY 4.0", "--data-dir", "folder RefCOCOg"):
            assert part in line
