"""RAM against attention maps summed by hand, and its average over samples."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_bench.errors import SampleError
from core_bench.ram import SampleRam, accumulate, chance_level, measure
from core_bench.schema import Media, Prepared, Sample, TokenMap


def sample_ram(value: float, placebo: float | None = None, chance: float = 0.1) -> SampleRam:
    grid = np.full((2, 3), value)
    return SampleRam(grid, None if placebo is None else np.full((2, 3), placebo), chance)


# --- averaging -------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(0, 30), min_size=1), st.sets(st.integers(0, 30), min_size=1))
def test_chance_counts_only_what_each_row_sees(omega: set[int], rows: set[int]) -> None:
    by_hand = [sum(j <= x for j in omega) / (x + 1) for x in rows]
    assert chance_level(sorted(omega), sorted(rows)) == pytest.approx(sum(by_hand) / len(by_hand))


def test_standard_error_is_clustered() -> None:
    """Ten copies of each of two samples say no more than the two samples."""
    two = accumulate([sample_ram(0.2), sample_ram(0.4)], ["a", "b"])
    many = accumulate([sample_ram(0.2)] * 10 + [sample_ram(0.4)] * 10, ["a"] * 10 + ["b"] * 10)
    np.testing.assert_allclose(two.ram, 0.3)
    np.testing.assert_allclose(two.stderr, 0.1)  # sd / sqrt(2) of 0.2 and 0.4
    np.testing.assert_allclose(many.stderr, two.stderr)
    assert (two.n, many.n) == (2, 20)


def test_one_cluster_has_no_standard_error() -> None:
    scores = accumulate([sample_ram(0.2), sample_ram(0.4)], ["a", "a"])
    assert np.isnan(scores.stderr).all()


def test_sink_correction_uses_the_samples_that_have_placebos() -> None:
    scores = accumulate([sample_ram(0.5, 0.1), sample_ram(0.7), sample_ram(0.3, 0.2)], "abc")
    np.testing.assert_allclose(scores.sink_corrected, (0.4 + 0.1) / 2)
    np.testing.assert_allclose(scores.ram, 0.5)
    np.testing.assert_allclose(scores.chance, 0.1)


def test_without_any_placebo_the_correction_is_unknown(tmp_path: Path) -> None:
    scores = accumulate([sample_ram(0.5), sample_ram(0.7)], "ab")
    assert np.isnan(scores.sink_corrected).all()
    scores.write_tsv(tmp_path / "heads.tsv")
    assert (tmp_path / "heads.tsv").read_text().splitlines()[1].split("\t")[5] == "nan"


def test_no_sample_is_an_error() -> None:
    with pytest.raises(SampleError):
        accumulate([], [])


# --- measuring -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("omega", "placebos", "rows", "words"),
    [
        ((), (), (9,), "no evidence token"),
        ((1,), (), (), "no query token"),
        ((1,), ((),), (9,), "no placebo token"),
        ((10,), (), (9,), "evidence token lies outside the prompt of 10"),
        ((1,), (), (-1,), "query token lies outside"),
        ((1,), ((2, 11),), (9,), "placebo token lies outside"),
    ],
)
def test_measure_refuses_positions_that_are_not_there(omega: Any, placebos: Any, rows: Any, words: str) -> None:
    prepared = Prepared(inputs={}, token_map=TokenMap(blocks=(), length=10), spans={})
    with pytest.raises(SampleError, match=words):
        measure(SimpleNamespace(), prepared, omega, placebos, rows)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def picture_prompt(tiny_model: Any, tiny_processor: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tiny model's wrapper and one prepared prompt with a picture."""
    from PIL import Image

    from core_bench.model_wrappers.qwen3vl import Qwen3VL

    path = tmp_path_factory.mktemp("ram") / "noise.png"
    pixels = np.random.default_rng(0).integers(0, 256, (128, 160, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    question = "What color is the circle?"
    sample = Sample(
        task="t",
        id="0",
        cluster="0",
        media=(Media(kind="image", path=str(path)),),
        prompt=question,
        question=question,
        target="red",
    )
    wrapper = Qwen3VL(tiny_model, tiny_processor)
    return wrapper, wrapper.prepare(sample)


def test_measure_equals_eager_attention_summed_by_hand(picture_prompt: Any) -> None:
    """The maps of transformers' eager attention know nothing of this package: norms, rotary embedding and GQA are
    theirs."""
    import torch

    wrapper, prepared = picture_prompt
    block = prepared.token_map.blocks[0]
    positions = block.positions()
    omega, placebos = positions[3:7], (positions[8:12], positions[12:16])
    rows = prepared.spans["question"]
    got = measure(wrapper, prepared, omega, placebos, rows)

    model = wrapper.model
    stock = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            maps = model(**wrapper.device_inputs(prepared), use_cache=False, output_attentions=True).attentions
    finally:
        model.set_attn_implementation(stock)
    maps_LHNM = np.stack([layer_BHNM[0].double().numpy() for layer_BHNM in maps])
    assert maps_LHNM.shape[:2] == (wrapper.shape.n_layers, wrapper.shape.n_heads)

    def by_hand(keys: Any) -> np.ndarray:
        return maps_LHNM[:, :, list(rows)][..., list(keys)].sum(axis=-1).mean(axis=-1)

    assert got.placebo is not None
    np.testing.assert_allclose(got.ram, by_hand(omega), atol=1e-5, rtol=0)
    np.testing.assert_allclose(got.placebo, (by_hand(placebos[0]) + by_hand(placebos[1])) / 2, atol=1e-5, rtol=0)
    assert math.isclose(got.chance, np.mean([4 / (x + 1) for x in rows]))
    assert got.ram.std() > 1e-4  # heads differ: equal maps would hide a mixed-up head order


def test_measure_does_not_depend_on_an_earlier_prompt(picture_prompt: Any) -> None:
    """Positions left over from another call (stale rope_deltas) would move every rotary embedding."""
    wrapper, prepared = picture_prompt
    omega, rows = prepared.token_map.blocks[0].positions()[3:7], prepared.spans["question"]
    first = measure(wrapper, prepared, omega, (), rows)
    wrapper.generate(prepared, max_new_tokens=2)
    second = measure(wrapper, prepared, omega, (), rows)
    np.testing.assert_array_equal(first.ram, second.ram)
    assert first.placebo is None
