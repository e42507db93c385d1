"""Query spans, primed answers and control tokens in the user's texts."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from core_bench.errors import SampleError
from core_bench.model_wrappers.qwen3vl import Qwen3VL
from core_bench.schema import Media, Prepared, Sample

MCQ = "What does the cat hold?\nA. a book\nB. the cat\nAnswer with the letter."


@pytest.fixture(scope="session")
def wrapper(tiny_model: Any, tiny_processor: Any) -> Qwen3VL:
    return Qwen3VL(tiny_model, tiny_processor)


@pytest.fixture(scope="session")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Media:
    path = tmp_path_factory.mktemp("pictures") / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    return Media(kind="image", path=str(path))


def sample_of(prompt: str, question: str, *media: Media, **more: Any) -> Sample:
    options = {"task": "t", "id": "s1", "cluster": "c", "target": "x"} | more
    return Sample(prompt=prompt, question=question, media=media, **options)


def text_of(wrapper: Qwen3VL, prepared: Prepared, rule: str) -> str:
    ids = prepared.inputs["input_ids"][0].tolist()
    positions = prepared.spans[rule]
    assert list(positions) == list(range(positions[0], positions[-1] + 1))
    return str(wrapper.processor.tokenizer.decode([ids[p] for p in positions]))


def test_spans_decode_to_their_texts(wrapper: Qwen3VL, picture: Media) -> None:
    prepared = wrapper.prepare(sample_of(MCQ, "What does the cat hold?", picture, picture, phrase="the cat"))
    assert text_of(wrapper, prepared, "question") == "What does the cat hold?"
    assert text_of(wrapper, prepared, "phrase").strip() == "the cat"
    assert set(prepared.spans["phrase"]) < set(prepared.spans["question"])
    assert prepared.spans["last"] == (prepared.token_map.length - 1,)


def test_a_rule_that_the_sample_cannot_serve_is_absent(wrapper: Qwen3VL, picture: Media) -> None:
    assert set(wrapper.prepare(sample_of(MCQ, "", picture)).spans) == {"last"}
    with pytest.raises(SampleError, match=r"sample s1: its question 'Who\?' is not part of its prompt"):
        wrapper.prepare(sample_of(MCQ, "Who?", picture))


@pytest.mark.parametrize("repeated", ["assistant", "user", "\n", "What?"])
def test_words_of_the_chat_around_it_do_not_move_the_span(wrapper: Qwen3VL, picture: Media, repeated: str) -> None:
    sample = sample_of(repeated, repeated, picture, system=f"system {repeated}", prime=repeated)
    prepared = wrapper.prepare(sample)
    assert text_of(wrapper, prepared, "question").strip() == repeated.strip()
    ids, tokenizer = prepared.inputs["input_ids"][0].tolist(), wrapper.processor.tokenizer
    after = tokenizer.decode(ids[prepared.spans["question"][-1] + 1 :])
    assert after == f"<|im_end|>\n<|im_start|>assistant\n{repeated}"


def test_the_question_after_subtitles_that_repeat_it(wrapper: Qwen3VL, picture: Media) -> None:
    prepared = wrapper.prepare(sample_of("subtitles: Who is it? He said.\nWho is it? Say.", "Who is it?", picture))
    ids, tokenizer = prepared.inputs["input_ids"][0].tolist(), wrapper.processor.tokenizer
    assert text_of(wrapper, prepared, "question").strip() == "Who is it?"
    assert tokenizer.decode(ids[prepared.spans["question"][-1] + 1 :]).startswith(" Say.")


# Text without surrogates (no tokenizer takes them); the tokens at the edges may reach beyond a question inside a word.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(max_examples=60, deadline=None)
@given(before=TEXT, question=TEXT.filter(bool), after=TEXT)
@example(before="é", question="日本語?", after="🙂")
@example(before="\r\n ", question=" ", after=" ")
@example(before="<", question="image>", after="</s>")
def test_any_text_keeps_its_span(wrapper: Qwen3VL, picture: Media, before: str, question: str, after: str) -> None:
    prompt = before + question + after
    prepared = wrapper.prepare(sample_of(prompt, question, picture))
    tokenizer = wrapper.processor.tokenizer
    ids = prepared.inputs["input_ids"][0].tolist()
    assert tokenizer.decode(ids).endswith(f"<|vision_end|>{prompt}<|im_end|>\n<|im_start|>assistant\n")
    span = prepared.spans["question"]
    assert question in text_of(wrapper, prepared, "question")
    for cut in (span[1:], span[:-1]):  # and no token could be left out
        assert question not in tokenizer.decode([ids[p] for p in cut]) or prompt.count(question) > 1


@pytest.mark.parametrize("where", ["prompt", "system", "prime"])
@pytest.mark.parametrize("token", ["<|image_pad|>", "<|video_pad|>", "<|im_end|>", "<|vision_start|>"])
def test_control_tokens_in_user_text_are_refused(wrapper: Qwen3VL, picture: Media, where: str, token: str) -> None:
    texts = {"prompt": "Why?", where: f"Why? {token}"}
    with pytest.raises(SampleError, match=rf"sample s1: its {where} contains the control token '<\|\w+\|>'"):
        wrapper.prepare(sample_of(texts.pop("prompt"), "Why?", picture, **texts))


def test_look_alikes_are_plain_text(wrapper: Qwen3VL, picture: Media) -> None:
    prompt = "<image> <video> [IMG] <|image_pad| > <s>"
    prepared = wrapper.prepare(sample_of(prompt, prompt, picture))
    assert text_of(wrapper, prepared, "question") == prompt
    assert len(prepared.token_map.blocks) == 1


def test_the_prime_is_prompt_and_not_answer(wrapper: Qwen3VL, picture: Media) -> None:
    prepared = wrapper.prepare(sample_of("Why?", "Why?", picture, prime="The answer is"))
    ids = prepared.inputs["input_ids"][0].tolist()
    assert wrapper.processor.tokenizer.decode(ids).endswith("<|im_start|>assistant\nThe answer is")
    assert prepared.token_map.length == len(ids)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = wrapper.generate(prepared, 5)
    assert "The answer is" not in answer
    assert answer == wrapper.generate(prepared, 5)


def test_generate_equals_the_greedy_loop(wrapper: Qwen3VL, picture: Media) -> None:
    import torch

    prepared = wrapper.prepare(sample_of(MCQ, MCQ, picture))
    inputs = wrapper.device_inputs(prepared)
    chosen: list[int] = []
    with torch.inference_mode():
        for _ in range(4):
            logits = wrapper.model(**inputs, use_cache=False).logits[0, -1]
            chosen.append(int(logits.argmax()))
            if chosen[-1] == wrapper.processor.tokenizer.eos_token_id:
                break
            inputs["input_ids"] = torch.cat([inputs["input_ids"], torch.tensor([[chosen[-1]]])], dim=1)
            for name, value in (("attention_mask", 1), ("mm_token_type_ids", 0)):
                inputs[name] = torch.cat([inputs[name], torch.tensor([[value]])], dim=1)
    assert wrapper.generate(prepared, 4) == wrapper.processor.tokenizer.decode(chosen, skip_special_tokens=True)


def test_a_prompt_without_media(wrapper: Qwen3VL) -> None:
    prepared = wrapper.prepare(sample_of(MCQ, "What does the cat hold?"))
    assert prepared.token_map.blocks == ()
    assert text_of(wrapper, prepared, "question") == "What does the cat hold?"
    assert isinstance(wrapper.generate(prepared, 1), str)


def test_a_missing_medium_is_named(wrapper: Qwen3VL, picture: Media, tmp_path: Path) -> None:
    gone = Media(kind="video", path=str(tmp_path / "gone.mp4"))
    with pytest.raises(SampleError, match=r"gone\.mp4: no such file"):
        wrapper.prepare(sample_of("Why?", "Why?", picture, gone))
