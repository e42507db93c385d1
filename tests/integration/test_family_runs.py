"""A checkpoint of every family, saved in shards to a folder, through all four modes of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core_bench.heads import HeadScores
from core_bench.model_wrappers.base import ModelWrapper
from core_bench.results import verify_record

Bench = Callable[..., Any]


@pytest.fixture(scope="module")
def sharded(untrained: ModelWrapper, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(untrained.FAMILY)
    untrained.model.save_pretrained(folder, max_shard_size="1MB")
    untrained.processor.save_pretrained(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    return folder


@pytest.mark.parametrize("mode", ["dense", "detect", "ablate", "hybrid"])
def test_a_sharded_checkpoint_runs_every_mode(
    bench: Bench, task: Path, untrained: ModelWrapper, sharded: Path, mode: str
) -> None:
    """Where a mode needs a head table, it takes that of a detection beside it."""
    flags = ("--tasks", task, "--limit", "2", "--window", "8", "--sink", "2", "--keep", "10%", "--ablate", "top:25%")
    given: dict[str, Any] = {"model_folder": sharded, "family": untrained.FAMILY}
    if mode in ("ablate", "hybrid"):
        assert bench("detect", *flags[:2], out="found", **given).code == 0
    ran = bench(mode, *flags, **given)
    assert ran.code == 0, ran.said
    verify_record(ran.record, ran.rows)
    assert (ran.record["run"]["model"], ran.record["run"]["complete"]) == (untrained.FAMILY, True)
    arms = {"dense": ["dense"], "detect": ["detect"], "ablate": ["none", "top:25%"], "hybrid": ["dense", "hybrid:10%"]}
    assert sorted((row["id"][-1], row["arm"]) for row in ran.rows) == sorted(
        (n, arm) for n in "01" for arm in arms[mode]
    )
    assert all(row["failure"] is None for row in ran.rows)
    if mode == "detect":
        scores = HeadScores.read_tsv(ran.folder / "heads.tsv")
        assert scores.ram.shape == (untrained.shape.n_layers, untrained.shape.n_heads)
        assert (scores.ram > 0).all()
