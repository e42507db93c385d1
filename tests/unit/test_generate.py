"""The generated data: real files in RefCOCOg's columns, whole or absent, the same on every machine."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from core_bench.bundled import words
from core_bench.bundled.dataset import Dataset
from core_bench.bundled.generate import DATASETS, ensure
from core_bench.bundled.pictures import Split, scenes
from core_bench.errors import UserError
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.registry import load_tasks
from core_bench.schema import Sample

WINDOW = 64  # of the bundled checkpoint, in tokens
HUB_COLUMNS = {"question_id", "image", "question", "answer", "segmentation", "bbox", "iscrowd", "file_name"}
SMALL = Split(seed=5, n=3, sizes=((3, 4), (4, 3), (4, 4)), objects=(2, 4))
REFCOCOG = DATASETS["refcocog"]
SPLITS = REFCOCOG.splits


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("generated")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "refcocog", replace(REFCOCOG, splits={"eval": SMALL}))


def small_one(write: Callable[[Path, str, Any], None]) -> Dataset:
    """The small data set with another writer."""
    return replace(REFCOCOG, splits={"eval": SMALL}, write=write)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "annotations.jsonl").read_text(encoding="utf-8").splitlines()]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("split", sorted(SPLITS))
def test_rows_have_the_columns_of_the_hub_and_fit_their_pictures(root: Path, split: str) -> None:
    folder = ensure("refcocog", split, root)
    spec, rows = SPLITS[split], rows_of(folder)
    assert len(rows) == spec.n
    assert {path.name for path in folder.iterdir()} == {"annotations.jsonl", *(row["image"] for row in rows)}
    for row, (_, scene, _) in zip(rows, scenes(split, spec), strict=True):
        assert set(row) == HUB_COLUMNS | {"vqa_question", "vqa_answer", "vqa_phrase"}
        assert row["vqa_phrase"] in row["vqa_question"]
        assert row["answer"] == [row["vqa_phrase"]]
        with Image.open(folder / row["image"]) as picture:
            assert np.array_equal(np.asarray(picture), scene.pixels), "the file holds the scene, lossless"
        x, y, width, height = row["bbox"]
        rows_px, cols_px = scene.pixels.shape[:2]
        assert 0 <= x < x + width <= cols_px
        assert 0 <= y < y + height <= rows_px
        named = [thing for thing in scene.objects if words.phrase(thing.shape) == row["vqa_phrase"]]
        assert len(named) == 1, "the phrase names one object"
        assert named[0].box == (x, y, x + width, y + height)
        assert named[0].color == row["vqa_answer"]
        xs, ys = row["segmentation"][::2], row["segmentation"][1::2]
        assert (min(xs), min(ys), max(xs), max(ys)) == named[0].box


def test_the_splits_share_no_picture_and_no_id(root: Path) -> None:
    seen: dict[Any, str] = {}
    for split in SPLITS:
        folder = ensure("refcocog", split, root)
        for row in rows_of(folder):
            for mark in (row["question_id"], row["file_name"], (folder / row["image"]).read_bytes()):
                assert mark not in seen, f"{row['question_id']} of {split} is in {seen.get(mark)} too"
            seen |= dict.fromkeys((row["question_id"], (folder / row["image"]).read_bytes()), split)


def test_answers_are_spread_over_the_colors(root: Path) -> None:
    answers = [row["vqa_answer"] for row in rows_of(ensure("refcocog", "eval", root))]
    shares = [answers.count(color) / len(answers) for color in words.COLORS]
    assert min(shares) > 0.05
    assert max(shares) < 0.25, "always saying one color stays near chance"


@pytest.mark.usefixtures("small")
def test_writing_it_again_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = ensure("refcocog", "eval", tmp_path / "a"), ensure("refcocog", "eval", tmp_path / "b")
    assert one.relative_to(tmp_path / "a") == two.relative_to(tmp_path / "b")
    assert content(one) == content(two)
    stamp = (one / "annotations.jsonl").stat().st_mtime_ns
    assert ensure("refcocog", "eval", tmp_path / "a") == one
    assert (one / "annotations.jsonl").stat().st_mtime_ns == stamp, "what is there is left alone"


def test_another_specification_is_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = set()
    for seed in (1, 2):
        spec = Split(seed=seed, n=2, sizes=((3, 4), (4, 3), (4, 4)), objects=(2, 4))
        monkeypatch.setitem(DATASETS, "refcocog", replace(REFCOCOG, splits={"eval": spec}))
        folders.add(ensure("refcocog", "eval", tmp_path))
    assert len(folders) == 2


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("error", [RuntimeError("out of ideas"), KeyboardInterrupt()])
def test_a_crash_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def half(folder: Path, split: str, spec: Split) -> None:
        (folder / "annotations.jsonl").write_text('{"question_id": "half')
        raise error

    with monkeypatch.context() as patch:
        patch.setitem(DATASETS, "refcocog", small_one(half))
        with pytest.raises(type(error)):
            ensure("refcocog", "eval", tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert len(rows_of(ensure("refcocog", "eval", tmp_path))) == SMALL.n
    assert len(list((tmp_path / "core_refcocog_tiny").iterdir())) == 1


@pytest.mark.usefixtures("small")
def test_a_killed_writer_is_not_taken_for_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    whole = REFCOCOG.write

    def watched(folder: Path, split: str, spec: Split) -> None:
        whole(folder, split, spec)
        seen.append(folder)

    monkeypatch.setitem(DATASETS, "refcocog", small_one(watched))
    final = ensure("refcocog", "eval", tmp_path)
    draft = seen[0]
    assert draft != final, "written beside its place"
    assert draft.parent == final.parent, "a rename within one folder is atomic"
    final.rename(draft)  # as a kill just before the rename leaves it
    (draft / "annotations.jsonl").write_text("torn")
    assert len(rows_of(ensure("refcocog", "eval", tmp_path))) == SMALL.n


@pytest.mark.usefixtures("small")
def test_threads_that_write_at_once_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Path] = []
    written, entered, renamed = threading.Event(), threading.Event(), threading.Event()
    whole = REFCOCOG.write

    def in_turn(folder: Path, split: str, spec: Split) -> None:
        if threading.current_thread() is threads[0]:
            whole(folder, split, spec)
            written.set()
            assert entered.wait(20)  # the second has made its draft: it must not be this one
        else:
            entered.set()
            assert renamed.wait(20)
            whole(folder, split, spec)

    def first() -> None:
        found.append(ensure("refcocog", "eval", tmp_path))
        renamed.set()

    def second() -> None:
        assert written.wait(20)
        found.append(ensure("refcocog", "eval", tmp_path))

    monkeypatch.setitem(DATASETS, "refcocog", small_one(in_turn))
    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 2
    assert found[0] == found[1]
    assert len(rows_of(found[0])) == SMALL.n
    assert list(found[0].parent.iterdir()) == [found[0]]


_PROCESS = """
import sys, time
from dataclasses import replace
from pathlib import Path
from core_bench.bundled import generate, pictures
root, whole = Path(sys.argv[1]), generate.DATASETS["refcocog"]
small = pictures.Split(seed=5, n=3, sizes=((3, 4), (4, 3), (4, 4)), objects=(2, 4))
def slow(folder, split, spec):
    whole.write(folder, split, spec)
    (root / f"ready-{sys.argv[2]}").touch()
    until = time.monotonic() + 60
    while len(list(root.glob("ready-*"))) < 2 and time.monotonic() < until:
        time.sleep(0.01)
generate.DATASETS["refcocog"] = replace(whole, splits={"eval": small}, write=slow)
print(generate.ensure("refcocog", "eval", root / "data"))
"""


def test_processes_that_write_at_once_agree(tmp_path: Path, repo_root: Path) -> None:
    command = [sys.executable, "-c", _PROCESS, str(tmp_path)]
    both = [
        subprocess.Popen([*command, name], cwd=repo_root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name in "ab"
    ]
    outputs = [process.communicate(timeout=90) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert len({path.name for path in tmp_path.glob("ready-*")}) == 2, "both really wrote"
    folders = {Path(out.strip()) for out, _ in outputs}
    assert len(folders) == 1
    (folder,) = folders
    assert len(rows_of(folder)) == SMALL.n
    assert list(folder.parent.iterdir()) == [folder]


def test_mistakes_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'vqa'.*refcocog"):
        ensure("vqa", "eval", tmp_path)
    with pytest.raises(UserError, match=r"'test'.*detect, eval, long"):
        ensure("refcocog", "test", tmp_path)
    for nonsense in ("eval@", "eval@0", "eval@63", "eval@1e3", "eval@-5", "eval@ 512", "eval@9999999", "eval@5@5"):
        with pytest.raises(UserError, match=r"eval@TOKENS with 64 to 65536 tokens"):
            ensure("refcocog", nonsense, tmp_path)
    with pytest.raises(UserError, match=r"'test@512'.*detect, eval, long"):
        ensure("refcocog", "test@512", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written") as caught:
        ensure("refcocog", "eval", tmp_path / "file")
    assert "\n" not in str(caught.value)


def test_refcocog_is_written_where_and_as_it_always_was(root: Path) -> None:
    """Head tables and records name these samples: a change of their bytes is a new GENERATOR_VERSION."""
    folder = ensure("refcocog", "detect", root)
    assert folder.name == "detect-10fbc49c"
    assert hashlib.sha256((folder / "annotations.jsonl").read_bytes()).hexdigest()[:16] == "da20146ff7b4b8e7"


@pytest.mark.parametrize("task", [f"core_{name}_tiny" for name in DATASETS])
def test_no_name_of_a_sample_is_in_two_splits(task: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else heads found on one split would seem to have been found on the other."""
    name = task.removeprefix("core_").removesuffix("_tiny")
    splits = {split: replace(spec, n=3) for split, spec in DATASETS[name].splits.items() if split != "long"}
    monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], splits=splits))
    (spec,) = load_tasks([task], "detect", True)
    names = {split: [s.id for s in spec.samples(split, data_dir=str(tmp_path))] for split in ("detect", "eval")}
    assert len(names["detect"]) >= 3
    assert not set(names["detect"]) & set(names["eval"])


def test_a_split_of_another_size_is_other_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "refcocog", replace(REFCOCOG, splits={"eval": SMALL}))
    seen: set[bytes] = set()
    for split in ("eval", "eval@100", "eval@101", "eval@200"):
        folder = ensure("refcocog", split, tmp_path)
        assert folder.name.startswith(f"{split}-")
        found = {path.read_bytes() for path in folder.glob("*.png")}
        assert len(found) == SMALL.n
        assert not found & seen
        seen |= found


def test_the_default_place_is_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None) -> None:
    monkeypatch.setenv("CORE_BENCH_CACHE", str(tmp_path))
    assert ensure("refcocog", "eval").is_relative_to(tmp_path / "data" / "core_refcocog_tiny")


def test_prompts_are_as_long_as_their_split_says(root: Path, tiny_model: Any, tiny_processor: Any) -> None:
    wrapper, (spec,) = Qwen3VL(tiny_model, tiny_processor), load_tasks(["core_refcocog_tiny"], "dense", True)

    def lengths(split: str, count: int) -> list[int]:
        """Prompt tokens of the `count` largest pictures (all of them have about the same text)."""
        samples = [s for s in spec.samples(split, data_dir=str(root)) if isinstance(s, Sample)]
        assert len(samples) == SPLITS[split].n, "every row becomes a sample"

        def area(sample: Sample) -> int:
            with Image.open(sample.media[0].path) as picture:
                return picture.width * picture.height

        samples.sort(key=area, reverse=True)
        return [wrapper.prepare(sample).token_map.length for sample in samples[:count]]

    assert min(lengths("long", 4)) >= max(512, 10 * WINDOW)
    assert max(lengths("eval", 12)) <= 300
    assert max(lengths("detect", 12)) <= 300
