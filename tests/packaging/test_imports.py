"""What an import costs, and what stays unloaded until a run needs it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import core_bench

LIGHT = [
    "core_bench",
    "core_bench.board",
    "core_bench.cli",
    "core_bench.config",
    "core_bench.decodeworker",
    "core_bench.decoding",
    "core_bench.errors",
    "core_bench.heads",
    "core_bench.ram",
    "core_bench.registry",
    "core_bench.results",
    "core_bench.schema",
    "core_bench.stats",
]
NO_NUMPY = ("core_bench", "core_bench.cli", "core_bench.config", "core_bench.registry")


def loaded_after(code: str, repo_root: Path) -> set[str]:
    """Top-level packages in sys.modules after `code` in a fresh interpreter."""
    report = "\nimport sys; print('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}))"
    result = subprocess.run([sys.executable, "-c", code + report], cwd=repo_root, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.rpartition("LOADED ")[2].split())


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_leave_torch_alone(repo_root: Path, module: str) -> None:
    loaded = loaded_after(f"import {module}", repo_root)
    assert not loaded & {"torch", "transformers", "torchvision", "datasets"}
    if module in NO_NUMPY:
        assert not loaded & {"numpy", "scipy", "pandas"}


def test_help_loads_no_heavy_package(repo_root: Path) -> None:
    code = (
        "import sys; from core_bench.cli import main\nsys.argv = ['core-bench', '--help']\n"
        "try: main()\nexcept SystemExit as stop: assert not stop.code, stop.code"
    )
    assert not loaded_after(code, repo_root) & {"torch", "transformers", "numpy", "scipy", "datasets", "PIL"}


def cpu_seconds(command: list[str], folder: Path) -> float:
    """CPU time, not wall time: other work on the machine must not decide this test. The mean of several runs: a system
    may count in steps of 10 ms, so that a short run often reads as none."""
    runs = 7
    before = os.times()
    for _ in range(runs):
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=60)
    after = os.times()
    return (after.children_user + after.children_system - before.children_user - before.children_system) / runs


def test_help_costs_at_most_eight_bare_interpreters(repo_root: Path) -> None:
    help_command = [sys.executable, "-m", "core_bench", "--help"]
    bare_command = [sys.executable, "-c", "pass"]
    deadline = time.monotonic() + 20
    while True:  # a busy machine inflates single readings: one quiet reading is enough to pass, none within 20 s fails
        costs, bare = cpu_seconds(help_command, repo_root), cpu_seconds(bare_command, repo_root)
        if costs <= 8 * bare or time.monotonic() > deadline:
            break
    assert costs <= 8 * bare, f"--help takes {costs:.3f} s of CPU, a bare interpreter {bare:.3f} s"


def test_public_names() -> None:
    assert core_bench.__version__ == "0.1.0"
    assert set(core_bench.__all__) <= set(dir(core_bench))
    assert core_bench.HeadPlan.__module__ == "core_bench.heads.plan"
    for name in ("load", "find_heads", "apply"):
        assert callable(getattr(core_bench, name))
    with pytest.raises(AttributeError, match="nonsense"):
        core_bench.nonsense  # noqa: B018
