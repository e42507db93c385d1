"""The byte-level tokenizer: any text survives, digits stand alone, the words of the tasks are single tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoProcessor

from core_bench.bundled import words
from core_bench.bundled.architectures.qwen3vl import SPECIAL_TOKENS, build_config, build_tokenizer

TRICKY = [
    "",
    " ",
    "  x",
    "\r\n",
    "\n\r\n \t",
    "e\u0301",
    "\u00e9",
    "don't",
    "a , b . c ?",
    "\x00\x1f",
    "\ufeff",
    "日本語 🎉👩‍👩‍👧",
    "<|im_star",
    "Ġa",
]
TEXTS = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda s: not any(t in s for t in SPECIAL_TOKENS))


@pytest.fixture(scope="module")
def built() -> Any:
    return build_tokenizer()


@pytest.fixture(scope="module")
def reloaded(tiny_processor: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tokenizer as a user of the saved checkpoint gets it."""
    folder: Path = tmp_path_factory.mktemp("processor")
    tiny_processor.save_pretrained(folder)
    return AutoProcessor.from_pretrained(folder).tokenizer


@settings(max_examples=300, deadline=None)
@given(text=TEXTS | st.lists(st.sampled_from(TRICKY)).map("".join).filter(lambda s: "<|im_start|>" not in s))
@example(text="The ring, 12345 of them?\r\nIt's  \tred.\u0301")
def test_any_text_survives(built: Any, reloaded: Any, text: str) -> None:
    ids = built.encode(text, add_special_tokens=False)
    assert built.decode(ids) == text
    assert not set(ids) & set(built.all_special_ids), "text never becomes a control token"
    assert reloaded.encode(text, add_special_tokens=False) == ids
    assert reloaded.decode(ids, skip_special_tokens=True) == text


def test_there_is_no_unknown_token(built: Any) -> None:
    assert built.unk_token is None
    for byte in range(256):
        text = bytes([byte]).decode("latin-1")
        assert built.decode(built.encode(text, add_special_tokens=False)) == text


@settings(max_examples=50, deadline=None)
@given(number=st.integers(0, 10**12))
def test_digits_stand_alone(built: Any, number: int) -> None:
    text = f"{number}"
    assert len(built.encode(text, add_special_tokens=False)) == len(text)


def test_words_of_the_tasks_are_single_tokens(built: Any) -> None:
    for word in words.SHAPES:
        for text in (word, " " + word):
            assert len(built.encode(text, add_special_tokens=False)) == 1, text


def test_a_color_is_one_token_wherever_it_stands(built: Any) -> None:
    for color in words.COLORS:
        (token,) = built.encode(color, add_special_tokens=False)
        for text in (f" {color}", f"A. {color}\n", f"(B) {color}"):
            assert token in built.encode(text, add_special_tokens=False), text


def test_a_letter_of_an_option_is_one_token_wherever_it_stands(built: Any) -> None:
    for letter in "ABCD":
        (token,) = built.encode(letter, add_special_tokens=False)
        for text in (f"({letter}) red", f"\n{letter}. red", f"Best Option: ({letter}"):
            assert token in built.encode(text, add_special_tokens=False), text


def test_control_tokens_are_one_token_each_and_end_what_should_end(built: Any) -> None:
    for token in SPECIAL_TOKENS:
        assert built.encode(token, add_special_tokens=False) == [built.convert_tokens_to_ids(token)]
    assert len(set(built.convert_tokens_to_ids(list(SPECIAL_TOKENS)))) == len(SPECIAL_TOKENS)
    assert (built.eos_token, built.pad_token, built.padding_side) == ("<|im_end|>", "<|endoftext|>", "left")
    text = build_config(built).text_config
    assert text.vocab_size == len(built)
    assert text.eos_token_id == built.eos_token_id


def test_building_it_twice_gives_the_same_ids(built: Any) -> None:
    assert build_tokenizer().get_vocab() == built.get_vocab()
