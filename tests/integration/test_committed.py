"""What is made from the committed records is that of these records, and comes out the same, byte for byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from core_bench.board.pages import write_pages
from core_bench.bundled.claims import BEGIN, END, main
from core_bench.bundled.records import ATTENTION, SPEED, published
from core_bench.checkpoints import manifest
from core_bench.report.speedfile import load_speed
from core_bench.runfolder import load_record

PICTURES = ("map", "ablation", "hybrid")
ZONES = {"0": "UTC", "1": "Pacific/Auckland"}  # hash seed -> time zone


def test_pages_are_those_of_the_committed_records(repo_root: Path, tmp_path: Path) -> None:
    committed = repo_root / "leaderboard"
    shutil.copytree(committed / "results", tmp_path / "results")
    for path in write_pages(tmp_path):
        assert path.read_bytes() == (committed / path.name).read_bytes(), f"{path.name}: make report"


def test_committed_records_are_of_the_bundled_checkpoints(repo_root: Path) -> None:
    """A checkpoint that was trained anew needs new records: make records."""
    for family, measured in published(repo_root / "leaderboard").items():
        for folder in measured.runs.values():
            assert (
                load_record(folder / "record.json")["run"]["checkpoint_hash"] == manifest()[family]["checkpoint_hash"]
            )


def test_committed_times_are_of_the_committed_records(repo_root: Path) -> None:
    board = repo_root / "leaderboard"
    there = published(board)
    for path in sorted((board / SPEED).glob("*")):
        run = load_speed(path).run
        if path.stem == ATTENTION:
            assert run["shape"]
            continue
        of = load_record(there[path.stem].runs["detect"] / "record.json")["run"]
        assert (run["checkpoint"], run["checkpoint_hash"]) == (of["checkpoint"], of["checkpoint_hash"]), path.name


@pytest.mark.parametrize(("page", "families"), [("README.md", ["qwen3vl"]), ("docs/bundled-models.md", [])])
def test_tables_of_claims_are_those_of_the_committed_records(
    repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, families: list[str]
) -> None:
    (tmp_path / "page.md").write_text(f"{BEGIN}\n{END}\n")
    words = ["--board", str(repo_root / "leaderboard"), *families, "--write", str(tmp_path / "page.md")]
    monkeypatch.setattr(sys, "argv", ["claims", *words])
    assert main() in (0, 1)  # 1: a claim that does not hold, which the table says
    block = (tmp_path / "page.md").read_text().strip()
    assert block in (repo_root / page).read_text(), f"{page}: make report"


def reports(repo_root: Path, out: Path, hash_seed: str) -> dict[str, bytes]:
    """Every file of both reports that scripts/report.sh makes, by a process of its own."""
    board = repo_root / "leaderboard"
    everything = [*sorted((board / "results").iterdir()), *sorted((board / SPEED).glob("*.json"))]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "TZ": ZONES[hash_seed]}
    for name, runs in (("all", everything), ("qwen3vl", sorted((board / "results").glob("qwen3vl-*")))):
        words = ["-m", "core_bench", "report", *map(str, runs), "--out", str(out / name)]
        done = subprocess.run([sys.executable, *words], cwd=repo_root, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_reports_of_the_committed_records(repo_root: Path, tmp_path: Path) -> None:
    """The same bytes in another process, hash seed and time zone; and the README's pictures are among them."""
    first, second = (reports(repo_root, tmp_path / seed, seed) for seed in ZONES)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    readme = (repo_root / "README.md").read_text()
    for name in PICTURES:
        committed = repo_root / "docs" / "figures" / f"{name}.png"
        assert f"](docs/figures/{name}.png)" in readme
        assert committed.stat().st_size <= 150_000
        shown, drawn = (
            np.asarray(Image.open(path).convert("RGB"), dtype=np.int16)
            for path in (committed, tmp_path / "0" / "qwen3vl" / "figures" / f"{name}.png")
        )
        # Another matplotlib may smooth edges otherwise; other numbers move marks and colours.
        assert shown.shape == drawn.shape
        assert np.mean(np.abs(shown - drawn).max(axis=2) > 64) < 0.001, f"{name}.png: make report"
