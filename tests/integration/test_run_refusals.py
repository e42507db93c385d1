"""What a run refuses: one line that says why, exit 2, and nothing of an earlier run lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core_bench.heads import HeadScores

Bench = Callable[..., Any]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def table(bench: Bench, task: Path) -> Path:
    """A head table of the checkpoint, found on the task's own detection split."""
    return Path(bench("detect", "--tasks", task, out="found").folder / "heads.tsv")


def change_answer(task: Path) -> None:
    lines = task.parent / "tested.jsonl"
    lines.write_text(lines.read_text().replace("unknown", "known", 1))


def change_picture(task: Path) -> None:
    shutil.copy(task.parent / "tested1.png", task.parent / "tested0.png")


def change_generation(task: Path) -> None:
    task.write_text(task.read_text().replace("max_new_tokens: 2", "max_new_tokens: 3"))


def drop_a_row(task: Path) -> None:
    lines = task.parent / "tested.jsonl"
    lines.write_text("".join(lines.read_text().splitlines(keepends=True)[:3]))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (change_answer, "data.pictures"),
        (change_picture, "data.pictures"),
        (drop_a_row, "data.pictures"),
        (change_generation, "scoring.pictures.max_new_tokens: 2 there, 3 now"),
    ],
)
def test_changed_data_in_one_out(bench: Bench, task: Path, change: Callable[[Path], None], named: str) -> None:
    first = bench("dense", "--tasks", task)
    before = contents(first.folder)
    change(task)
    assert named in bench("dense", "--tasks", task).refusal
    assert contents(first.folder) == before


def test_changed_settings_in_one_out(bench: Bench, task: Path, table: Path) -> None:
    flags = ("--tasks", task, "--heads", table, "--keep", "2", "--window", "8")
    first = bench("hybrid", *flags)
    assert first.code == 0
    before = contents(first.folder)
    assert "window: 8 there, 16 now" in bench("hybrid", *flags[:-1], "16").refusal
    refusal = bench("hybrid", *flags, "--sink", "3", "--limit", "2").refusal
    assert "limit: null there, 2 now" in refusal
    assert "sink" in refusal
    assert "seed" not in refusal
    assert 'mode: "hybrid" there, "dense" now' in bench("dense", "--tasks", task).refusal
    assert contents(first.folder) == before


def test_other_heads_in_one_out(bench: Bench, task: Path, table: Path) -> None:
    flags = ("--tasks", task, "--heads", table, "--ablate", "top:2")
    first = bench("ablate", *flags)
    before = contents(first.folder)
    scores = HeadScores.read_tsv(table)
    other = scores.ram[::-1].copy()
    HeadScores(
        ram=other, stderr=scores.stderr, chance=scores.chance, sink_corrected=scores.sink_corrected, n=scores.n
    ).write_tsv(table)
    assert "heads_digest" in bench("ablate", *flags).refusal
    assert contents(first.folder) == before


def test_other_checkpoint_content_in_one_out(bench: Bench, task: Path, checkpoint: Path, tmp_path: Path) -> None:
    mine = Path(shutil.copytree(checkpoint, tmp_path / "mine"))
    first = bench("dense", "--tasks", task, model_folder=mine)
    before = contents(first.folder)
    template = mine / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    assert "checkpoint_hash" in bench("dense", "--tasks", task, model_folder=mine).refusal
    assert contents(first.folder) == before


def test_busy_out(bench: Bench, task: Path, tmp_path: Path) -> None:
    first = bench("dense", "--tasks", task, "--limit", "1")
    before = contents(first.folder)
    hold = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); input()"
    words = [sys.executable, "-S", "-c", hold, str(first.folder / ".lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        refusal = bench("dense", "--tasks", task, "--limit", "1").refusal
        holder.communicate(b"\n")
    assert "another process is working there" in refusal
    assert contents(first.folder) == before
    assert bench("dense", "--tasks", task, "--limit", "1").code == 0


def test_heads_are_not_tested_where_they_were_found(bench: Bench, task: Path, table: Path) -> None:
    task.write_text(task.read_text().replace("ablate: tested", "ablate: found"))
    flags = ("--tasks", task, "--heads", table, "--ablate", "top:2")
    refusal = bench("ablate", *flags).refusal
    assert "3 samples" in refusal
    assert "found0 of pictures" in refusal
    assert not (table.parent.parent / "out").exists()
    allowed = bench("ablate", *flags, "--allow-overlap")
    assert allowed.code == 0
    assert allowed.record["run"]["settings"]["allow_overlap"] is True
    assert "--allow-overlap" in allowed.record["run"]["command"]
    assert "heads may come from samples evaluated here" in allowed.tables


def test_one_shared_picture_is_an_overlap(bench: Bench, task: Path, table: Path) -> None:
    lines = task.parent / "tested.jsonl"
    lines.write_text(lines.read_text().replace("tested2.png", "found2.png"))
    refusal = bench("ablate", "--tasks", task, "--heads", table, "--ablate", "top:2").refusal
    assert "1 samples, first tested2 of pictures" in refusal


def test_the_same_picture_in_another_task_and_under_another_name(bench: Bench, task: Path, table: Path) -> None:
    task.write_text(task.read_text().replace("task: pictures", "task: others"))
    found, tested = task.parent / "found2.png", task.parent / "tested2.png"
    tested.write_bytes(found.read_bytes())
    refusal = bench("ablate", "--tasks", task, "--heads", table, "--ablate", "top:2").refusal
    assert "1 samples, first tested2 of others" in refusal


def test_a_head_list_that_changes_under_its_name(bench: Bench, task: Path, table: Path, tmp_path: Path) -> None:
    heads = tmp_path / "mine.tsv"
    heads.write_text("0\t1\n")
    flags = ("--tasks", task, "--heads", table, "--ablate", f"file:{heads}")
    before = contents(bench("ablate", *flags).folder)
    heads.write_text("3\t3\n4\t4\n")
    again = bench("ablate", *flags)
    assert "plans" in again.refusal
    assert contents(again.folder) == before


def test_scoring_code_that_changes(bench: Bench, task: Path) -> None:
    code = task.parent / "rules.py"
    code.write_text("def results(doc, said):\n    return {'right': 0.0}\n")
    task.write_text(task.read_text() + "process_results: !function rules.results\nmetric_list: [{metric: right}]\n")
    assert bench("dense", "--tasks", task).code == 0
    code.write_text("def results(doc, said):\n    return {'right': 1.0}\n")
    assert "scoring.pictures.code" in bench("dense", "--tasks", task).refusal


def test_settings_name_the_device_and_dtype_that_auto_meant(bench: Bench, task: Path) -> None:
    settings = bench("dense", "--tasks", task).record["run"]["settings"]
    assert settings["device"].startswith("cpu (")
    assert settings["dtype"] == "float32"


def test_a_table_of_another_models_shape(bench: Bench, task: Path, table: Path) -> None:
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(line for line in lines if not line.startswith("5\t")))
    refusal = bench("ablate", "--tasks", task, "--heads", table).refusal
    assert str(table) in refusal
    assert "5 layers x 8 heads" in refusal
    assert "6 layers x 8 heads" in refusal


def test_a_folder_without_weights(bench: Bench, task: Path, checkpoint: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(checkpoint, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors")))
    refusal = bench("dense", "--tasks", task, model_folder=bare).refusal
    assert str(bare) in refusal
    assert "weights" in refusal
    assert "config.json" in bench("dense", "--tasks", task, model_folder=tmp_path).refusal
    assert "no such folder" in bench("dense", "--tasks", task, model_folder=tmp_path / "nowhere").refusal


@pytest.mark.parametrize(
    ("mode", "flags", "said"),
    [
        ("detect", ["--model", "qwen3v"], "did you mean 'qwen3vl'"),
        ("ablat", [], "did you mean 'ablate'"),
        ("dense", ["--tasks", "core_refcocg_tiny"], "did you mean 'core_refcocog_tiny'"),
        ("hybrid", ["--keep", "0.5 heads"], "--keep: expected a share of heads such as 10% or a count such as 5"),
        ("hybrid", ["--keep", "110%"], "--keep: expected at most 100%"),
        ("hybrid", ["--window", "-5"], "--window: expected a whole number of at least 1"),
        ("ablate", ["--ablate", "middle:5%"], "--ablate: expected top:K, bottom:K, random:K or file:PATH"),
    ],
)
def test_a_mistake_in_a_flag(bench: Bench, mode: str, flags: list[str], said: str) -> None:
    ended = bench(mode, *flags)
    assert said in ended.refusal
    assert not ended.folder.exists()


def test_more_heads_than_the_model_has(bench: Bench, task: Path, table: Path) -> None:
    refusal = bench("hybrid", "--tasks", task, "--heads", table, "--keep", "49").refusal
    assert "--keep: expected at most the model's 48 heads" in refusal


def test_an_unknown_key_in_a_task_file(bench: Bench, task: Path) -> None:
    task.write_text(task.read_text() + "doc_to_txt: question\n")
    refusal = bench("dense", "--tasks", task).refusal
    assert f"{task}:{len(task.read_text().splitlines())}" in refusal
    assert "doc_to_txt" in refusal
    assert "doc_to_text" in refusal


def test_a_bug_is_no_users_mistake(bench: Bench, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a user can mend is told in one line; an error of ours keeps its traceback, and the rows stay."""
    from core_bench import running

    generate, calls = running.generate, []

    def third_breaks(*given: Any) -> tuple[str, int | None]:
        calls.append(1)
        if len(calls) == 3:
            raise KeyError("ours")
        return generate(*given)

    monkeypatch.setattr(running, "generate", third_breaks)
    with pytest.raises(KeyError, match="ours"):
        bench("dense", "--tasks", task)
    monkeypatch.setattr(running, "generate", generate)
    left = tmp_path / "outs" / "out"
    assert [json.loads(line)["id"] for line in (left / "samples.jsonl").read_text().splitlines()] == [
        "tested0",
        "tested1",
    ]
    assert json.loads((left / "record.json").read_text())["run"]["complete"] is False
    assert bench("dense", "--tasks", task).record["run"]["complete"] is True


def test_a_damaged_table_is_told(bench: Bench, task: Path, table: Path) -> None:
    table.write_text("layer\thead\n0\t0\n")
    refusal = bench("ablate", "--tasks", task, "--heads", table).refusal
    assert str(table) in refusal
