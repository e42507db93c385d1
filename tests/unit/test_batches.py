"""Training batches against the real processor and the real model: same patches, same ids, right places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core_bench.bundled import words
from core_bench.bundled.batches import Turns, build_row, make_batch, patchify
from core_bench.bundled.scene import CELL, Scene, make_scene


@pytest.fixture(scope="module")
def turns(tiny_processor: Any) -> Turns:
    return Turns(tiny_processor.tokenizer)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(2, 7), cols=st.integers(2, 7))
def test_patches_equal_the_image_processors(tiny_processor: Any, seed: int, rows: int, cols: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (rows * CELL, cols * CELL, 3), dtype=np.uint8)
    real = tiny_processor.image_processor([pixels], return_tensors="pt", input_data_format="channels_last")
    assert real["image_grid_thw"].tolist() == [[1, 2 * rows, 2 * cols]]
    ours = patchify(pixels)
    assert ours.shape == real["pixel_values"].shape
    assert (ours - real["pixel_values"]).abs().max() <= 1e-6


def conversation(scene: Scene, turns: Turns, ids: list[int]) -> str:
    """A row as text, the visual tokens folded into the one that the processor expands."""
    text = str(turns.tokenizer.decode(ids))
    return text.replace("<|image_pad|>" * (scene.pixels.shape[0] * scene.pixels.shape[1] // CELL**2), "<|image_pad|>")


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n_objects=st.integers(1, 10), max_turns=st.integers(1, 6))
def test_a_row_is_what_the_processor_makes_of_that_conversation(
    tiny_processor: Any, turns: Turns, seed: int, n_objects: int, max_turns: int
) -> None:
    rng = np.random.default_rng(seed)
    scene = make_scene(rng, 4, 5, n_objects)
    ids, answers, aux = build_row(scene, turns, rng, max_turns)
    text = conversation(scene, turns, ids)
    real = tiny_processor(text=[text], images=[scene.pixels], return_tensors="pt", input_data_format="channels_last")
    assert ids == real["input_ids"][0].tolist()

    asked = text.split("<|im_start|>user\n")[1:]
    messages = []
    for number, turn in enumerate(asked):
        question, _, answer = turn.partition("<|im_end|>\n<|im_start|>assistant\n")
        question = question.removeprefix("<|vision_start|><|image_pad|><|vision_end|>")
        content: list[dict[str, Any]] = [{"type": "image"}] if number == 0 else []
        messages.append({"role": "user", "content": [*content, {"type": "text", "text": question}]})
        messages.append(
            {"role": "assistant", "content": [{"type": "text", "text": answer.removesuffix("<|im_end|>\n")}]}
        )
    assert tiny_processor.apply_chat_template(messages, tokenize=False) == text

    colors = {words.phrase(thing.shape): thing.color for thing in scene.objects}
    assert len(asked) == min(max_turns, n_objects)
    assert len(answers) == 2 * len(asked)
    assert len(aux) == len(asked)
    said = [turns.tokenizer.decode([target]) for _, target in answers]
    for number, turn in enumerate(asked):
        (named,) = [phrase for phrase in colors if any(phrase + mark in turn for mark in "?.: ")]
        assert said[2 * number : 2 * number + 2] == [colors[named], "<|im_end|>"]
        column, target = aux[number]
        assert turns.tokenizer.decode([ids[column]]) == named.removeprefix("the")
        assert turns.tokenizer.decode([target]) == colors[named]
    for column, target in answers:
        assert ids[column + 1] == target, "the position before a token is the one that predicts it"
    assert len({turns.tokenizer.decode([ids[column]]) for column, _ in answers[::2]}) == 1, "answers follow one mark"


def test_a_batch_is_its_rows_padded_on_the_right(turns: Turns) -> None:
    batch = make_batch(turns, np.random.default_rng(4), size=5, rows=4, cols=5, objects=(1, 6))
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    lengths = mask.sum(1).tolist()
    assert len(set(lengths)) > 1, "rows of several lengths"
    assert max(lengths) == ids.shape[1]
    for row, length in enumerate(lengths):
        assert mask[row].tolist() == [1] * length + [0] * (ids.shape[1] - length)
        assert (ids[row, length:] == turns.pad_id).all()
        assert not (ids[row, :length] == turns.pad_id).any()
        assert int((ids[row] == turns.image_id).sum()) == 20
    assert torch.equal(batch.inputs["mm_token_type_ids"].bool(), ids == turns.image_id)
    assert batch.inputs["image_grid_thw"].tolist() == [[1, 8, 10]] * 5
    assert batch.inputs["pixel_values"].shape == (5 * 80, 3 * 2 * 16 * 16)
    rows, columns, targets = batch.answers.unbind(1)
    assert (columns + 1 < torch.tensor(lengths)[rows]).all()
    assert torch.equal(ids[rows, columns + 1], targets)
    rows, columns, targets = batch.aux.unbind(1)
    assert set(ids[rows, columns].tolist()) <= set(turns.shape_ids.values())
    assert set(targets.tolist()) <= set(turns.color_ids.values())


def test_padding_does_not_reach_the_answers(turns: Turns, tiny_model: Any) -> None:
    batch = make_batch(turns, np.random.default_rng(4), size=3, rows=4, cols=4, objects=(1, 6))
    patches = batch.inputs["pixel_values"].chunk(3)
    with torch.no_grad():
        together = tiny_model.model(**batch.inputs, use_cache=False).last_hidden_state
        for row, length in enumerate(batch.inputs["attention_mask"].sum(1).tolist()):
            names = ("input_ids", "attention_mask", "mm_token_type_ids")
            alone = {name: batch.inputs[name][row : row + 1, :length] for name in names}
            alone |= {"pixel_values": patches[row], "image_grid_thw": batch.inputs["image_grid_thw"][:1]}
            hidden = tiny_model.model(**alone, use_cache=False).last_hidden_state[0]
            torch.testing.assert_close(together[row, :length], hidden, atol=2e-5, rtol=0)


def test_a_batch_follows_its_generator(turns: Turns) -> None:
    def batch(seed: int) -> Any:
        return make_batch(turns, np.random.default_rng(seed), size=2, rows=4, cols=4, objects=(4, 4))

    one, two, other = batch(1), batch(1), batch(2)
    assert all(torch.equal(one.inputs[name], two.inputs[name]) for name in one.inputs)
    assert torch.equal(one.answers, two.answers)
    assert not torch.equal(one.inputs["pixel_values"], other.inputs["pixel_values"])


def test_a_word_of_several_tokens_is_refused(turns: Turns) -> None:
    with pytest.raises(ValueError, match="'turquoise' should be one token"):
        turns._single("turquoise")
