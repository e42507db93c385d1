"""`core_mlvu_dev` on records of the data set itself, `core_mlvu_test` on rows of our own, and spoilt copies of both.

The videos are stubs, or a small clip: the real ones may not be shipped.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from core_bench.registry import known_tasks
from core_bench.schema import Sample
from core_bench.tasks.core_mlvu import FOLDERS, TEST_TYPES
from core_bench.taskspec import FailedSample, TaskSpec

DEV, TEST = "core_mlvu_dev", "core_mlvu_test"
COUNTS = {
    "plotQA": 11, "findNeedle": 8, "ego": 9, "count": 6, "order": 6, "anomaly_reco": 11, "topic_reasoning": 9,
}  # fmt: skip
UNSCORED = {
    "topic_reasoning-movie101_89-0",  # all texts are empty
    "findNeedle-needle_4-0",  # the answer is none of the options
    "findNeedle-needle_5-0",
    "plotQA-movie101_21-0",  # the answer stands twice among the options
    "anomaly_reco-surveil_6-0",
    "topic_reasoning-ego_11-0",
}
ROW: dict[str, Any] = {
    "video": "a.mp4", "duration": 300, "question": "What is red?", "candidates": ["a car", "a bag", "a hat", "a cat"],
    "answer": "a hat", "question_type": "plotQA",
}  # fmt: skip
TEST_ROW: dict[str, Any] = ROW | {"candidates": [*ROW["candidates"], "a dog", "a door"], "question_id": "PQA_0"}


@cache
def spec(task: str = DEV) -> TaskSpec:
    return known_tasks()[task]


def write(folder: Path, files: dict[str, list[Any]], inside: str = "MLVU", clip: Path | None = None) -> Path:
    """The development set: `files` by question type; `inside` is the folder that holds json/ and video/."""
    root = folder / inside
    for kind, name in FOLDERS.items():
        (root / f"video/{name}").mkdir(parents=True, exist_ok=True)
        (root / "json").mkdir(exist_ok=True)
        rows = files.get(kind, [ROW | {"question_type": kind}])
        (root / f"json/{name}.json").write_text(json.dumps(rows), encoding="utf-8")
        for row in rows:
            stand_in(root / f"video/{name}/{row['video']}", clip)
    return folder


def stand_in(path: Path, clip: Path | None) -> None:
    if clip is None:
        path.write_bytes(path.stem.encode())
    else:
        shutil.copy(clip, path)


def write_test(folder: Path, rows: list[Any], clip: Path | None = None) -> Path:
    """The test set: one file of questions, one folder of videos."""
    root = folder / "MLVU_Test"
    for part in ("test-ground-truth", "video"):
        (root / part).mkdir(parents=True, exist_ok=True)
    (root / "test-ground-truth/test_mcq_gt.json").write_text(json.dumps(rows), encoding="utf-8")
    for row in rows:
        stand_in(root / f"video/{row['video']}", clip)
    return folder


@pytest.fixture(scope="module")
def genuine(genuine_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[Any]], Path]:
    files = {
        kind: json.loads((genuine_data / f"annotations/mlvu/{name}.slice.json").read_text(encoding="utf-8"))
        for kind, name in FOLDERS.items()
    }
    return files, write(tmp_path_factory.mktemp("mlvu"), files)


def parted(folder: Path, said: list[str] | None = None) -> tuple[list[Sample], dict[str, str]]:
    """The samples, and the reasons of the rows that are none."""
    found = spec().samples("dev", data_dir=str(folder), report=None if said is None else said.append)
    failed = {sample.id: sample.reason for sample in found if isinstance(sample, FailedSample)}
    return [sample for sample in found if isinstance(sample, Sample)], failed


def test_every_record_of_the_slices_is_read(genuine: tuple[dict[str, list[Any]], Path]) -> None:
    files, folder = genuine
    assert {kind: len(rows) for kind, rows in files.items()} == COUNTS
    assert {row["question_type"] for rows in files.values() for row in rows} == set(COUNTS), "needle says findNeedle"
    samples, failed = parted(folder)
    assert len(samples) + len(failed) == sum(COUNTS.values()) == 60
    assert len({sample.id for sample in samples} | failed.keys()) == 60
    for sample in samples:
        doc = sample.doc
        [medium] = sample.media
        assert Path(medium.path).is_file()
        assert Path(medium.path).relative_to(folder / "MLVU/video").parts[0] == FOLDERS[doc["question_type"]]
        assert sample.cluster == doc["video"]
        assert doc["candidates"]["ABCD".index(sample.target)] == doc["answer"]
        assert sample.prompt.startswith(f"Question: {sample.question}\nOptions:\n(A) ")
        assert sample.prompt.endswith("\nOnly give the best option.")
        assert sample.prime == "Best Option: ("
        assert sample.system is not None
        assert sample.system.startswith("Carefully watch this video")


def test_the_first_rows_have_all_types(genuine: tuple[dict[str, list[Any]], Path]) -> None:
    found = spec().samples("dev", data_dir=str(genuine[1]), limit=7)
    assert {sample.id.split("-")[0] for sample in found} == set(COUNTS)


def test_what_cannot_be_scored_is_left_out(genuine: tuple[dict[str, list[Any]], Path]) -> None:
    _, failed = parted(genuine[1])
    assert failed.keys() == UNSCORED
    assert all(reason.startswith("answer: expected one of the choices, ") for reason in failed.values()), failed


def test_the_defects_of_the_slices_are_told_by_kind(genuine: tuple[dict[str, list[Any]], Path]) -> None:
    said: list[str] = []
    parted(genuine[1], said)
    [line] = said
    assert line.startswith("core_mlvu_dev: defective records among the first 60 rows: ")
    assert set(line.partition("rows: ")[2].split("; ")) == {
        "1 are empty (not scored)",
        "2 have an answer that is none of the options (not scored)",
        "3 have the answer twice among the options (not scored)",
        "5 have options alike, none of them right (scored)",
        "4 have stray white space (stripped)",
        "1 claim to last over 3 hours (scored)",
    }


def test_stray_white_space_is_gone(genuine: tuple[dict[str, list[Any]], Path]) -> None:
    files, folder = genuine
    stray = [row for rows in files.values() for row in rows if row["question"] != row["question"].strip()]
    assert [row["question"][-6:] for row in stray] == ["shcan ", " mug?\n"]
    for sample in parted(folder)[0]:
        texts = [sample.question, sample.doc["answer"], *sample.doc["candidates"]]
        assert texts == [text.strip() for text in texts]
        assert not [line for line in sample.prompt.split("\n") if line.rstrip() != line and not line.startswith("(")]


def test_a_right_answer_scores_1_in_its_own_task(genuine: tuple[dict[str, list[Any]], Path]) -> None:
    samples, _ = parted(genuine[1])
    assert len(samples) == 54
    for sample in samples:
        kind = sample.doc["question_type"]
        for reply in (f"{sample.target}) {sample.doc['answer']}", sample.doc["answer"], f"({sample.target})"):
            found = spec().score(sample, reply)
            assert found.scores == {"m_avg": 1, "accuracy": 1, f"accuracy_{kind}": 1}, (sample.id, reply)
            assert found.groups == {"m_avg": kind}
        wrong = spec().score(sample, "ABCD".replace(sample.target, "")[0])
        assert (wrong.scores["accuracy"], wrong.unparsed) == (0, False)
        assert spec().score(sample, "I do not know").unparsed


def test_m_avg_is_the_mean_over_tasks_and_stands_beside_that_over_questions(
    genuine: tuple[dict[str, list[Any]], Path], dense_record: Callable[..., dict[str, Any]]
) -> None:
    """Right in every question about plots and orders, wrong in all others."""
    samples, _ = parted(genuine[1])
    right = {"plotQA", "order"}
    scored = Counter(sample.doc["question_type"] for sample in samples)
    rows = []
    for sample in samples:
        known = sample.doc["question_type"] in right
        score = spec().score(sample, sample.target if known else "ABCD".replace(sample.target, "")[0])
        rows.append(
            {"task": DEV, "id": sample.id, "cluster": sample.cluster, "arm": "dense", "draw": None, "failure": None,
             "scores": score.scores, "groups": score.groups, "unparsed": score.unparsed}
        )  # fmt: skip
    metrics = dense_record(DEV, "m_avg", rows)["tasks"][DEV]["arms"]["dense"]["metrics"]
    assert next(iter(metrics)) == "m_avg"
    assert metrics["m_avg"]["value"] == pytest.approx(2 / 7)
    assert metrics["accuracy"]["value"] == pytest.approx((scored["plotQA"] + scored["order"]) / 54)
    assert abs(metrics["accuracy"]["value"] - metrics["m_avg"]["value"]) > 0.005, "two different numbers"
    for kind in COUNTS:
        assert (metrics[f"accuracy_{kind}"]["value"], metrics[f"accuracy_{kind}"]["n"]) == (kind in right, scored[kind])


@pytest.mark.parametrize("inside", ["MLVU", "MLVU/MLVU", "."])
def test_the_folders_that_copies_of_the_hub_have(tmp_path: Path, inside: str) -> None:
    samples, failed = parted(write(tmp_path, {}, inside))
    assert (len(samples), failed) == (7, {})
    assert all(Path(sample.media[0].path).is_file() for sample in samples)


def test_the_test_set_has_nine_tasks_and_six_options(tmp_path: Path) -> None:
    answers = [*TEST_ROW["candidates"], "a cat", "a bag", "a door"]
    rows = [
        TEST_ROW | {"question_type": kind, "question_id": f"{n}", "video": f"{kind}.mp4", "answer": answer}
        for n, (kind, answer) in enumerate(zip(TEST_TYPES, answers, strict=True))
    ]
    said: list[str] = []
    found = spec(TEST).samples("test", data_dir=str(write_test(tmp_path, rows)), report=said.append)
    samples = [sample for sample in found if isinstance(sample, Sample)]
    assert (len(samples), said) == (9, [])
    assert "".join(sorted(sample.target for sample in samples)) == "ABBCDDEFF"
    for sample in samples:
        assert Path(sample.media[0].path).is_file()
        assert "\n(E) a dog\n(F) a door\n" in sample.prompt
        kind = sample.doc["question_type"]
        assert spec(TEST).score(sample, f"{sample.target})").scores == {
            "m_avg": 1,
            "accuracy": 1,
            f"accuracy_{kind}": 1,
        }
    assert spec(TEST).score(samples[0], "F) a door").scores["accuracy"] == (samples[0].target == "F")
    assert spec(TEST).score(samples[0], "G").unparsed
    assert spec(TEST).chance == pytest.approx(1 / 6, abs=1e-4)


def test_the_types_of_the_test_set_are_those_of_the_authors_results(genuine_data: Path) -> None:
    results = json.loads((genuine_data / "annotations/mlvu/test_res.slice.json").read_text(encoding="utf-8"))
    assert {row["question_type"] for row in results} == set(TEST_TYPES)
    assert {row["option"] for row in results} >= {"E", "F"}
    listed = {name.removeprefix("accuracy_") for name in spec(TEST).metrics if name.startswith("accuracy_")}
    assert listed == set(TEST_TYPES)


def test_a_run_scores_good_records_and_goes_on_past_the_others(
    genuine: tuple[dict[str, list[Any]], Path], genuine_data: Path, tmp_path: Path, bench: Callable[..., Any]
) -> None:
    """Genuine records, a video that is cut short and one that is not there."""
    clip = genuine_data / "media/vid_hevc.mp4"
    files = {kind: rows[-3:] for kind, rows in genuine[0].items()}
    folder = write(tmp_path / "data", files, clip=clip)
    videos = folder / "MLVU/video"
    (videos / "4_count" / files["count"][0]["video"]).write_bytes(clip.read_bytes()[:9000])
    (videos / "5_order" / files["order"][0]["video"]).unlink()
    ended = bench("dense", "--tasks", DEV, "--data-dir", folder, "--max-new-tokens", 2, "--frames", 2)
    assert ended.code == 0, ended.said
    failures = {row["id"]: row["failure"] for row in ended.rows if row["failure"]}
    assert len(ended.rows) == 21
    assert set(failures) == {
        f"count-{Path(files['count'][0]['video']).stem}-0", f"order-{Path(files['order'][0]['video']).stem}-0",
        "plotQA-movie101_21-0", "findNeedle-needle_4-0", "findNeedle-needle_5-0", "anomaly_reco-surveil_6-0",
        "topic_reasoning-movie101_89-0", "topic_reasoning-ego_11-0",
    }  # fmt: skip
    for kind in ("count", "order"):
        [reason] = [reason for name, reason in failures.items() if name.startswith(kind)]
        assert files[kind][0]["video"] in reason
    [told] = [line for line in ended.said if "defective" in line]
    assert "2 have an answer that is none of the options" in told
    task = ended.record["tasks"][DEV]
    assert (task["n"], task["n_failed"]) == (21, 8)
    assert next(iter(task["arms"]["dense"]["metrics"])) == "m_avg"
    assert "mean" in ended.record["run"]["settings"]["scoring"][DEV]["notes"]["m_avg"]


def spoil(folder: Path, name: str) -> None:
    file = folder / "MLVU/json/1_plotQA.json"
    if name == "column":
        file.write_text(json.dumps([{key: ROW[key] for key in ROW if key != "answer"}]))
    elif name == "type":
        file.write_text(json.dumps([ROW | {"candidates": "a car, a bag, a hat, a cat"}]))
    elif name == "kind":
        file.write_text(json.dumps([ROW | {"question_type": "plot"}]))
    elif name == "media":
        shutil.rmtree(folder / "MLVU/video")
    elif name == "file":
        file.unlink()
    elif name == "empty":
        file.write_bytes(b"")
    elif name == "no rows":
        file.write_text("[]")
    elif name == "not UTF-8":
        file.write_bytes(json.dumps([ROW]).encode().replace(b"a hat", b"a h\xe4t"))
    elif name == "cut short":
        file.write_bytes(file.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "column",
            "1_plotQA.json: none of 1 rows can be used, 1 of them so: doc_to_target: core_mlvu.target: KeyError",
        ),
        ("type", "1_plotQA.json: none of 1 rows can be used, 1 of them so: "),
        ("kind", "question_type: expected one of plotQA, findNeedle, ego, count, order, anomaly_reco, topic_reasoning"),
        ("media", "none of 7 media files is there, among them "),
        ("file", "no json/1_plotQA.json or MLVU/json/1_plotQA.json or data/1_plotQA.json in "),
        ("empty", "no rows in "),
        ("no rows", "no rows in "),
        ("not UTF-8", "1_plotQA.json: byte "),
        ("cut short", "expected a JSON array of rows, got "),
    ],
)
def test_one_spoilt_file_of_seven_is_refused_in_one_line(
    tmp_path: Path, refused: Callable[..., str], name: str, said: str
) -> None:
    """M-Avg over six tasks would be another number."""
    folder = write(tmp_path, {})
    spoil(folder, name)
    assert said in refused(DEV, folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (json.dumps([{key: TEST_ROW[key] for key in TEST_ROW if key != "video"}]), "core_mlvu.media_of_test: KeyError"),
        (json.dumps([TEST_ROW | {"candidates": 6}]), "none of 1 rows can be used"),
        (json.dumps([TEST_ROW | {"video": "b.mp4"}]), "none of 1 media files is there, among them "),
        ("", "no rows in "),
        (json.dumps([TEST_ROW])[:-5], "expected a JSON array of rows, got "),
        ('["a\xff"]', "expected UTF-8 text, got "),
    ],
)
def test_a_spoilt_test_set_is_refused_in_one_line(
    tmp_path: Path, refused: Callable[..., str], content: str, said: str
) -> None:
    folder = write_test(tmp_path, [TEST_ROW])
    (folder / "MLVU_Test/test-ground-truth/test_mcq_gt.json").write_bytes(content.encode("latin-1"))
    assert said in refused(TEST, folder)


@pytest.mark.parametrize("task", [DEV, TEST])
def test_absent_files_say_what_to_get(tmp_path: Path, refused: Callable[..., str], task: str) -> None:
    for line in (refused(task, None), refused(task, tmp_path)):
        for part in ("MLVU/M", "video", "questions", "CC BY-NC-SA 4.0", "--data-dir", "unpack into a folder MLVU"):
            assert part in line


def test_what_a_record_costs_before_media_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: for 2,000 records no video is opened, and no more than a few files are looked for each."""
    files = {
        kind: [ROW | {"question_type": kind, "question": f"Number {n}?", "video": f"{n // 2}.mp4"} for n in range(286)]
        for kind in FOLDERS
    }
    folder = write(tmp_path, files)
    looked, opened = counted(monkeypatch, "is_file"), counted(monkeypatch, "open")
    samples, failed = parted(folder)
    assert (len(samples), failed) == (2002, {})
    assert not [path for path in opened if path.suffix == ".mp4"]
    assert len([path for path in looked if path.suffix == ".mp4"]) <= 2 * len(samples)
    assert len(looked) <= 20 * len(samples)


def counted(monkeypatch: pytest.MonkeyPatch, method: str) -> list[Path]:
    """A list that grows by every path of which this method is called."""
    paths: list[Path] = []
    whole = getattr(Path, method)

    def noted(path: Path, *more: Any, **options: Any) -> Any:
        paths.append(path)
        return whole(path, *more, **options)

    monkeypatch.setattr(Path, method, noted)
    return paths
