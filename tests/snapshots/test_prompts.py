"""The prompt of every task under every family, to the letter, beside the one in prompts/<family>/<task>.txt.

A prompt that was changed on purpose: run these tests with --update-prompts, and read what git says changed.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest

from core_bench.model_wrappers.base import ModelWrapper
from core_bench.prompttext import readable_prompt
from core_bench.registry import MODELS, known_tasks
from core_bench.schema import Prepared, Sample

GOLDEN = Path(__file__).parent / "prompts"
SPECS = known_tasks()
GENERATED_SPLIT = "detect@512:1"  # one item with a prompt of about 512 tokens
_RUN = re.compile(r"\[(\S+) x (\d+)\]")


def prepared_of(wrapper: ModelWrapper, task: str, data: Path) -> Prepared:
    """The first sample of a task: of a generated split, or of the rows that stand for the real ones."""
    spec = SPECS[task]
    split = GENERATED_SPLIT if spec.generated else spec.keys["test_split"]
    sample = spec.samples(split, data_dir=str(data))[0]
    assert isinstance(sample, Sample), sample
    return wrapper.prepare(sample)


def difference(golden: Path, text: str) -> str | None:
    """What differs from the golden file, None if nothing does."""
    if not golden.is_file():
        return f"{golden} is missing: --update-prompts writes it"
    before = golden.read_text(encoding="utf-8")
    if before == text:
        return None
    lines = difflib.unified_diff(before.splitlines(), text.splitlines(), str(golden), "now", lineterm="")
    return "\n".join([*lines]) or "the ends of lines differ"


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("task", SPECS)
def test_a_prompt_is_as_it_was(
    wrappers: dict[str, ModelWrapper], data: Path, update_prompts: bool, family: str, task: str
) -> None:
    tokenizer = wrappers[family].processor.tokenizer
    prepared = prepared_of(wrappers[family], task, data)
    text = readable_prompt(tokenizer, prepared)
    whole = _RUN.sub(lambda run: run[1] * int(run[2]), text)
    assert tokenizer.encode(whole, add_special_tokens=False) == prepared.inputs["input_ids"][0].tolist()
    golden = GOLDEN / family / f"{task}.txt"
    if update_prompts:
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    if found := difference(golden, text):
        pytest.fail(found, pytrace=False)


def test_every_golden_file_is_of_a_task_and_a_family(update_prompts: bool) -> None:
    expected = {GOLDEN / family / f"{task}.txt" for family in MODELS for task in SPECS}
    stale = [path for path in GOLDEN.rglob("*.txt") if path not in expected]
    for path in stale if update_prompts else []:
        path.unlink()
    assert [path for path in stale if path.exists()] == []


def test_what_differs_is_told(tmp_path: Path) -> None:
    golden = tmp_path / "task.txt"
    assert "missing" in str(difference(golden, "one\ntwo\n"))
    golden.write_text("one\ntwo\n")
    assert difference(golden, "one\ntwo\n") is None
    told = str(difference(golden, "one\nthree\n")).splitlines()
    assert {"-two", "+three"} <= set(told)
    assert "+one" not in told
    assert difference(golden, "one\ntwo") == "the ends of lines differ"
