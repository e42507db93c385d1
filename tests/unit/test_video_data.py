"""Generated clips as files: the bytes, the pixels read back, and the annotations against what was drawn."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core_bench.bundled import generate, tubes, videos, words
from core_bench.bundled.architectures.qwen3vl import build_processor
from core_bench.bundled.clip import FPS, MOMENT_SECONDS, make_clip
from core_bench.bundled.mp4 import write_mp4
from core_bench.bundled.videos import Clips, clips
from core_bench.media import VideoInfo, read_frames
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.registry import load_tasks
from core_bench.schema import Sample

SPECS = {
    "vidstg": Clips(21, 3, tubes._SIZES),
    "mlvu": Clips(22, 6, videos.SMALL),
    "videomme": Clips(23, 4, videos.SMALL),
}
DATASETS = {**tubes.DATASETS, **videos.DATASETS}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("videos")
    for name, spec in SPECS.items():
        (root / name).mkdir()
        DATASETS[name].write(root / name, "eval", spec)
    return {name: root / name for name in SPECS}


@pytest.mark.parametrize("name", SPECS)
def test_the_same_seed_gives_the_same_bytes(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    DATASETS[name].write(tmp_path, "eval", SPECS[name])
    again = contents(tmp_path)
    assert again == contents(folders[name])
    assert len([file for file in again if file.endswith(".mp4")]) == SPECS[name].n


def test_a_file_shows_what_was_drawn(tmp_path: Path) -> None:
    clip = make_clip(np.random.default_rng(8), 3, 4, 5, [2, 5, 3])
    write_mp4(tmp_path / "clip.mp4", clip.pixels)
    info = VideoInfo(str(tmp_path / "clip.mp4"))
    assert (info.frame_count, info.fps, info.width, info.height) == (5 * FPS, FPS, 128, 96)
    for number, picture in enumerate(read_frames(str(tmp_path / "clip.mp4"), range(5 * FPS))):
        off = np.abs(np.asarray(picture).astype(int) - clip.pixels[number // FPS])
        assert off.mean() < 4, "compression, and color at half the resolution"
    for track in clip.tracks:
        x0, y0, x1, y1 = (int(edge) for edge in track.boxes[0])
        shown = np.asarray(read_frames(str(tmp_path / "clip.mp4"), [track.first * FPS])[0])[y0:y1, x0:x1].reshape(-1, 3)
        nearest = np.abs(shown.astype(int) - words.COLORS[track.color]).sum(1)
        assert (nearest < 90).mean() > 0.1, f"{track.color} {track.shape} is seen in its color"


def test_odd_sides_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected even sides"):
        write_mp4(tmp_path / "odd.mp4", np.zeros((1, 32, 33, 3), dtype=np.uint8))


def test_vidstg_says_when_and_where(folders: dict[str, Path]) -> None:
    folder = folders["vidstg"]
    records = json.loads((folder / "annotations/test_annotations.json").read_text())
    assert json.loads((folder / "annotations/test_files.json").read_text()) == [record["vid"] for record in records]
    drawn = [clip for _, clip, _ in clips(SPECS["vidstg"], tubes._seconds)]
    for number, (record, clip) in enumerate(zip(records, drawn, strict=True)):
        asked, frames = clip.tracks[0], len(clip.pixels) * FPS
        assert len(clip.pixels) <= MOMENT_SECONDS
        assert 2 <= asked.end - asked.first <= len(clip.pixels) // 2
        assert record["temporal_gt"] == {"begin_fid": asked.first * FPS, "end_fid": asked.end * FPS}
        assert record["used_segment"] == {"begin_fid": 0, "end_fid": frames - 1}
        assert (record["fps"], record["frame_count"]) == (FPS, frames)
        assert (len(record["captions"]), len(record["questions"])) == (1, 1 + number % 2)
        for text in (*record["captions"], *record["questions"]):
            assert words.phrase(asked.shape) in text["description"]
            assert record["subject/objects"][text["target_id"]] == {"tid": text["target_id"], "category": asked.shape}
        boxes = json.loads((folder / f"annotation/0000/{record['vid']}.json").read_text())
        assert len(boxes["trajectories"]) == frames
        seen = {
            (frame, thing["tid"]): tuple(thing["bbox"].values())
            for frame, things in enumerate(boxes["trajectories"])
            for thing in things
        }
        expected = {
            (frame, tid): (x0, y0, x1 - 1, y1 - 1)
            for tid, track in enumerate(clip.tracks)
            for second, (x0, y0, x1, y1) in enumerate(track.boxes, start=track.first)
            for frame in (FPS * second, FPS * second + 1)
        }
        assert seen == expected, "corners are inclusive"


def test_multiple_choice_cannot_be_guessed(folders: dict[str, Path]) -> None:
    rows: list[dict[str, Any]] = [json.loads(line) for line in (folders["videomme"] / "annotations.jsonl").open()]
    asked_seconds = {"videomme": videos._videomme_seconds, "mlvu": videos._mlvu_seconds}
    by_file = {
        name: {f"eval-{number:04d}": clip for number, clip, _ in clips(SPECS[name], asked_seconds[name])}
        for name in asked_seconds
    }
    for row in rows:
        clip = by_file["videomme"][row["videoID"]]
        options = {option[0]: option[3:] for option in row["options"]}
        assert list(options) == ["A", "B", "C", "D"]
        assert options[row["answer"]] == clip.tracks[0].color
        assert len(set(options.values())) == 4
        assert set(options.values()) <= {track.color for track in clip.tracks}, "all four colors are in the clip"
        assert [region["frame"] for region in row["evidence"]] == list(videos.frames_of(clip.tracks[0]))
    for kind, file in videos.MLVU_FILES.items():
        for row in json.loads((folders["mlvu"] / f"json/{file}.json").read_text()):
            clip = by_file["mlvu"][row["video"].removesuffix(".mp4")]
            seconds, length = len(clip.tracks[0].boxes), len(clip.pixels)
            assert (row["question_type"], row["duration"]) == (kind, length)
            assert row["answer"] == clip.tracks[0].color
            assert row["candidates"].count(row["answer"]) == 1
            assert set(row["candidates"]) <= {track.color for track in clip.tracks}
            assert {"findNeedle": 2 <= seconds <= 3, "plotQA": seconds == max(2, round(length / 3)),
                    "topic_reasoning": seconds >= length - 1}[kind]  # fmt: skip


def test_right_letters_are_uniform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(videos, "write_mp4", lambda path, pixels: None)
    videos.write_videomme(tmp_path, "eval", Clips(1, 400, videos.SMALL))
    letters = Counter(json.loads(line)["answer"] for line in (tmp_path / "annotations.jsonl").open())
    assert all(70 <= letters[letter] <= 130 for letter in "ABCD"), letters


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("tokens", [256, 1024])
def test_a_split_of_a_length_has_prompts_of_that_length(
    tiny_model: Any, tmp_path: Path, name: str, tokens: int
) -> None:
    (spec,) = load_tasks([f"core_{name}_tiny"], "dense", generated=True)
    wrapper = Qwen3VL(tiny_model, build_processor())
    found = spec.samples(f"eval@{tokens}:2", data_dir=str(tmp_path))
    for sample in found:
        assert isinstance(sample, Sample), sample
        prepared = wrapper.prepare(sample)
        assert abs(prepared.token_map.length - tokens) <= 0.25 * tokens
        shown = {frame for block in prepared.token_map.blocks for frame in block.frames}
        asked = {region.frame for region in sample.evidence}
        assert asked <= shown, "32 frames show every frame of the evidence"
    splits = generate.DATASETS[name].splits.values()
    assert len({split.seed for split in splits}) == len(splits)
