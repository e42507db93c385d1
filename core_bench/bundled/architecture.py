"""The bundled Qwen3-VL: the real architecture and processor classes at a few million parameters, built offline.

The tokenizer is byte-level BPE, so any text survives a round trip; its merges cover the words of the generated tasks.
"""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from core_bench import instructions
from core_bench.bundled import words

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

# Qwen's rule: contractions, words with their leading space, single digits, punctuation, line breaks, spaces.
_PRETOKEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>
{%- elif part.type == 'text' -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{%- endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""

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


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with digits split, no normaliser and no unknown token: `decode(encode(s)) == s` for any s."""
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
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=list(SPECIAL_TOKENS[1:]),
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=131072,
    )


def build_processor(tokenizer: PreTrainedTokenizerFast | None = None) -> Qwen3VLProcessor:
    """The real processor classes; one visual token is 32 x 32 pixels, a picture has 4 to 16,384 of them."""
    size = {"shortest_edge": 4 * 32 * 32, "longest_edge": 16384 * 32 * 32}
    image = Qwen2VLImageProcessor(
        patch_size=16,
        temporal_patch_size=2,
        merge_size=2,
        size=size,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    video = Qwen3VLVideoProcessor(
        patch_size=16,
        temporal_patch_size=2,
        merge_size=2,
        size=size,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    return Qwen3VLProcessor(
        image_processor=image,
        tokenizer=tokenizer or build_tokenizer(),
        video_processor=video,
        chat_template=CHAT_TEMPLATE,
    )


def build_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3VLConfig:
    """6 layers x 8 query heads over 4 KV heads; M-RoPE sections and DeepStack as in the large models."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    text: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "pad_token_id": ids["<|endoftext|>"],
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 500000.0,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    }
    vision: dict[str, Any] = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 128,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": [0],
    }
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )


def build_model(seed: int = 0, tokenizer: PreTrainedTokenizerFast | None = None) -> Qwen3VLForConditionalGeneration:
    """A freshly initialised model in float32, eval mode; the caller's random state is left alone."""
    config = build_config(tokenizer or build_tokenizer())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(config)
    model.generation_config.do_sample = False
    model.generation_config.eos_token_id = config.text_config.eos_token_id
    model.generation_config.pad_token_id = config.text_config.pad_token_id
    return model.eval()
