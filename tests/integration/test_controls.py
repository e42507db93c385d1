"""The controls: really blind, really shuffled, measured once, and never the cause of a lost run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from core_bench.config import RunConfig
from core_bench.controls import derangement, image_blind, shuffled_media
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.registry import load_tasks
from core_bench.schema import Media, Sample
from core_bench.taskspec import FailedSample, TaskSpec

CONFIG = RunConfig(model="qwen3vl", mode="dense", max_new_tokens=2)
TASK = "core_refcocog_tiny"


class Counting(Qwen3VL):
    """Counts what it is asked, and answers what the test says instead of the untrained model's noise."""

    generated = 0
    noise_seeds: list[int | None]
    answer = "red"

    def prepare(self, sample: Sample, **options: Any) -> Any:
        self.noise_seeds.append(options.get("noise_seed"))
        return super().prepare(sample, **options)

    def generate(self, prepared: Any, max_new_tokens: int) -> str:
        self.generated += 1
        super().generate(prepared, max_new_tokens)
        return self.answer


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORE_BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wrapper(tiny_model: Any, tiny_processor: Any) -> Counting:
    counting = Counting(tiny_model, tiny_processor)
    counting.noise_seeds = []
    counting.__dict__["checkpoint_hash"] = "0" * 16  # in memory: there is no folder to hash
    return counting


@pytest.fixture(scope="module")
def spec() -> TaskSpec:
    (found,) = load_tasks([TASK], "dense", True)
    return found


Maker = Callable[..., Sample]


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    def sample(name: str, color: str = "red", seed: int = 0, size: tuple[int, int] = (96, 64)) -> Sample:
        path = tmp_path / f"{name}-{color}-{seed}.png"
        pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        question = "What color is the ring?"
        return Sample(
            task=TASK,
            id=name,
            cluster=name,
            media=(Media(kind="image", path=str(path)),),
            prompt=f"{question}\nAnswer with one word.",
            question=question,
            phrase="the ring",
            target=color,
            doc={"vqa_answer": color},
        )

    return sample


def test_it_is_measured_once_and_read_from_then_on(cache: Path, wrapper: Counting, spec: TaskSpec, make: Maker) -> None:
    samples = [make("a", "red"), make("b", "blue"), make("c", "red"), make("d", "red")]
    first = image_blind(wrapper, CONFIG, spec, samples)
    assert first is not None
    assert first["value"] == 0.75
    assert first["ci95"][0] <= 0.75 <= first["ci95"][1]
    assert (wrapper.generated, wrapper.noise_seeds) == (4, [0] * 4), "every picture is noise"
    (file,) = (cache / "controls").iterdir()
    assert json.loads(file.read_text()) == first
    wrapper.answer = "blue"
    assert image_blind(wrapper, CONFIG, spec, samples) == first
    assert wrapper.generated == 4, "the second time nothing is generated"
    assert image_blind(wrapper, replace(CONFIG, strict=True, out="elsewhere"), spec, samples) == first
    assert wrapper.generated == 4


def test_what_moves_the_score_is_measured_anew(
    cache: Path, wrapper: Counting, spec: TaskSpec, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [make("a"), make("b")]
    image_blind(wrapper, CONFIG, spec, samples)
    runs = 1
    changed_keys = {**spec.keys, "generation_kwargs": {"max_new_tokens": 1}}
    unset = replace(CONFIG, max_new_tokens=None)
    variants = [
        (replace(CONFIG, seed=1), spec, samples),
        (replace(CONFIG, max_new_tokens=3), spec, samples),
        (replace(CONFIG, max_pixels=64 * 64), spec, samples),
        (CONFIG, spec, samples[:1]),
        (CONFIG, spec, [samples[0], make("b", seed=9)]),
        (unset, spec, samples),
        (unset, replace(spec, keys=changed_keys), samples),  # type: ignore[arg-type]
    ]
    for config, task, used in variants:
        image_blind(wrapper, config, task, used)
        runs += 1
        assert len(list((cache / "controls").iterdir())) == runs
    wrapper.__dict__["checkpoint_hash"] = "1" * 16
    image_blind(wrapper, CONFIG, spec, samples)
    assert len(list((cache / "controls").iterdir())) == runs + 1


def test_samples_that_fail_are_left_out(cache: Path, wrapper: Counting, spec: TaskSpec, make: Maker) -> None:
    missing = replace(make("gone"), media=(Media(kind="image", path="nowhere.png"),))
    failed = FailedSample(id="bad", cluster="", reason="no such column")
    result = image_blind(wrapper, CONFIG, spec, [make("a"), missing, failed])
    assert result is not None
    assert result["value"] == 1.0
    assert wrapper.generated == 1
    wrapper.generated = 0
    for _ in range(2):
        assert image_blind(wrapper, CONFIG, spec, [missing, failed]) is None
    assert wrapper.generated == 0


def test_a_cache_that_cannot_be_written_costs_no_result(
    cache: Path, wrapper: Counting, spec: TaskSpec, make: Maker, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.write_text("a file where the folder should be")
    result = image_blind(wrapper, CONFIG, spec, [make("a")])
    assert result is not None
    assert result["value"] == 1.0
    assert "not cached" in capsys.readouterr().err


def test_noise_holds_nothing_of_the_picture(wrapper: Counting, make: Maker) -> None:
    seen = wrapper.prepare(make("a", seed=1))
    blind = wrapper.prepare(make("a", seed=1), noise_seed=0)
    assert torch.equal(seen.inputs["input_ids"], blind.inputs["input_ids"]), "same prompt, same number of tokens"
    assert (seen.token_map, seen.spans) == (blind.token_map, blind.spans)
    difference = (seen.inputs["pixel_values"] - blind.inputs["pixel_values"]).abs()
    assert (difference > 0.1).float().mean() > 0.7

    def noise(**changes: Any) -> torch.Tensor:
        options = {"name": "a", "seed": 1, "noise_seed": 0, **changes}
        noise_seed = options.pop("noise_seed")
        pixels: torch.Tensor = wrapper.prepare(make(**options), noise_seed=noise_seed).inputs["pixel_values"]
        return pixels

    assert torch.equal(noise(), noise(seed=2)), "another picture of the same size gives the very same noise"
    assert not torch.equal(noise(), noise(name="b")), "each sample has noise of its own"
    assert not torch.equal(noise(), noise(noise_seed=1))


# --- shuffled media ---------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8), seed=st.integers(0, 10**6))
def test_derangement_leaves_every_cluster(sizes: list[int], seed: int) -> None:
    clusters = {f"s{c}-{i}": f"c{c}" for c, size in enumerate(sizes) for i in range(size)}
    givers = derangement(clusters, seed)
    if 2 * max(sizes) > sum(sizes):
        assert givers is None, "more than half in one cluster: nobody else to give"
        return
    assert givers is not None
    assert sorted(givers) == sorted(givers.values()) == sorted(clusters), "a permutation"
    assert all(clusters[taker] != clusters[giver] for taker, giver in givers.items())
    assert derangement(dict(reversed(clusters.items())), seed) == givers


def test_derangement_depends_on_the_seed() -> None:
    clusters = {str(i): str(i) for i in range(30)}
    assert derangement(clusters, 0) != derangement(clusters, 1)
    assert derangement({}, 0) is None


def test_every_sample_is_shown_anothers_media(cache: Path, wrapper: Counting, spec: TaskSpec, make: Maker) -> None:
    samples = [
        make(name, color, seed) for seed, (name, color) in enumerate(zip("abcd", ["red"] * 3 + ["blue"], strict=True))
    ]
    seen: dict[str, Sample] = {}
    prepare = wrapper.prepare

    def watched(sample: Sample, **options: Any) -> Any:
        seen[sample.id] = sample
        return prepare(sample, **options)

    wrapper.prepare = watched  # type: ignore[method-assign]
    first = shuffled_media(wrapper, CONFIG, spec, samples)
    assert first is not None
    assert first["value"] == 0.75, "scored against the sample's own answer"
    assert wrapper.noise_seeds == [None] * 4
    own = {sample.id: sample for sample in samples}
    assert sorted(seen) == sorted(own)
    assert {s.media for s in seen.values()} == {s.media for s in samples}
    for name, shown in seen.items():
        assert shown.media != own[name].media
        assert (shown.prompt, shown.target, shown.evidence) == (own[name].prompt, own[name].target, ())
    assert shuffled_media(wrapper, CONFIG, spec, samples) == first
    assert wrapper.generated == 4, "the second time nothing is generated"
    blind = image_blind(wrapper, CONFIG, spec, samples)
    assert blind is not None
    assert wrapper.generated == 8, "the two controls do not share a cache"
    shuffled_media(wrapper, replace(CONFIG, seed=3), spec, samples)
    assert wrapper.generated in (8, 12), "another seed may give the same exchange, and then the same result"


def test_nobody_to_exchange_with(cache: Path, wrapper: Counting, spec: TaskSpec, make: Maker) -> None:
    alone = [make("a"), replace(make("b"), cluster="a"), make("c")]
    assert shuffled_media(wrapper, CONFIG, spec, alone) is None
    assert shuffled_media(wrapper, CONFIG, spec, []) is None
    assert wrapper.generated == 0
