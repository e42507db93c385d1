"""The bundled checkpoints against their manifest: what ships is what was trained, ranked and recorded."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from core_bench import checkpoints, headtables
from core_bench.bundled.train import RECIPES
from core_bench.checkpoints import MANIFEST, checkpoint_label, manifest, resolve_device, window_and_sink
from core_bench.config import DEFAULT_SINK, DEFAULT_WINDOW, RunConfig
from core_bench.heads import HeadScores, HeadShape
from core_bench.model_wrappers.loading import content_files, content_hash
from core_bench.provenance import media_marks
from core_bench.registry import MODELS, bundled_checkpoint, load_tasks, model_class
from core_bench.schema import Sample

FAMILIES = sorted(manifest())
MOST_BYTES = 8 * 2**20
every_family = pytest.mark.parametrize("family", FAMILIES)


def shape_of(family: str) -> HeadShape:
    text = json.loads((bundled_checkpoint(family) / "config.json").read_text(encoding="utf-8"))["text_config"]
    return HeadShape(text["num_hidden_layers"], text["num_attention_heads"], text["num_key_value_heads"])


def test_every_bundled_folder_is_in_the_manifest() -> None:
    assert FAMILIES, f"{MANIFEST.name} names no checkpoint"
    assert sorted(path.parent.name for path in MANIFEST.parent.glob("*/config.json")) == FAMILIES
    assert set(FAMILIES) <= set(MODELS)


@every_family
def test_files_are_those_of_the_manifest(family: str) -> None:
    folder, entry = bundled_checkpoint(family), manifest()[family]
    for name, expected in entry["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == expected, f"{family}/{name}"
    needed = {path.name for path in content_files(str(folder), None)}
    assert any(name.endswith(".safetensors") for name in needed)
    assert needed <= set(entry["files"]), "every file that the checkpoint consists of is listed"
    assert content_hash(str(folder), None) == entry["checkpoint_hash"]
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= MOST_BYTES


@every_family
def test_the_entry_says_how_it_was_made(family: str) -> None:
    entry = manifest()[family]
    keys = {"checkpoint_hash", "window", "sink", "files", "command", "seed", "versions", "figures"}
    assert keys <= entry.keys()
    assert re.match(rf"python -m core_bench\.bundled\.train --family {family}\b", entry["command"])
    assert isinstance(entry["seed"], int)
    assert {"torch", "transformers"} <= entry["versions"].keys()
    assert entry["recipe"] == {"family": family, **asdict(RECIPES[family])}, "the command still means the same"
    assert entry["figures"]
    assert "/home/" not in json.dumps(entry)


@every_family
def test_the_head_table_is_the_checkpoints_own(family: str) -> None:
    folder, entry, shape = bundled_checkpoint(family), manifest()[family], shape_of(family)
    assert shape.size >= 48
    scores = HeadScores.read_tsv(folder / headtables.TABLE, shape)
    assert scores.ram.shape == (shape.n_layers, shape.n_heads)
    assert scores.n >= 8
    sidecar = json.loads((folder / headtables.SIDECAR).read_text(encoding="utf-8"))
    assert sidecar["checkpoint_hash"] == entry["checkpoint_hash"]
    assert set(headtables.SIDECAR_KEYS) <= sidecar.keys()


@every_family
def test_a_run_finds_the_bundled_table_first(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORE_BENCH_CACHE", str(tmp_path))
    found = headtables.resolve("auto", checkpoint_hash=manifest()[family]["checkpoint_hash"], shape=shape_of(family))
    assert found is not None
    assert Path(found[1].where).parent == bundled_checkpoint(family)
    assert found[1].note is None


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where generated tasks are made, once for all families."""
    return tmp_path_factory.mktemp("data")


@every_family
@pytest.mark.parametrize("mode", ["ablate", "hybrid"])
def test_heads_were_found_on_other_samples(
    family: str, mode: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORE_BENCH_CACHE", str(tmp_path))
    found = headtables.resolve("auto", checkpoint_hash=manifest()[family]["checkpoint_hash"], shape=shape_of(family))
    assert found is not None
    used = [
        (spec.name, sample.id, sample.cluster, marks[sample.id])
        for spec in load_tasks(None, mode, True)
        if (samples := spec.samples(spec.split_for(mode), data_dir=str(data), limit=200))
        and (marks := media_marks(samples))
        for sample in samples
    ]
    assert used
    assert found[1].tasks
    assert found[1].media
    assert found[1].overlap(used) == []


@every_family
def test_it_loads_and_the_window_is_at_most_a_tenth_of_a_long_prompt(family: str, data: Path) -> None:
    entry = manifest()[family]
    wrapper = model_class(family).load(bundled_checkpoint(family))
    assert wrapper.shape == shape_of(family)
    assert wrapper.checkpoint_hash == entry["checkpoint_hash"]
    for spec in load_tasks(None, "hybrid", True):
        (sample,) = spec.samples(spec.split_for("hybrid"), data_dir=str(data), limit=1)
        assert isinstance(sample, Sample)
        length = wrapper.prepare(sample).token_map.length
        assert length >= 512
        assert entry["window"] <= length / 10


def test_window_and_sink_come_from_the_flag_the_checkpoint_or_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "MANIFEST.json"
    monkeypatch.setattr(checkpoints, "MANIFEST", file)
    config: dict[str, Any] = {"model": "qwen3vl", "mode": "hybrid"}
    assert manifest() == {}
    assert window_and_sink(RunConfig(**config), "abc") == (DEFAULT_WINDOW, DEFAULT_SINK) == (1024, 64)
    file.write_text(json.dumps({"qwen3vl": {"checkpoint_hash": "abc", "window": 40, "sink": 3}}))
    assert window_and_sink(RunConfig(**config), "abc") == (40, 3)
    assert window_and_sink(RunConfig(**config), "other") == (1024, 64)
    assert window_and_sink(RunConfig(**config, window=7), "abc") == (7, 3)
    assert window_and_sink(RunConfig(**config, sink=0), "abc") == (40, 0)


def test_records_name_a_bundled_checkpoint_without_a_path() -> None:
    assert checkpoint_label(RunConfig(model="qwen3vl", mode="dense")) == "bundled:qwen3vl"
    assert checkpoint_label(RunConfig(model="qwen3vl", mode="dense", checkpoint="org/name")) == "org/name"
    assert resolve_device("cpu") == "cpu"
    assert resolve_device("auto") in ("cpu", "cuda")
