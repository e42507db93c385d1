"""RunConfig: what it refuses, and what its settings stand for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from core_bench.config import MODES, RunConfig
from core_bench.errors import UserError


def config(**values: Any) -> RunConfig:
    return RunConfig(**{"model": "qwen3vl", "mode": "hybrid", **values})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": "qwen"}, "--model: expected one of qwen3vl, llava_onevision, internvl, got 'qwen'"),
        ({"mode": "Hybrid"}, "--mode"),
        ({"keep": "0.5 heads"}, "--keep"),
        ({"keep": "110%"}, "--keep"),
        ({"keep": ""}, "--keep"),
        ({"keep": "5%,5%"}, "--keep"),
        ({"keep": "file:nowhere.tsv"}, "nowhere.tsv"),
        ({"ablate": "middle:5%"}, "--ablate"),
        ({"ablate": "top:5%,,bottom:5%"}, "--ablate"),
        ({"window": -5}, "--window: expected a whole number of at least 1, got -5"),
        ({"window": 0}, "--window"),
        ({"window": True}, "--window"),
        ({"window": 1.5}, "--window"),
        ({"sink": -1}, "--sink"),
        ({"overlap": 1.0}, "--overlap"),
        ({"overlap": float("nan")}, "--overlap"),
        ({"overlap": -0.1}, "--overlap"),
        ({"limit": 0}, "--limit"),
        ({"seed": -1}, "--seed"),
        ({"frames": 0}, "--frames"),
        ({"fps": 0.0}, "--fps"),
        ({"fps": float("inf")}, "--fps"),
        ({"frames": 8, "fps": 2.0}, "--frames and --fps"),
        ({"max_pixels": 0}, "--max-pixels"),
        ({"prefill_chunk": 0}, "--prefill-chunk"),
        ({"max_new_tokens": 0}, "--max-new-tokens"),
        ({"heads": "nowhere.tsv"}, "--heads"),
        ({"heads": ""}, "--heads"),
        ({"out": ""}, "--out"),
        ({"revision": "main"}, "--revision"),
        ({"tasks": ()}, "--tasks"),
        ({"tasks": ("a", "")}, "--tasks"),
        ({"tasks": ("a", "a")}, "--tasks"),
        ({"tasks": "a"}, "tasks"),
        ({"off": "mean"}, "--off"),
        ({"hold": "decode"}, "--hold"),
        ({"query": "all"}, "--query"),
        ({"dtype": "int8"}, "--dtype"),
        ({"device": "cuda:x"}, "--device"),
        ({"device_map": "everywhere"}, "--device-map"),
        ({"device_map": "auto", "device": "cpu"}, "--device-map"),
        ({"attention": "flash"}, "--attention"),
    ],
)
def test_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        config(**values)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1", "mps"])
def test_devices(device: str) -> None:
    assert config(device=device).device == device


def test_defaults() -> None:
    plain = config()
    assert (plain.keep, plain.heads, plain.seed, plain.query, plain.overlap) == ("10%", "auto", 0, "question", 0.0)
    assert plain.ablate == "top:5%,bottom:5%,random:5%"
    assert plain.bundled
    assert not config(checkpoint="somebody/model").bundled
    assert plain.hold_or_default == "prefill"
    assert config(mode="ablate").hold_or_default == "always"
    assert config(mode="ablate", hold="prefill").hold_or_default == "prefill"


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().seed = 1  # type: ignore[misc]


def test_arms_are_named_as_the_user_wrote_them() -> None:
    assert list(config(keep="5%,10%,bottom:10%,3").hybrid_arms()) == [
        "hybrid:5%", "hybrid:10%", "hybrid:bottom:10%", "hybrid:3",
    ]  # fmt: skip
    assert list(config(ablate="5%,bottom:2").ablate_arms()) == ["top:5%", "bottom:2"]


@pytest.mark.parametrize("mode", MODES)
def test_settings_are_json_and_name_the_output(mode: str) -> None:
    run = config(mode=mode, tasks=("a", "b"))
    assert json.loads(json.dumps(run.settings())) == run.settings()
    assert run.default_out() == Path("runs") / f"qwen3vl-{mode}-{run.settings_hash()}"
    assert config(mode=mode, tasks=("a", "b"), out="x").out_dir() == Path("x")


CHANGES: dict[str, Any] = {
    "checkpoint": "c", "data_dir": "d", "tasks": ("t",), "keep": "5%", "ablate": "top:2", "window": 7, "sink": 7,
    "off": "blind", "hold": "always", "query": "last", "overlap": 0.5, "frames": 3, "fps": 1.5, "max_pixels": 9,
    "prefill_chunk": 64, "device_map": "auto",
    "max_new_tokens": 3, "limit": 3, "seed": 3, "device": "cpu", "dtype": "float32", "attention": "reference",
    "allow_overlap": True,
}  # fmt: skip
READ_ONLY_BY = {
    "keep": {"hybrid"}, "window": {"hybrid"}, "sink": {"hybrid"}, "ablate": {"ablate"}, "off": {"ablate"},
    "hold": {"hybrid", "ablate"}, "allow_overlap": {"hybrid", "ablate"},
    "query": {"hybrid", "ablate", "detect"}, "overlap": {"hybrid", "ablate", "detect"},
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_changes_the_output_folder_in_the_modes_that_read_it(mode: str, name: str) -> None:
    value = "prefill" if (name, mode) == ("hold", "ablate") else CHANGES[name]
    changed = config(mode=mode, **{name: value})
    reads = mode in READ_ONLY_BY.get(name, set(MODES))
    assert (changed.settings_hash() != config(mode=mode).settings_hash()) == reads
    assert changed.unread({name}) == ([] if reads else [name])


def test_output_and_strictness_are_no_settings() -> None:
    assert config(out="x", strict=True).settings() == config().settings()
    assert config(hold="prefill").settings() == config().settings()


def test_every_field_is_either_a_setting_or_known_not_to_be(tmp_path: Path) -> None:
    fields = {field.name for field in dataclasses.fields(RunConfig)}
    assert fields == set(CHANGES) | {"model", "mode", "revision", "heads", "out", "strict"}
    table = tmp_path / "heads.tsv"
    table.touch()
    assert config(heads=str(table)).settings_hash() != config().settings_hash()
    assert config(checkpoint="c", revision="r").settings_hash() != config(checkpoint="c").settings_hash()
