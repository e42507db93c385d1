"""Inside lmms-eval: the same predictions as our own runs, sample by sample; every task file; what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core_bench import HeadPlan, apply, load
from core_bench.errors import SampleError, UserError
from core_bench.heads import HeadScores
from core_bench.registry import bundled_checkpoint, known_tasks
from core_bench.schema import Sample

pytestmark = pytest.mark.lmms
TASK, LIMIT = "core_videomme_tiny", 8
# Two plans: the right heads full, and the wrong ones, with which the model must answer otherwise.
KEEPS = ("5%", "bottom:5%")
Answers = dict[str, str]
Evaluate = Callable[..., dict[str, Any]]


def program(module: str, *words: str) -> str:
    """Standard output of `python -m module`, which must end well."""
    done = subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def own_answers(folder: Path, *words: str) -> dict[str, Answers]:
    """What our own command line answers: arm -> sample id -> prediction."""
    program("core_bench", "--model", "qwen3vl", "--out", str(folder), *words)
    found: dict[str, Answers] = {}
    for row in lines_of(folder / "samples.jsonl"):
        assert row["failure"] is None, row
        found.setdefault(row["arm"], {})[row["id"]] = row["prediction"]
    return found


def answers_of(samples: list[dict[str, Any]]) -> Answers:
    return {row["sample"]: row["filtered_resps"][0] for row in samples}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, lmms_eval: None) -> dict[str, Answers]:
    words = ("--tasks", TASK, "--limit", str(LIMIT))
    folder = tmp_path_factory.mktemp("own")
    dense = own_answers(folder / "dense", "--mode", "dense", *words)
    return {**own_answers(folder / "hybrid", "--mode", "hybrid", "--keep", ",".join(KEEPS), *words), **dense}


def test_dense_by_the_command_line(own: dict[str, Answers], tasks_folder: Path, tmp_path: Path) -> None:
    told = program(
        "lmms_eval", "--model", "core_qwen3vl", "--tasks", TASK, "--include_path", str(tasks_folder),
        "--limit", str(LIMIT), "--log_samples", "--output_path", str(tmp_path),
    )  # fmt: skip
    logs = list(tmp_path.rglob("*_samples_*.jsonl"))
    assert len(logs) == 1, told[-3000:]  # lmms-eval ends with 0 after an error too
    rows = lines_of(logs[0])
    assert len(rows) == LIMIT
    assert {row["sample"]: row["filtered_resps"] for row in rows} == own["dense"]


@pytest.mark.parametrize("keep", KEEPS)
def test_hybrid(own: dict[str, Answers], evaluate: Evaluate, keep: str) -> None:
    samples = evaluate("core_qwen3vl", TASK, model_args=f"mode=hybrid,keep={keep}", limit=LIMIT)[TASK]
    assert len(samples) == LIMIT
    assert answers_of(samples) == own[f"hybrid:{keep}"]


def test_the_wrong_heads_answer_otherwise(own: dict[str, Answers]) -> None:
    """Without this, the plans above might as well not be there."""
    assert own["hybrid:bottom:5%"] != own["dense"]


def first_samples(task: str, count: int) -> list[Sample]:
    """Those that lmms-eval takes."""
    spec = known_tasks()[task]
    return [sample for sample in spec.samples(spec.split_for("dense"), limit=count) if isinstance(sample, Sample)]


def test_ablation_and_a_second_evaluation_of_one_model(evaluate: Evaluate) -> None:
    """Our own ablation runs on another split, so that the same samples are asked directly here."""
    from core_bench.lmms_plugin.model import CoreQwen3VL

    task = "core_refcocog_tiny"
    model = CoreQwen3VL(mode="ablate", ablate="top:5%", off="blind")
    first, second = (answers_of(evaluate(model, task, limit=4)[task]) for _ in range(2))
    assert first == second
    wrapper = load("qwen3vl")
    heads = HeadScores.read_tsv(bundled_checkpoint("qwen3vl") / "heads.tsv", wrapper.shape).top(2)
    with apply(wrapper.model, HeadPlan.ablation(wrapper.shape, heads, kind="blind")):
        said = {sample.id: wrapper.generate(wrapper.prepare(sample), 4) for sample in first_samples(task, 4)}
    assert first == said
    assert first != {sample.id: sample.target for sample in first_samples(task, 4)}, "nothing was ablated"


def test_every_task_file(tasks_folder: Path) -> None:
    """Each is found by --include_path; generated ones have our samples, and data that is not here is told in a line."""
    from lmms_eval.tasks import TaskManager

    from core_bench.lmms_plugin.task import CoreTask

    manager = TaskManager(include_path=str(tasks_folder), include_defaults=False)
    specs = known_tasks()
    assert set(specs) <= set(manager.all_tasks)
    for name, spec in specs.items():
        if not spec.generated:
            with pytest.raises(UserError) as refused:
                manager.load_task_or_group(name, "chat")
            assert "\n" not in str(refused.value)
            assert ("where heads look" in str(refused.value)) == spec.ranks
            continue
        task = manager.load_task_or_group(name, "chat")[name]
        assert isinstance(task, CoreTask)
        samples = first_samples(name, 10_000)
        assert [task.doc_to_text(doc) for doc in task.test_docs()] == [sample.prompt for sample in samples]
        assert [task.sample(doc) for doc in task.test_docs()] == samples
        assert set(task.aggregation()) >= set(spec.metrics)


def test_data_lies_where_the_model_argument_says(evaluate: Evaluate, tmp_path: Path) -> None:
    task = "core_refcocog_tiny"
    for argument, inside in ((f"data_dir={tmp_path}", True), ("", False)):
        evaluate("core_qwen3vl", task, model_args=argument, limit=1)
        assert bool(list(tmp_path.rglob("*.png"))) == inside
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()


def test_a_sample_that_fails_is_not_scored(evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch) -> None:
    from core_bench.lmms_plugin.model import CoreQwen3VL
    from core_bench.lmms_plugin.task import FAILED

    model = CoreQwen3VL()
    prepare = model.wrapper.prepare
    broken: list[str] = []

    def once(sample: Sample, **options: Any) -> Any:
        if not broken:
            broken.append(sample.id)
            raise SampleError("no such file")
        return prepare(sample, **options)

    monkeypatch.setattr(model.wrapper, "prepare", once)
    found = evaluate(model, "core_mlvu_tiny", limit=4)
    failed, *rest = found["core_mlvu_tiny"]
    assert [failed["sample"], failed["filtered_resps"][0]] == [broken[0], FAILED + "no such file"]
    assert "m_avg" not in failed
    assert all(row["accuracy"] == 1.0 for row in rest), "the bundled model reads these"
    scores = found[""]["core_mlvu_tiny"]
    assert (scores["accuracy,none"], scores["m_avg,none"]) == (1.0, 1.0)


def test_groups_count_the_same() -> None:
    from core_bench.lmms_plugin.task import mean_of_groups

    assert mean_of_groups([("a", 1.0), ("a", 1.0), ("a", 1.0), ("b", 0.0)]) == 0.5


def test_heads_are_not_tested_on_what_they_were_found_on(evaluate: Evaluate, tmp_path: Path) -> None:
    task, bundled = "core_refcocog_tiny", bundled_checkpoint("qwen3vl")
    [first] = first_samples(task, 1)
    shutil.copy(bundled / "heads.tsv", tmp_path)
    sidecar = json.loads((bundled / "heads.json").read_text())
    sidecar["samples"] = {task: {"ids": [first.id], "clusters": [first.cluster]}}
    (tmp_path / "heads.json").write_text(json.dumps(sidecar))
    arguments = f"mode=hybrid,heads={tmp_path / 'heads.tsv'}"
    with pytest.raises(UserError, match=f"1 samples, first {first.id} of {task}"):
        evaluate("core_qwen3vl", task, model_args=arguments, limit=2)
    assert len(evaluate("core_qwen3vl", task, model_args=f"{arguments},allow_overlap=true", limit=2)[task]) == 2


@pytest.mark.parametrize(
    ("arguments", "said"), [("mode=hybrid,kep=5%", "did you mean 'keep'"), ("keep=5%", "not read in mode=dense")]
)
def test_model_arguments_are_strict(evaluate: Evaluate, arguments: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        evaluate("core_qwen3vl", TASK, model_args=arguments)


def test_one_process_and_one_prompt_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from core_bench.lmms_plugin.model import CoreQwen3VL

    with pytest.raises(UserError, match="--batch_size: expected 1"):
        CoreQwen3VL(batch_size="4")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="one process"):
        CoreQwen3VL()


def test_families_are_registered() -> None:
    from lmms_eval.models import get_model

    from core_bench.lmms_plugin import MODELS
    from core_bench.registry import MODELS as FAMILIES

    assert {get_model(name).FAMILY for name in MODELS} == set(FAMILIES)


def test_a_task_of_lmms_evals_own_kind(evaluate: Evaluate, tmp_path: Path) -> None:
    """No `class`: lmms-eval reads the file itself and hands over chat messages with a picture in memory."""
    asked = [
        {"id": sample.id, "path": sample.media[0].path, "question": sample.prompt, "answer": sample.target}
        for sample in first_samples("core_refcocog_tiny", 3)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    (tmp_path / "theirs.py").write_text(
        "from PIL import Image\n"
        "def visual(doc):\n"
        "    return [Image.open(doc['path'])]\n"
        "def results(doc, results):\n"
        "    return {'sample': doc['id'], 'right': float(results[0].strip().lower() == doc['answer'])}\n"
    )
    (tmp_path / "theirs.yaml").write_text(
        "task: theirs\ndataset_path: json\ndataset_kwargs: {data_files: {test: rows.jsonl}}\ntest_split: test\n"
        "doc_to_visual: !function theirs.visual\ndoc_to_text: question\ndoc_to_target: answer\n"
        "process_results: !function theirs.results\ngeneration_kwargs: {max_new_tokens: 4}\n"
        "metric_list: [{metric: right, aggregation: mean, higher_is_better: true}]\n"
    )
    theirs = answers_of(evaluate("core_qwen3vl", "theirs", include=tmp_path)["theirs"])
    assert theirs == answers_of(evaluate("core_qwen3vl", "core_refcocog_tiny", limit=3)["core_refcocog_tiny"])
