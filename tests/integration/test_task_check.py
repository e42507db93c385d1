"""`tasks check`: what it says of rows, samples and prompts, its exit codes, and what it does without."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from core_bench import cli
from core_bench.bundled.mp4 import write_mp4
from core_bench.registry import bundled_checkpoint

Check = Callable[..., tuple[int, list[str], list[str]]]
HEAD = "task: mine\ndataset_path: rows.jsonl\n"
GOOD = {
    "id": "a",
    "image": "a.png",
    "question": "What is\nthis?",
    "answer": "a star",
    "evidence": [{"box": [0, 0, 40, 32]}],
}


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """check(yaml, rows, *flags): exit code and the lines on stdout and stderr; a.png (128 x 96 pixels) is there."""
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(3).integers(0, 256, (96, 128, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("a.png")

    def run(text: str, rows: list[Any], *flags: object) -> tuple[int, list[str], list[str]]:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        Path("rows.jsonl").write_text("".join(line + "\n" for line in lines))
        Path("mine.yaml").write_text(text)
        capsys.readouterr()
        code = cli.main(["tasks", "check", "mine.yaml", *map(str, flags)])
        printed = capsys.readouterr()
        return code, printed.out.splitlines(), printed.err.splitlines()

    return run


def test_rows_and_the_first_good_sample(check: Check) -> None:
    rows = ["{", {**GOOD, "id": "gone", "image": "gone.png"}, {**GOOD, "id": "lost", "image": "gone.png"}, GOOD]
    code, out, said = check(HEAD, [*rows, {**GOOD, "id": "b", "evidence": []}])
    assert (code, said) == (0, [])
    assert out == [
        "task mine (mine.yaml)",
        "scored by exact_match",
        "split test (detect, dense, ablate, hybrid): 5 rows, 3 cannot be used, 2 of them so: gone.png: no such file",
        "  evidence: 1 of 2 usable rows have regions",
        "",
        "sample a of split test, cluster a.png",
        "  media 0: a.png (image)",
        "  question: What is this?",
        "  target: a star",
        "  evidence: media 0, box 0, 0, 40, 32",
    ]


def test_every_split_that_a_mode_reads_or_the_one_named(check: Check) -> None:
    text = "task: mine\ndataset_path: json\ndataset_kwargs: {data_files: {one: rows.jsonl, two: two.jsonl}}\n"
    text += "test_split: one\nmetadata: {core_bench: {splits: {detect: two}, choices: options, chance: 0.5}}\n"
    rows = [{**GOOD, "options": ["a star", "a cross"]}]
    Path("two.jsonl").write_text(json.dumps({**rows[0], "id": "z", "evidence": []}) + "\n")
    code, out, _ = check(text, rows)
    assert code == 0
    assert out[1] == "scored by accuracy, guessing 0.5"
    assert [line for line in out if line.startswith("split")] == [
        "split two (detect): 1 rows, 0 cannot be used",
        "split one (dense, ablate, hybrid): 1 rows, 0 cannot be used",
    ]
    assert "  evidence: 0 of 1 usable rows have regions; detect needs them" in out
    assert "sample z of split two, cluster a.png" in out
    assert "  choices: A. a star  B. a cross" in out
    assert "  evidence: none" in out
    code, out, _ = check(text, rows, "--split", "one")
    assert code == 0
    assert "sample a of split one, cluster a.png" in out
    assert not any("split two" in line for line in out)


def test_no_usable_row_is_exit_1(check: Check) -> None:
    code, out, said = check(HEAD, [{**GOOD, "image": "gone.png"}])
    assert (code, said) == (1, ["core_bench: no row can be used"])
    assert "1 rows, 1 cannot be used" in out[2]
    assert not any(line.startswith("sample") for line in out)


def test_a_row_that_cannot_be_scored_or_shown_is_passed_over(check: Check) -> None:
    Path("helper.py").write_text("def score(doc, results):\n    return {'right': float(doc['worth'])}\n")
    Path("broken.png").write_bytes(b"no picture")
    text = HEAD + "process_results: !function helper.score\nmetric_list: [{metric: right}]\n"
    rows = [GOOD, {**GOOD, "id": "b", "worth": 1, "image": "broken.png"}, {**GOOD, "id": "c", "worth": 1}]
    code, out, said = check(text, rows, "--model", "qwen3vl")
    assert code == 0
    assert [line.split(":")[1] for line in said] == [" sample a cannot be used", " sample b cannot be used"]
    assert "worth" in said[0]
    assert "broken.png" in said[1]
    assert "sample c of split test, cluster a.png" in out
    code, out, said = check(text, rows[:2], "--model", "qwen3vl")
    assert (code, said[-1]) == (1, "core_bench: none of 2 samples could be used")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + "doc_to_txt: q\n", "mine.yaml:3: unknown key doc_to_txt"),
        ("task: mine\ndataset_path: gone.jsonl\n", "mine.yaml:2: dataset_path: expected a readable file"),
        (
            "task: mine\ndataset_path: json\ndataset_kwargs: {data_files: gone.jsonl}\n",
            "mine.yaml:3: dataset_kwargs: expected a readable file",
        ),
        (HEAD + "process_docs: !function nowhere.rows\n", "mine.yaml:3: !function nowhere.rows: cannot import"),
        (
            HEAD + "process_results: !function core_bench.metrics.scores\nmetric_list: [{metric: x}]\n",
            "mine.yaml:3: !function core_bench.metrics.scores: no function 'scores'",
        ),
        (
            HEAD + "process_results: !function beside.results\nmetric_list: [{metric: right}]\n",
            "mine.yaml:3: process_results: expected a dict with right",
        ),
    ],
)
def test_a_mistake_in_the_file_is_a_line_with_its_place(check: Check, text: str, said: str) -> None:
    Path("beside.py").write_text("def results(doc, results):\n    return {'wrong': 1.0}\n")
    code, _, lines = check(text, [GOOD])
    assert (code, len(lines)) == (2, 1), lines
    assert lines[0].startswith(f"core_bench: error: {said}")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--checkpoint", "x"], "--checkpoint: expected together with --model"),
        (["--max-pixels", "9"], "--max-pixels: expected together with --model"),
        (["--model", "qwen"], "did you mean 'qwen3vl'"),
        (["--model", "llava_onevision"], "no checkpoint is bundled for llava_onevision"),
        (["--frames", "2", "--fps", "1", "--model", "qwen3vl"], "--frames and --fps"),
    ],
)
def test_a_mistake_in_the_command_is_one_line(check: Check, flags: list[str], said: str) -> None:
    code, out, lines = check(HEAD, [GOOD], *flags)
    assert (code, out, len(lines)) == (2, [], 1), lines
    assert said in lines[0]


def test_the_prompt_without_weights(check: Check, tmp_path: Path) -> None:
    """128 x 96 pixels are 4 x 3 cells of 32; a box of 40 x 32 pixels touches two of them."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(bundled_checkpoint("qwen3vl"), folder)
    (folder / "model.safetensors").write_bytes(b"nothing that could be loaded")
    code, out, said = check(HEAD, [GOOD], "--model", "qwen3vl", "--checkpoint", folder)
    assert (code, said) == (0, [])
    at = next(n for n, line in enumerate(out) if line.startswith("prompt of"))
    assert out[at].startswith(f"prompt of qwen3vl, {folder}: ")
    assert out[at].endswith(" tokens, 12 visual")
    assert out[at + 1].startswith("evidence: 2 tokens, by chance ")
    assert out[at + 2 :] == [
        "",
        "<|im_start|>user",
        "<|vision_start|>[<|image_pad|> x 12]<|vision_end|>What is",
        "this?<|im_end|>",
        "<|im_start|>assistant",
        "",
    ]


def test_the_frames_that_are_shown(check: Check) -> None:
    write_mp4(Path("a.mp4"), np.full((6, 32, 32, 3), 90, dtype=np.uint8))  # 12 frames
    row: dict[str, Any] = {"id": "film", "video": "a.mp4", "question": "What is this?", "answer": "grey"}
    row["evidence"] = [{"frame": frame, "box": [0, 0, 32, 32]} for frame in range(1, 12)]
    code, out, _ = check(HEAD, [row], "--model", "internvl", "--frames", "3")
    assert code == 0
    assert "  evidence: media 0, box 0, 0, 32, 32, frame 8" in out
    assert "  and 3 more regions" in out
    assert not any(line.endswith("frame 9") for line in out)
    assert any(line.endswith(" tokens, 48 visual") for line in out), "16 a frame"
    assert "media 0 shows 3 frames: 0, 6, 11" in out
    assert any(line.startswith("evidence: 32 tokens") for line in out), "frame 0 shows none"
    _, out, _ = check(HEAD, [row], "--model", "internvl")
    assert "media 0 shows 12 frames: 0, 1, 2, 3, 4, 5, 6, 7, ... 11" in out


def test_why_there_is_no_evidence(check: Check) -> None:
    _, out, _ = check(HEAD, [{**GOOD, "evidence": []}], "--model", "internvl")
    assert any(line.startswith("prompt of internvl, bundled:internvl: ") for line in out)
    assert "no RAM: no evidence: the sample names no region" in out


def test_defects_are_counted(check: Check) -> None:
    Path("helper.py").write_text("def defects(doc):\n    return ['no answer'] if not doc['answer'] else []\n")
    text = HEAD + "metadata: {core_bench: {defects: !function helper.defects}}\n"
    _, out, _ = check(text, [GOOD, {**GOOD, "id": "b", "answer": ""}])
    assert out[4] == "  mine: defective records among the first 2 rows: 1 no answer"


def test_without_a_model_torch_is_not_loaded(check: Check, tmp_path: Path) -> None:
    check(HEAD, [GOOD])
    code = (
        "import sys\nfrom core_bench.cli import main\ncode = main(['tasks', 'check', 'mine.yaml'])\n"
        "print(code, [name for name in ('torch', 'transformers', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr
