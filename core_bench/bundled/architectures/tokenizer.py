"""The tokenizer of every bundled model: byte-level BPE, so any text survives a round trip.

Its merges cover the words of the generated tasks; only the special tokens differ between families.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from core_bench import instructions
from core_bench.bundled import words

# Qwen's rule: contractions, words with their leading space, single digits, punctuation, line breaks, spaces.
_PRETOKEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Letters of options never stand behind a bracket or a space here, so that "(A" and " A" stay two tokens and "A" is one
# and the same token wherever it stands.
_CORPUS_EXTRA = (
    "user",
    "assistant",
    "system",
    "yes",
    "no",
    " seconds",
    instructions.VIDEOMME.replace("(A, B, C, or D)", ""),
    instructions.MLVU_SYSTEM,
    instructions.MLVU,
    instructions.MLVU_PRIME,
    instructions.MMLONGBENCH_DOC,
    instructions.NOT_ANSWERABLE,
    instructions.VIDSTG,
    " or",
    " On which page is",
    " How many objects are there",
    " What shape is the object next to",
    " In which frame does it appear? Describe the picture and the document.",
)
_OFTEN = 1000


def corpus() -> list[str]:
    """Texts whose words become single tokens."""
    texts = [*_CORPUS_EXTRA, "\n" + instructions.ONE_WORD, " " + instructions.ONE_WORD, instructions.ONE_WORD]
    templates = (*words.COLOR_QUESTIONS, *words.CAPTIONS, *words.MOMENT_QUESTIONS)
    for shape in words.SHAPES:
        asked = [template.format(phrase=words.phrase(shape)) for template in templates]
        texts += asked + [" " + text for text in asked]
    texts += [text for name in words.SHAPES for text in (name, " " + name)]
    # Said often and never behind a space: " red" stays a space and the token of "red", so that the color of an option
    # and of an answer are one token. As two tokens they compete as answers, and training tears them apart.
    return texts + [name for name in words.COLORS for _ in range(_OFTEN)]


def build_tokenizer(
    special_tokens: Sequence[str], *, eos: str, pad: str, named: Mapping[str, str] | None = None
) -> PreTrainedTokenizerFast:
    """Byte-level BPE with digits split, no normaliser and no unknown token: `decode(encode(s)) == s` for any s.

    `special_tokens` get the first ids, in order. `named`: attributes by which a processor asks for some of them,
    such as `{"start_image_token": "<img>"}`.
    """
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_PRETOKEN), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        min_frequency=1,
        show_progress=False,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    others = [token for token in special_tokens if token != pad]
    extra: Any = dict(named) if named else others
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=eos,
        pad_token=pad,
        extra_special_tokens=extra,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=131072,
    )
