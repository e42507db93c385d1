"""`show` on whole models: its masses against detection's RAM, the picture it writes, its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from core_bench import cli
from core_bench.bundled.architectures import internvl
from core_bench.config import RunConfig
from core_bench.detect import measure_sample
from core_bench.heads import HeadScores
from core_bench.model_wrappers.base import ModelWrapper
from core_bench.model_wrappers.internvl import InternVL
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.schema import Sample
from core_bench.show import measure
from core_bench.taskspec import TaskSpec

Show = Callable[..., tuple[int, str, list[str]]]


@pytest.fixture(scope="module")
def wrappers(tiny_model: Any, tiny_processor: Any) -> dict[str, ModelWrapper]:
    internvl_model = internvl.build_model(seed=0).eval()
    return {
        "qwen3vl": Qwen3VL(tiny_model, tiny_processor),
        "internvl": InternVL(internvl_model, internvl.build_processor()),
    }


@pytest.fixture
def show(checkpoint: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Show:
    """show(TASK, SAMPLE, *flags): exit code, stdout, lines of stderr; the picture is tmp_path/shown.png."""

    def run(task: Path | str, sample: str, *flags: object) -> tuple[int, str, list[str]]:
        words = ["show", "--model", "qwen3vl", "--checkpoint", checkpoint, "--device", "cpu", "--task", task]
        capsys.readouterr()
        code = cli.main([str(w) for w in (*words, "--sample", sample, "--out", tmp_path / "shown.png", *flags)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err.splitlines()

    return run


@pytest.mark.parametrize("family", ["qwen3vl", "internvl"])
@pytest.mark.parametrize("dataset", ["refcocog", "vidstg", "mmdocir"])
@pytest.mark.parametrize("query", ["question", "last"])
def test_masses_add_up_to_the_ram_that_detection_measures(
    wrappers: dict[str, ModelWrapper], generated: Path, family: str, dataset: str, query: str
) -> None:
    wrapper = wrappers[family]
    spec = TaskSpec.from_file(Path(cli.__file__).parent / "tasks" / f"core_{dataset}_tiny.yaml")
    sample = spec.samples("detect", data_dir=str(generated), limit=2)[1]
    assert isinstance(sample, Sample)
    config = RunConfig(model=family, mode="detect", query=query, max_new_tokens=2, overlap=0.05)
    heads = [(layer, head) for layer in range(wrapper.shape.n_layers) for head in range(wrapper.shape.n_heads)]
    shown = measure(wrapper, config, spec, sample, "detect", heads, None)
    expected, prepared, _ = measure_sample(wrapper, config, sample)
    assert shown.mass_SM.shape == (len(heads), prepared.token_map.length)
    np.testing.assert_allclose(shown.mass_SM.sum(axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose([part.omega for part in shown.shares()], expected.ram.ravel(), atol=1e-6, rtol=1e-5)
    assert shown.chance == pytest.approx(expected.chance)
    assert expected.ram.max() > 0


def test_the_picture_and_the_numbers(show: Show, task: Path, tmp_path: Path) -> None:
    code, out, said = show(task, "found1", "--head", "1:0", "--head", "0:3")
    assert (code, said) == (0, [])
    lines = out.splitlines()
    assert lines[0] == "pictures, split found, sample found1"
    assert "question: What is thing 1?" in lines
    assert "target: unknown" in lines
    rows = [line.split() for line in lines if line.split()[:1] in (["1:0"], ["0:3"])]
    assert [row[0] for row in rows] == ["1:0", "0:3"]
    for row in rows:
        ram, other, markers, first, text = (float(row[n]) for n in (2, 4, 5, 6, 7))
        assert 0 < ram < 100
        assert ram + other + markers + first + text == pytest.approx(100, abs=0.03)
    assert lines[-1] == f"wrote {tmp_path / 'shown.png'} ({size_of(tmp_path)[0]} x {size_of(tmp_path)[1]} pixels)"
    numbered = show(task, "1", "--head", "1:0", "--head", "0:3")
    assert numbered[:2] == (0, out)


def size_of(folder: Path) -> tuple[int, int]:
    with Image.open(folder / "shown.png") as picture:
        picture.load()
        assert picture.format == "PNG"
        return picture.size


def test_first_and_last_head_of_a_table(show: Show, task: Path, tmp_path: Path, tiny_model: Any) -> None:
    config = tiny_model.config.text_config
    ram = np.linspace(0.1, 0.2, config.num_hidden_layers * config.num_attention_heads)
    ram_LH = ram.reshape(config.num_hidden_layers, config.num_attention_heads)
    HeadScores(ram_LH, ram_LH, ram_LH, ram_LH, n=3).write_tsv(tmp_path / "heads.tsv")
    code, out, said = show(task, "found0", "--heads", tmp_path / "heads.tsv")
    assert code == 0
    assert len(said) == 1
    assert str(tmp_path / "heads.tsv") in said[0]
    last = f"{config.num_hidden_layers - 1}:{config.num_attention_heads - 1}"
    rows = [line.split()[:4] for line in out.splitlines() if f" of {ram.size} " in line]
    assert rows == [[last, "1", "of", str(ram.size)], ["0:0", str(ram.size), "of", str(ram.size)]]


def test_a_head_that_the_model_lacks(show: Show, task: Path) -> None:
    code, out, said = show(task, "found0", "--head", "0:99")
    assert (code, out, len(said)) == (2, "", 1)
    assert "--head 0:99" in said[0]


def test_a_sample_without_evidence_is_shown_without_ram(show: Show, task: Path, tmp_path: Path) -> None:
    lines = task.parent / "found.jsonl"
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    del rows[0]["evidence"]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = show(task, "found0", "--head", "0:0")
    assert code == 0
    assert "no RAM: no evidence: the sample names no region" in out
    assert size_of(tmp_path)[0] > 100


def test_a_sample_that_cannot_be_shown_is_one_line_and_exit_1(show: Show, task: Path, tmp_path: Path) -> None:
    (task.parent / "found0.png").write_bytes(b"no picture")
    code, out, said = show(task, "found0", "--head", "0:0")
    assert (code, out, len(said)) == (1, "", 1)
    assert said[0].startswith("core_bench: error: sample found0 cannot be shown: ")
    assert "found0.png" in said[0]
    code, out, said = show(task, "found1", "--head", "0:0", "--query", "phrase")
    assert (code, out, len(said)) == (1, "", 1)
    assert "--query phrase" in said[0]
    assert not (tmp_path / "shown.png").exists()


def test_a_place_that_cannot_be_written(show: Show, task: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    code, out, said = show(task, "found0", "--head", "0:0", "--out", tmp_path / "folder.png")
    assert (code, out, len(said)) == (2, "", 1)
    assert "folder.png" in said[0]


def test_a_real_photo_a_page_and_a_film(show: Show, genuine_data: Path, tmp_path: Path) -> None:
    media = genuine_data / "media"
    photo, page, film = {"box": [100, 30, 400, 390]}, {"box": [100, 100, 500, 300]}, {"box": None, "frame": 0}
    rows: list[dict[str, Any]] = [
        {"id": "photo", "image": str(media / "coco_000000000785.jpg"), "evidence": [photo]},
        {"id": "paper", "pdf": str(media / "doc_4_pages.pdf"), "page": [0, 3], "evidence": [{**page, "medium": 1}]},
        {"id": "film", "video": str(media / "vid_bigbuckbunny.mp4"), "evidence": [film]},
    ]
    full = [{**row, "question": "What is shown here?", "answer": "it"} for row in rows]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in full))
    (tmp_path / "mine.yaml").write_text(
        "task: mine\ndataset_path: mine.jsonl\nmetadata: {core_bench: {evidence: evidence}}\n"
    )
    limits = ("--max-pixels", "65536", "--max-new-tokens", "2", "--head", "0:0")
    for row in rows:
        code, out, said = show(tmp_path / "mine.yaml", row["id"], *limits)
        assert (code, said) == (0, [])
        assert "no RAM" not in out
        assert size_of(tmp_path)[0] > 300
    assert "of 16 pictures are left out" in out
