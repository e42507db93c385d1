"""What a prompt is made of here: one row of our own for every real data set, in its files' schema, and models of every
family that have no weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pypdfium2
import pytest
import torch
from PIL import Image

from core_bench.bundled.clip import FPS
from core_bench.bundled.mp4 import write_mp4
from core_bench.model_wrappers.base import ModelWrapper
from core_bench.registry import MODELS, model_class
from core_bench.tasks.core_mlvu import FOLDERS

SECONDS = 4
FRAMES = SECONDS * FPS
SRT = """\
1
00:00:00,000 --> 00:00:01,000
<font color="white" size=".72c">the first words</font>

2
00:00:03,500 --> 00:00:09,000
<font color="white" size=".72c">the last words</font>
"""


@pytest.fixture(scope="session")
def wrappers() -> dict[str, ModelWrapper]:
    """Family -> the bundled architecture with its processor; the model is on torch's meta device and holds nothing."""
    found = {}
    for family in MODELS:
        architecture = import_module(f"core_bench.bundled.architectures.{family}")
        with torch.device("meta"):
            model = architecture.build_model()
        found[family] = model_class(family)(model, architecture.build_processor())
    return found


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for --data-dir with all real data sets, a row or two each; generated ones are made there too."""
    root = tmp_path_factory.mktemp("data")
    write_refcocog(root / "RefCOCOg")
    write_vidstg(root / "VidSTG")
    write_mmdocir(root / "MMDocIR")
    write_mmlongbench(root / "MMLongBench")
    write_mmlongbench_doc(root / "MMLongBench-Doc")
    write_mlvu(root)
    write_videomme(root / "Video-MME")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORE_BENCH_CACHE", str(root / "cache"))  # where media of Parquet files go
        yield root


def placed(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_picture(path: Path, width: int, height: int) -> Path:
    Image.new("RGB", (width, height), (90, 120, 40)).save(placed(path))
    return path


def write_clip(path: Path) -> None:
    write_mp4(placed(path), np.random.default_rng(0).integers(0, 256, (SECONDS, 64, 64, 3), dtype=np.uint8))


def write_pdf(path: Path, pages: int) -> None:
    with pypdfium2.PdfDocument.new() as document:
        for _ in range(pages):
            document.new_page(100, 140)
        document.save(placed(path))


def write_json(path: Path, content: Any) -> None:
    placed(path).write_text(json.dumps(content), encoding="utf-8")


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), placed(path))


def write_refcocog(root: Path) -> None:
    name = "COCO_train2014_000000000785_442619.jpg"
    row = {
        "question_id": "442619",
        "image": {"bytes": write_picture(root / "any.jpg", 640, 425).read_bytes(), "path": name},
        "question": "Please carefully observe the area circled in the image and come up with a caption for the area.",
        "answer": ["the skier", "a woman in red"],
        "bbox": [280.0, 44.0, 218.0, 346.0],
        "file_name": name,
    }
    write_table(root / "data/test-00000-of-00001.parquet", [row])


def write_vidstg(root: Path) -> None:
    moment = {"begin_fid": 2, "end_fid": FRAMES // 2}
    record = {
        "vid": "1001", "fps": FPS, "frame_count": FRAMES, "width": 64, "height": 64, "temporal_gt": moment,
        "used_segment": {"begin_fid": 0, "end_fid": FRAMES - 1}, "subject/objects": [{"tid": 0, "category": "dog"}],
        "captions": [{"description": "a dog watches a cat.", "type": "subject", "target_id": 0}], "questions": [],
    }  # fmt: skip
    write_json(root / "annotations/test_annotations.json", [record])
    write_clip(root / "validation/video/0000/1001.mp4")
    box = {"xmin": 10, "ymin": 20, "xmax": 29, "ymax": 59}
    write_json(root / "validation/0000/1001.json", {"trajectories": [[{"tid": 0, "bbox": box}]] * FRAMES})


def write_mmdocir(root: Path) -> None:
    layout = {"page": 1, "page_size": [100.0, 140.0], "bbox": [10, 20, 60, 120]}
    question = {"Q": "Which color has the bar?", "A": "red", "page_id": [1], "type": "['Chart']"}
    line = {"doc_name": "a.pdf", "domain": "News", "page_indices": [0, 2], "layout_indices": [0, 3]}
    write_json(root / "MMDocIR_annotations.jsonl", line | {"questions": [question | {"layout_mapping": [layout]}]})
    write_pdf(root / "doc_pdfs/a.pdf", 3)


def write_mmlongbench(root: Path) -> None:
    pages = ["other/other_page4.jpg", "a long report/a long report_page7.jpg"]
    row = {
        "id": "q1", "doc_name": "a long report.pdf", "page_list": pages, "ans_page_list": [7],
        "question": "Which color has the bar?", "answer": "red", "answer_format": "String",
    }  # fmt: skip
    for length in ("K8", "K16", "K32", "K64", "K128"):
        write_json(root / f"mmlb_data/documentQA/mmlongdoc_{length}.jsonl", row)
    for page in pages:
        write_picture(root / "mmlb_image" / page, 200, 280)


def write_mmlongbench_doc(root: Path) -> None:
    row = {
        "doc_id": "a.pdf", "doc_type": "Guidebook", "question": "Which color has the bar?", "answer": "red",
        "evidence_pages": "[2]", "evidence_sources": "['Figure']", "answer_format": "Str",
    }  # fmt: skip
    write_json(root / "data/samples.json", [row])
    write_pdf(root / "data/documents/a.pdf", 3)


def write_mlvu(root: Path) -> None:
    """The development set and the test set."""
    row = {
        "video": "a.mp4", "duration": SECONDS, "question": "What is red?", "answer": "a hat",
        "candidates": ["a car", "a bag", "a hat", "a cat"], "question_type": "plotQA",
    }  # fmt: skip
    for kind, folder in FOLDERS.items():
        write_json(root / f"MLVU/json/{folder}.json", [row | {"question_type": kind}])
        write_clip(root / f"MLVU/video/{folder}/a.mp4")
    six = row | {"candidates": ["a car", "a bag", "a hat", "a cat", "a dog", "a door"], "question_id": "PQA_0"}
    write_json(root / "MLVU_Test/test-ground-truth/test_mcq_gt.json", [six])
    write_clip(root / "MLVU_Test/video/a.mp4")


def write_videomme(root: Path) -> None:
    row = {
        "video_id": "001", "duration": "short", "domain": "Film & Television", "sub_category": "Animation",
        "url": "https://example.org/watch?v=abc", "videoID": "abc", "question_id": "001-1", "answer": "C",
        "task_type": "OCR Problems", "question": "What is written on the board?",
        "options": ["A. Red.", "B. Blue.", "C. Green.", "D. Black."],
    }  # fmt: skip
    write_table(root / "videomme/test-00000-of-00001.parquet", [row])
    write_clip(root / "data/abc.mp4")
    placed(root / "subtitle/abc.srt").write_text(SRT, encoding="utf-8")
