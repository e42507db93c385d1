"""Every task of one's own that docs/tasks.md and the README show, tried as it is written there by `tasks check`."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from core_bench import cli
from core_bench.bundled.mp4 import write_mp4

PAGES = {"docs/tasks.md": {"mine.yaml", "choices.yaml", "boxes.yaml"}, "README.md": {"mine.yaml"}}
TASKS = [(page, task) for page, tasks in PAGES.items() for task in sorted(tasks)]
_NAME = re.compile(r"`([\w.]+\.(?:jsonl|yaml))`")


def examples(page: Path) -> dict[str, str]:
    """File name -> content: the indented blocks whose lead-in starts with the name of a file."""
    blocks = re.split(r"\n\n", page.read_text(encoding="utf-8"))
    found = {}
    for lead, block in itertools.pairwise(blocks):
        name = _NAME.match(lead)
        if name and all(line.startswith("    ") for line in block.strip("\n").split("\n")):
            found[name[1]] = "".join(f"{line[4:]}\n" for line in block.strip("\n").split("\n"))
    return found


def write_media(folder: Path, rows: list[dict[str, object]]) -> None:
    """A small file for each one that the rows name."""
    rng = np.random.default_rng(5)
    for row in rows:
        if "image" in row:
            Image.fromarray(rng.integers(0, 256, (256, 320, 3), dtype=np.uint8)).save(folder / str(row["image"]))
        if "video" in row:
            write_mp4(folder / str(row["video"]), rng.integers(0, 256, (3, 64, 96, 3), dtype=np.uint8))
        if "pdf" in row:
            sheets = [Image.new("RGB", (120, 160), (200, 200, shade)) for shade in (0, 90, 180)]
            sheets[0].save(folder / str(row["pdf"]), save_all=True, append_images=sheets[1:])


@pytest.mark.parametrize("page", PAGES)
def test_no_example_is_left_out(repo_root: Path, page: str) -> None:
    found = examples(repo_root / page)
    assert {name for name in found if name.endswith(".yaml")} == PAGES[page]
    blocks = re.findall(r"^    task: \w+$", (repo_root / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert len(blocks) == len(PAGES[page])
    assert all(text.count("\n") <= 15 for text in found.values())


@pytest.mark.parametrize(("page", "task"), TASKS)
def test_an_example_works_as_it_stands(
    repo_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    page: str,
    task: str,
) -> None:
    files = examples(repo_root / page)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    source = next(name for name in files if name.endswith(".jsonl") and f"dataset_path: {name}\n" in files[task])
    rows = [json.loads(line) for line in files[source].splitlines()]
    write_media(tmp_path, rows)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["tasks", "check", task, "--model", "qwen3vl"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert f"{len(rows)} rows, 0 cannot be used" in printed.out
    asked = rows[0].get("question") or rows[0]["expression"]
    head, _, prompt = printed.out.partition("<|im_start|>user\n")
    assert f"  question: {asked}" in head
    assert str(asked) in prompt
    for option in rows[0].get("options", []):
        assert f". {option}\n" in prompt
    located = sum("evidence" in row or "bbox" in row for row in rows)
    assert f"evidence: {located} of {len(rows)} usable rows" in head
    shows_evidence = "evidence" in rows[0] or "bbox" in rows[0]
    assert ("of the question's attention" if shows_evidence else "no RAM: no evidence") in head
