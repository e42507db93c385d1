"""`core_videomme` and `core_videomme_w_subtitle` on rows of our own in the hub table's schema: the data may not be
redistributed, so no genuine row is at hand."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core_bench.bundled.mp4 import write_mp4
from core_bench.errors import UserError
from core_bench.lmms_plugin.messages import messages_of
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.provenance import data_digest
from core_bench.registry import known_tasks
from core_bench.schema import Sample
from core_bench.subtitles import HEADING, SUBTITLES_HERE
from core_bench.tasks.core_videomme import KINDS, metric_name
from core_bench.taskspec import FailedSample, TaskSpec

PLAIN, SUBTITLED = "core_videomme", "core_videomme_w_subtitle"
ROW: dict[str, Any] = {
    "video_id": "001", "duration": "short", "domain": "Film & Television", "sub_category": "Animation",
    "url": "https://example.org/watch?v=abc", "videoID": "abc", "question_id": "001-1", "task_type": "OCR Problems",
    "question": "What is written on the board?", "options": ["A. Red.", "B. Blue.", "C. Green.", "D. Black."],
    "answer": "C",
}  # fmt: skip
SRT = """\
1
00:00:00,000 --> 00:00:01,000
<font color="white" size=".72c">the first words</font>

2
00:00:02,000 --> 00:00:03,000
<font color="white" size=".72c">nobody sees this</font>

3
00:00:03,500 --> 00:00:09,000
<font color="white" size=".72c">the last words</font>
"""
PROMPT = (
    "Select the best answer to the following multiple-choice question based on the video. Respond with only the letter "
    "(A, B, C, or D) of the correct option.\nWhat is written on the board?\nA. Red.\nB. Blue.\nC. Green.\nD. Black.\n"
    "The best answer is:"
)


@cache
def spec(task: str = PLAIN) -> TaskSpec:
    return known_tasks()[task]


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four seconds of noise."""
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    write_mp4(path, np.random.default_rng(0).integers(0, 256, (4, 64, 64, 3), dtype=np.uint8))
    return path


def write(folder: Path, rows: list[Any], clip: Path | None = None, subtitles: str | bytes | None = None) -> Path:
    """The hub's repository with its archives unpacked."""
    root = folder / "Video-MME"
    for part in ("videomme", "data", "subtitle"):
        (root / part).mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), root / "videomme/test-00000-of-00001.parquet")
    for name in {row["videoID"] for row in rows if isinstance(row.get("videoID"), str)}:
        if clip is None:
            (root / f"data/{name}.mp4").write_bytes(name.encode())
        else:
            shutil.copy(clip, root / f"data/{name}.mp4")
        if subtitles is not None:
            content = subtitles.encode() if isinstance(subtitles, str) else subtitles
            (root / f"subtitle/{name}.srt").write_bytes(content)
    return folder


def samples_of(folder: Path, task: str = PLAIN, said: list[str] | None = None) -> list[Sample]:
    found = spec(task).samples("test", data_dir=str(folder), report=None if said is None else said.append)
    assert not [sample for sample in found if isinstance(sample, FailedSample)], found
    return [sample for sample in found if isinstance(sample, Sample)]


def test_a_row_becomes_a_sample(tmp_path: Path) -> None:
    said: list[str] = []
    [sample] = samples_of(write(tmp_path, [ROW]), said=said)
    assert (sample.id, sample.cluster, sample.target, said) == ("001-1", "abc", "C", [])
    assert sample.prompt == PROMPT
    assert sample.question == ROW["question"]
    assert Path(sample.media[0].path) == tmp_path / "Video-MME/data/abc.mp4"
    for place in (tmp_path, tmp_path / "Video-MME"):
        assert Path(samples_of(place)[0].media[0].path).is_file()


@pytest.mark.parametrize("place", ["data/abc.MP4", "data/abc.mkv", "videos/abc.mp4"])
def test_other_places_of_the_video(tmp_path: Path, place: str) -> None:
    folder = write(tmp_path, [ROW])
    target = folder / "Video-MME" / place
    target.parent.mkdir(exist_ok=True)
    (folder / "Video-MME/data/abc.mp4").rename(target)
    assert Path(samples_of(folder)[0].media[0].path) == target


def test_every_duration_domain_and_task_type_has_its_accuracy(tmp_path: Path) -> None:
    """By all questions; by the answered ones beside it; what is not answered is counted."""
    rows = [
        ROW | {"question_id": f"{column}-{n}", column: kind}
        for column, kinds in KINDS.items()
        for n, kind in enumerate(kinds)
    ]
    assert [len(kinds) for kinds in KINDS.values()] == [3, 6, 12]
    for sample in samples_of(write(tmp_path, rows)):
        apart = {metric_name(sample.doc[column]) for column in KINDS}
        assert len(apart) == 3
        assert apart <= set(spec().metrics)
        right, wrong, unread = (spec().score(sample, reply) for reply in ("C", "The best answer is: A", "Hm."))
        assert right.scores == dict.fromkeys(["accuracy", "accuracy_answered", *apart], 1.0)
        assert wrong.scores == dict.fromkeys(["accuracy", "accuracy_answered", *apart], 0.0)
        assert unread.scores == dict.fromkeys(["accuracy", *apart], 0.0), "not among the answered ones"
        assert (right.unparsed, wrong.unparsed, unread.unparsed) == (False, False, True)
    named = {metric_name(kind) for kinds in KINDS.values() for kind in kinds}
    for task in (PLAIN, SUBTITLED):
        assert set(spec(task).metrics) == {"accuracy", "accuracy_answered"} | named
        assert spec(task).headline == "accuracy"


def test_defects_are_told_by_kind(tmp_path: Path) -> None:
    rows = [
        ROW,
        ROW | {"question_id": "2", "answer": "E"},
        ROW | {"question_id": "3", "options": ["A. Red.", "B. red.", "C. Green.", "D. Black."]},
        ROW | {"question_id": "4", "domain": "Cooking"},
    ]
    said: list[str] = []
    folder = write(tmp_path, rows, subtitles=SRT)
    found = spec().samples("test", data_dir=str(folder), report=said.append)
    assert [type(sample).__name__ for sample in found] == ["Sample", "FailedSample", "Sample", "Sample"]
    assert said == [
        "core_videomme: defective records among the first 4 rows: 1 have an answer that is no option's letter (not "
        "scored); 1 have options alike (scored); 1 have an unknown domain (not in that breakdown)"
    ]
    (folder / "Video-MME/subtitle/abc.srt").unlink()
    said.clear()
    samples_of(write(tmp_path, [ROW]), SUBTITLED, said)
    assert said == [f"{SUBTITLED}: defective records among the first 1 rows: 1 have no subtitle file (asked without)"]


def prompt_of(wrapper: Qwen3VL, sample: Sample, monkeypatch: pytest.MonkeyPatch, **options: Any) -> str:
    """What the model is asked."""
    prompts: list[str] = []
    render = wrapper.render_chat

    def noted(shown: Sample, content: Any) -> Any:
        prompts.append(shown.prompt)
        return render(shown, content)

    monkeypatch.setattr(wrapper, "render_chat", noted)
    wrapper.prepare(sample, **options)
    monkeypatch.undo()
    return prompts[0]


def test_subtitles_of_the_sampled_frames_alone_are_shown(
    tmp_path: Path, clip: Path, tiny_model: Any, tiny_processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = Qwen3VL(tiny_model, tiny_processor)
    folder = write(tmp_path, [ROW], clip, SRT)
    [sample] = samples_of(folder, SUBTITLED)
    assert sample.prompt == SUBTITLES_HERE + PROMPT
    assert prompt_of(wrapper, sample, monkeypatch, frames=2) == f"{HEADING}the first words\nthe last words\n{PROMPT}"
    assert prompt_of(wrapper, sample, monkeypatch, frames=1) == PROMPT, "nothing is said in the middle"
    everything = f"{HEADING}the first words\nnobody sees this\nthe last words\n{PROMPT}"
    assert prompt_of(wrapper, sample, monkeypatch, fps=4.0) == everything
    [plain] = samples_of(folder)
    assert prompt_of(wrapper, plain, monkeypatch, frames=2) == PROMPT
    (folder / "Video-MME/subtitle/abc.srt").unlink()
    [without] = samples_of(folder, SUBTITLED)
    assert prompt_of(wrapper, without, monkeypatch, frames=2) == PROMPT
    with pytest.raises(UserError, match="subtitles of the sampled frames, which only the core_ models know"):
        messages_of(sample)


def test_other_subtitles_are_other_data(tmp_path: Path) -> None:
    folder = write(tmp_path, [ROW], subtitles=SRT)
    digests = [data_digest(samples_of(folder, task)) for task in (SUBTITLED, PLAIN)]
    write(tmp_path, [ROW], subtitles=SRT.replace("last", "very last"))
    again = [data_digest(samples_of(folder, task)) for task in (SUBTITLED, PLAIN)]
    assert (again[0] != digests[0], again[1] == digests[1]) == (True, True)


def test_a_run_with_subtitles(tmp_path: Path, clip: Path, bench: Callable[..., Any]) -> None:
    """Three questions about two videos; the subtitles of one are spoilt, and that is its recorded failure."""
    rows = [ROW, ROW | {"question_id": "001-2"}, ROW | {"question_id": "002-1", "videoID": "xyz", "duration": "long"}]
    folder = write(tmp_path / "data", rows, clip, SRT)
    (folder / "Video-MME/subtitle/xyz.srt").write_bytes(b"1\n00:00:01,000 --> 00:00:02,000\ncaf\xe9\n")
    flags = ["--data-dir", folder, "--frames", 2, "--max-new-tokens", 2]
    with_them, without = (bench("dense", "--tasks", task, *flags, out=task) for task in (SUBTITLED, PLAIN))
    assert (with_them.code, without.code) == (0, 0), with_them.said
    failures = {row["id"]: row["failure"] for row in with_them.rows}
    assert [name for name, failure in failures.items() if failure is not None] == ["002-1"]
    assert "xyz.srt: expected subtitles in UTF-8: byte 35" in failures["002-1"]
    assert not [row["failure"] for row in without.rows if row["failure"]]
    longer, shorter = (
        {row["id"]: row["tokens"]["prompt"] for row in ended.rows if not row["failure"]}
        for ended in (with_them, without)
    )
    assert all(longer[name] > shorter[name] + 5 for name in longer)
    arm = without.record["tasks"][PLAIN]["arms"]["dense"]
    assert next(iter(arm["metrics"])) == "accuracy"
    assert {name: arm["metrics"][name]["n"] for name in ("accuracy", "accuracy_short", "accuracy_long")} == {
        "accuracy": 3, "accuracy_short": 2, "accuracy_long": 1,
    }  # fmt: skip
    assert "accuracy_medium" not in arm["metrics"]
    assert arm["n_unparsed"] == 3 - arm["metrics"].get("accuracy_answered", {"n": 0})["n"]
    notes = with_them.record["run"]["settings"]["scoring"][SUBTITLED]["notes"]
    assert "sampled frames" in notes["subtitles"]


def spoil(folder: Path, name: str) -> None:
    file = folder / "Video-MME/videomme/test-00000-of-00001.parquet"
    if name == "column":
        pq.write_table(pa.Table.from_pylist([{key: ROW[key] for key in ROW if key != "options"}]), file)
    elif name == "type":
        pq.write_table(pa.Table.from_pylist([ROW | {"options": "A. Red. B. Blue."}]), file)
    elif name == "answer":
        pq.write_table(pa.Table.from_pylist([ROW | {"answer": 2}]), file)
    elif name == "media":
        shutil.rmtree(folder / "Video-MME/data")
    elif name == "empty":
        file.write_bytes(b"")
    elif name == "no rows":
        pq.write_table(pa.Table.from_pylist([ROW]).slice(0, 0), file)
    elif name == "cut short":
        file.write_bytes(file.read_bytes()[:-9])
    elif name == "not UTF-8":
        table = pa.table({key: [cell] for key, cell in ROW.items() if key != "question"})
        bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"h\xe4")])
        pq.write_table(table.append_column("question", bad), file)


@pytest.mark.parametrize("task", [PLAIN, SUBTITLED])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "column",
            "none of 1 rows can be used, 1 of them so: choices: the row has no column 'options'",
        ),
        ("type", "none of 1 rows can be used, 1 of them so: "),
        ("answer", "answer: expected the letter of one of 4 options, got 2"),
        ("media", "none of 1 media files is there, among them "),
        ("empty", "expected a Parquet file, got "),
        ("no rows", "no rows in "),
        ("cut short", "expected a Parquet file, got "),
        ("not UTF-8", "expected UTF-8 text, got "),
    ],
)
def test_spoilt_files_are_refused_in_one_line(
    tmp_path: Path, refused: Callable[..., str], task: str, name: str, said: str
) -> None:
    folder = write(tmp_path, [ROW])
    spoil(folder, name)
    assert said in refused(task, folder)


@pytest.mark.parametrize(("task", "more"), [(PLAIN, "data/"), (SUBTITLED, "subtitle.zip")])
def test_absent_files_say_what_to_get(tmp_path: Path, refused: Callable[..., str], task: str, more: str) -> None:
    for line in (refused(task, None), refused(task, tmp_path)):
        for part in ("lmms-eval/Video-MME", "100 GB", "no redistribution", "--data-dir", "folder Video-MME", more):
            assert part in line


def test_where_the_data_set_lies_stands_in_the_task_file() -> None:
    for task in (PLAIN, SUBTITLED):
        keys = spec(task).keys
        assert (keys["dataset_path"], keys["dataset_name"]) == ("lmms-eval/Video-MME", "videomme")
        assert (keys["test_split"], keys["dataset_kwargs"]) == ("test", {"revision": "main"})
