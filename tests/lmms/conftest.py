"""What the tests inside lmms-eval share: offline, one cache of generated data, one evaluation in this process.

`CORE_BENCH_REQUIRE_LMMS=1`, which `make test-lmms` sets, turns the skip where lmms-eval is absent into a failure.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REQUIRE_VARIABLE = "CORE_BENCH_REQUIRE_LMMS"


@pytest.fixture(scope="session", autouse=True)
def lmms_eval(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """lmms-eval is there, and nothing is fetched or kept outside a temporary folder."""
    if importlib.util.find_spec("lmms_eval") is None:
        reason = "lmms-eval is not installed: make test-lmms (tests/SKIPS.md)"
        if os.environ.get(REQUIRE_VARIABLE) == "1":
            pytest.fail(f"{REQUIRE_VARIABLE}=1, but {reason}")
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
            patch.setenv(name, "1")
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        patch.setenv("CORE_BENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tasks_folder(repo_root: Path) -> Path:
    return repo_root / "core_bench" / "tasks"


@pytest.fixture(scope="session")
def evaluate(tasks_folder: Path, lmms_eval: None) -> Callable[..., dict[str, Any]]:
    """One evaluation by lmms-eval in this process: task -> its logged samples, and "" -> the scores. The first argument
    names the model, with `model_args`, or is one that an earlier evaluation used."""
    from lmms_eval.evaluator import simple_evaluate
    from lmms_eval.tasks import TaskManager

    def run(model: Any, *tasks: str, model_args: str = "", include: Path = tasks_folder, **options: Any) -> Any:
        manager = TaskManager(include_path=str(include), include_defaults=False)
        results = simple_evaluate(
            model,
            model_args=model_args,
            tasks=list(tasks),
            task_manager=manager,
            batch_size=1,
            bootstrap_iters=0,
            **options,
        )
        return {**results["samples"], "": results["results"]}

    return run
