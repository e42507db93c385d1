"""A user's own photo, video and document page, asked about through a task file of five lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Bench = Callable[..., Any]
YAML = """\
task: mine
dataset_path: mine.jsonl
generation_kwargs: {max_new_tokens: 3}
metric_list:
  - metric: exact_match
"""
FLAGS = ("--max-pixels", "32768", "--frames", "4")


@pytest.fixture
def mine(genuine_data: Path, tmp_path: Path) -> Path:
    media = genuine_data / "media"
    rows: list[dict[str, Any]] = [
        {"id": "photo", "image": str(media / "coco_000000000785.jpg")},
        {"id": "film", "video": str(media / "vid_bigbuckbunny.mp4")},
        {"id": "paper", "pdf": str(media / "doc_4_pages.pdf"), "page": 3},
    ]
    full = [{**row, "question": "What is shown here?", "answer": "it"} for row in rows]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in full))
    (tmp_path / "mine.yaml").write_text(YAML)
    return tmp_path / "mine.yaml"


def test_three_questions_on_a_photo_a_film_and_a_page(bench: Bench, mine: Path) -> None:
    ran = bench("dense", "--tasks", mine, *FLAGS)
    assert ran.code == 0
    rows = {row["id"]: row for row in ran.rows}
    assert list(rows) == ["photo", "film", "paper"]
    assert all(row["failure"] is None and isinstance(row["prediction"], str) for row in rows.values())
    assert all(row["tokens"]["visual"] > 0 for row in rows.values())
    assert (rows["photo"]["frames"], rows["paper"]["frames"]) == ([[]], [[]])
    (frames,) = rows["film"]["frames"]
    assert len(frames) == 4
    assert frames == sorted(set(frames))
    assert 0 <= frames[0] < frames[-1] < 132
    assert ran.record["tasks"]["mine"]["arms"]["dense"]["n_scored"] == 3


def test_one_missing_file_is_one_failure_that_names_it(bench: Bench, mine: Path) -> None:
    lines = mine.parent / "mine.jsonl"
    lines.write_text(lines.read_text().replace("vid_bigbuckbunny", "vid_not_there"))
    ran = bench("dense", "--tasks", mine, *FLAGS)
    assert ran.code == 0
    assert [row["id"] for row in ran.rows if row.get("prediction") is not None] == ["photo", "paper"]
    (failed,) = [row for row in ran.rows if row["failure"] is not None]
    assert (failed["id"], "vid_not_there.mp4" in failed["failure"]) == ("film", True)
    assert ran.record["tasks"]["mine"]["n_failed"] == 1


def test_broken_files_are_failures_that_name_them(bench: Bench, mine: Path, genuine_data: Path) -> None:
    media = genuine_data / "media"
    broken = [
        ("image", "img_broken.png"),
        ("video", "vid_zero_bytes.webm"),
        ("video", "vid_no_streams.mp4"),
        ("video", "audio_only.mp3"),
        ("pdf", "doc_password.pdf"),
        ("pdf", "doc_zero_bytes.pdf"),
    ]
    rows = [{"id": name, kind: str(media / name), "question": "What?", "answer": "it"} for kind, name in broken]
    rows.append({"id": "good", "image": str(media / "img_cmyk.jpg"), "question": "What?", "answer": "it"})
    (mine.parent / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = bench("dense", "--tasks", mine, *FLAGS)
    assert ran.code == 0
    for row in ran.rows[:-1]:
        assert row["failure"] is not None, row["id"]
        assert row["id"] in row["failure"]
    assert ran.rows[-1]["failure"] is None
