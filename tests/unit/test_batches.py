"""Training batches against the real processor and the real model: same patches, same ids, right places."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.video_utils import VideoMetadata

from core_bench.bundled import words
from core_bench.bundled.batches import Conversation, Row, Turns, converse, make_batch, write_row
from core_bench.bundled.clip import make_clip
from core_bench.bundled.feeds import Feed, Plan, make_feed
from core_bench.bundled.feeds.qwen3vl import patchify
from core_bench.bundled.scene import CELL
from core_bench.bundled.turns import moment_turn


@pytest.fixture(scope="module")
def turns(tiny_processor: Any) -> Turns:
    return Turns(tiny_processor.tokenizer)


@pytest.fixture(scope="module")
def feed(tiny_processor: Any) -> Feed:
    return make_feed("qwen3vl", tiny_processor)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(2, 7), cols=st.integers(2, 7))
def test_patches_equal_the_image_processors(tiny_processor: Any, seed: int, rows: int, cols: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (rows * CELL, cols * CELL, 3), dtype=np.uint8)
    real = tiny_processor.image_processor([pixels], return_tensors="pt", input_data_format="channels_last")
    assert real["image_grid_thw"].tolist() == [[1, 2 * rows, 2 * cols]]
    ours = patchify(pixels)
    assert ours.shape == real["pixel_values"].shape
    assert (ours - real["pixel_values"]).abs().max() <= 1e-6


PLANS = {
    "picture": Plan("picture", 5, 1, 4, 5, (1, 6), choice=0.5),
    "document": Plan("document", 3, 3, 5, 4, (2, 8)),
    "clip": Plan("clip", 3, 5, 3, 4, (4, 9), choice=0.4, moment=0.4, reach=500),
    "sparse clip": Plan("clip", 3, 4, 3, 3, (4, 9), choice=0.6, one_second=False),
}


def messages_of(talk: Conversation, plan: Plan) -> list[dict[str, Any]]:
    kind = "video" if plan.kind == "clip" else "image"
    media = [{"type": kind}] * (1 if plan.kind == "clip" else len(talk.pixels))
    messages: list[dict[str, Any]] = [{"role": "system", "content": talk.system}] if talk.system else []
    for number, turn in enumerate(talk.turns):
        content = [*(media if number == 0 else []), {"type": "text", "text": turn.text}]
        messages.append({"role": "user", "content": content})
        messages.append({"role": "assistant", "content": turn.prime + turn.answer})
    return messages


def processed(processor: Any, talk: Conversation, plan: Plan, text: str) -> Any:
    """What the real processor makes of the conversation."""
    if plan.kind != "clip":
        pictures = list(talk.pixels)
        return processor(text=[text], images=pictures, return_tensors="pt", input_data_format="channels_last")
    frames = torch.from_numpy(talk.pixels.repeat(2, axis=0)).permute(0, 3, 1, 2)
    metadata = VideoMetadata(total_num_frames=len(frames), fps=2.0, frames_indices=list(range(len(frames))))
    options = {"do_sample_frames": False, "video_metadata": [metadata], "input_data_format": "channels_first"}
    return processor(text=[text], videos=[frames], return_tensors="pt", videos_kwargs=options)


@pytest.mark.parametrize("name", ["picture", "document", "clip"])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_row_is_what_the_processor_makes_of_that_conversation(
    tiny_processor: Any, turns: Turns, feed: Feed, name: str, seed: int
) -> None:
    plan, rng = PLANS[name], np.random.default_rng(seed)
    talk = converse(turns, feed, rng, plan)
    row = write_row(turns, talk)
    text = tiny_processor.apply_chat_template(messages_of(talk, plan), tokenize=False)
    real = processed(tiny_processor, talk, plan, text)["input_ids"][0].tolist()
    if row.ids != real:  # processors before transformers 5.24 replace the template's own marks around a clip
        start, end = (turns.encode(mark)[0] for mark in ("<|vision_start|>", "<|vision_end|>"))
        opened = row.media_end - len(talk.media_ids)
        wrapped = [*row.ids[:opened], start, *talk.media_ids, end, *row.ids[row.media_end :]]
        assert plan.kind == "clip"
        assert wrapped == real
    for column, target in row.answers:
        assert row.ids[column + 1] == target, "the position before a token is the one that predicts it"


def seconds_at(turns: Turns, row: Row, column: int) -> str:
    """The whole seconds of the time stamp before a visual token."""
    assert turns.tokenizer.decode([row.ids[column]]) == "<|video_pad|>"
    stamp = turns.tokenizer.decode(row.ids[:column]).split("<|vision_start|>")[-2].split("<")[-1]
    found = re.fullmatch(r"(\d+)\.\d seconds>", stamp)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("name", PLANS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_every_answer_is_true_of_the_media(turns: Turns, feed: Feed, name: str, seed: int) -> None:
    talk = converse(turns, feed, np.random.default_rng(seed), PLANS[name])
    row = write_row(turns, talk)
    asked = [turn for turn in talk.turns if turn.color is not None]
    for (column, target), turn in zip(row.aux["shape"], asked, strict=True):
        assert turns.tokenizer.decode([row.ids[column]]) == " " + turn.shape
        assert turns.tokenizer.decode([target]) == turn.color
    options = [option for turn in talk.turns for option in zip("ABCD", turn.options, strict=False)]
    for (column, target), (letter, color) in zip(row.aux["option"], options, strict=True):
        assert turns.tokenizer.decode(row.ids[column - 3 : column + 1]) in (f"{letter}. {color}", f"{letter}) {color}")
        assert turns.tokenizer.decode([target]) == letter
    for column, target in row.aux.get("time", []):
        assert seconds_at(turns, row, column)[-1] == turns.tokenizer.decode([target])
    begun = [column for column, target in row.aux.get("begins", []) if target == turns.yes_id]
    for column, (look,) in row.looks["option"]:
        assert row.ids[look] == dict(row.aux["choice"])[column]
        assert dict(row.aux["option"])[look] == row.ids[column + 1]
    said_first = dict(row.looks["first"])
    for turn, first in zip(talk.turns, row.firsts, strict=True):
        if turn.moment is not None:
            begin, finish = (str(second) for second in (turn.moment[0], turn.moment[1] - 1))
            column = row.answers[first][0]
            (looked,) = said_first[column]
            assert seconds_at(turns, row, looked) == begin
            assert looked in begun
            ((last,),) = {look for at, look in row.looks["last"] if 0 <= at - column <= 5}
            assert seconds_at(turns, row, last) == finish
    ends = [*row.firsts[1:], len(row.answers)]
    for first, end, turn in zip(row.firsts, ends, talk.turns, strict=True):
        said = turns.tokenizer.decode([target for _, target in row.answers[first:end]])
        assert said == turn.answer + "<|im_end|>"
        if turn.kind in ("mlvu", "videomme"):
            options = re.findall(r"^\(?([A-D])[.)] (\w+)$", turn.text, re.M)
            assert len({color for _, color in options}) == 4
            assert dict(options)[turn.answer] == turn.color
        if turn.color is not None and turn.kind != "moment":
            ink = np.array(words.COLORS[turn.color])
            assert (talk.pixels == ink).all(-1).any(), "the color is in the picture"


def test_moments_are_those_of_the_tracks() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        clip = make_clip(rng, 3, 4, 8, [2, 8, 3, 5])
        for track in clip.tracks:
            first, end = map(int, moment_turn(rng, track).answer.split("-"))
            ink = np.array(words.COLORS[track.color])
            seen = [bool((clip.pixels[s, int(y0) : int(y1), int(x0) : int(x1)] == ink).all(-1).any())
                    for s, (x0, y0, x1, y1) in enumerate(track.boxes, start=first)]  # fmt: skip
            assert all(seen)
            assert end - first == len(seen)


@pytest.mark.parametrize("name", PLANS)
def test_a_batch_is_its_rows_padded_on_the_right(turns: Turns, feed: Any, name: str) -> None:
    plan = PLANS[name]
    batch = make_batch(turns, feed, np.random.default_rng(4), plan)
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    lengths = mask.sum(1).tolist()
    assert len(set(lengths)) > 1, "rows of several lengths"
    assert max(lengths) == ids.shape[1]
    visual = plan.parts * plan.rows * plan.cols
    pad_id = feed.video_id if plan.kind == "clip" else feed.image_id
    for row, length in enumerate(lengths):
        assert mask[row].tolist() == [1] * length + [0] * (ids.shape[1] - length)
        assert (ids[row, length:] == turns.pad_id).all()
        assert not (ids[row, :length] == turns.pad_id).any()
        assert int((ids[row] == pad_id).sum()) == visual
    kinds = batch.inputs["mm_token_type_ids"]
    assert torch.equal(kinds == 1, ids == feed.image_id)
    assert torch.equal(kinds == 2, ids == feed.video_id)
    assert torch.equal(batch.visual, kinds > 0)
    pixels = batch.inputs["pixel_values_videos" if plan.kind == "clip" else "pixel_values"]
    assert pixels.shape == (plan.size * visual * 4, 3 * 2 * 16 * 16)
    grid = batch.inputs["video_grid_thw" if plan.kind == "clip" else "image_grid_thw"]
    assert int(grid.prod(1).sum()) == len(pixels)
    rows, columns, targets = batch.answers.unbind(1)
    assert (columns + 1 < torch.tensor(lengths)[rows]).all()
    assert torch.equal(ids[rows, columns + 1], targets)
    assert len(batch.firsts) == len(batch.kinds)
    for row, column, distance in batch.shifts:
        assert 1 <= distance < plan.reach
        assert not (ids[row, column:] == pad_id).any()
        assert int(ids[row, column - 1]) == turns.encode("<|vision_end|>")[0]


@pytest.mark.parametrize("name", ["picture", "clip"])
def test_padding_does_not_reach_the_answers(turns: Turns, feed: Feed, tiny_model: Any, name: str) -> None:
    plan = replace(PLANS[name], size=3)
    batch = make_batch(turns, feed, np.random.default_rng(4), plan)
    pixels, grid = (
        next(key for key in batch.inputs if key.startswith("pixel")),
        next(key for key in batch.inputs if "grid" in key),
    )
    patches = batch.inputs[pixels].chunk(3)
    with torch.no_grad():
        together = tiny_model.model(**batch.inputs, use_cache=False).last_hidden_state
        for row, length in enumerate(batch.inputs["attention_mask"].sum(1).tolist()):
            names = ("input_ids", "attention_mask", "mm_token_type_ids")
            alone = {name: batch.inputs[name][row : row + 1, :length] for name in names}
            alone |= {pixels: patches[row], grid: batch.inputs[grid][:1]}
            hidden = tiny_model.model(**alone, use_cache=False).last_hidden_state[0]
            torch.testing.assert_close(together[row, :length], hidden, atol=2e-5, rtol=0)


def test_a_batch_follows_its_generator(turns: Turns, feed: Feed) -> None:
    for plan in PLANS.values():
        one, two, other = (make_batch(turns, feed, np.random.default_rng(seed), plan) for seed in (1, 1, 2))
        assert all(torch.equal(one.inputs[name], two.inputs[name]) for name in one.inputs)
        assert torch.equal(one.answers, two.answers)
        pixels = next(name for name in one.inputs if name.startswith("pixel"))
        assert not torch.equal(one.inputs[pixels], other.inputs[pixels])


def test_a_word_of_several_tokens_is_refused(turns: Turns) -> None:
    with pytest.raises(ValueError, match="'turquoise' should be one token"):
        turns._single("turquoise")
