"""Fixtures that every test folder shares.

`CORE_BENCH_GENUINE_DATA` names a folder of real annotation slices and real media; tests that need it use
`genuine_data`. `CORE_BENCH_REQUIRE_GENUINE=1` turns their skip into a failure, so that a machine that has the folder
cannot forget it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

GENUINE_VARIABLE = "CORE_BENCH_GENUINE_DATA"
REQUIRE_VARIABLE = "CORE_BENCH_REQUIRE_GENUINE"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-prompts", action="store_true", help="write the golden files of tests/snapshots/prompts")


@pytest.fixture(scope="session")
def update_prompts(pytestconfig: pytest.Config) -> bool:
    """Whether golden prompts are written instead of compared."""
    return bool(pytestconfig.getoption("--update-prompts"))


@pytest.fixture(scope="session")
def genuine_data() -> Path:
    """The folder of real data (`annotations/`, `media/`), never written to. Skips where the variable is unset."""
    named = os.environ.get(GENUINE_VARIABLE)
    if not named:
        reason = f"{GENUINE_VARIABLE} is unset: the project ships no real datasets (tests/SKIPS.md)"
        if os.environ.get(REQUIRE_VARIABLE) == "1":
            pytest.fail(f"{REQUIRE_VARIABLE}=1, but {reason}")
        pytest.skip(reason)
    folder = Path(named).resolve()
    if not folder.is_dir():
        pytest.fail(f"{GENUINE_VARIABLE}: expected a folder, got {named}")
    return folder


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def tiny_model() -> Any:
    """A small, seeded, untrained Qwen3-VL in float32 on the CPU, in eval mode. Leave it as you found it."""
    from core_bench.bundled.architectures.qwen3vl import build_model

    return build_model(seed=0).eval()


@pytest.fixture(scope="session")
def tiny_processor() -> Any:
    from core_bench.bundled.architectures.qwen3vl import build_processor

    return build_processor()
