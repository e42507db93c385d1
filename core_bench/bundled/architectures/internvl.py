"""The bundled InternVL: the real architecture and processor classes at a few million parameters, built offline.

A tile is 128 x 128 pixels in 4 x 4 tokens after pixel shuffle, so that one token shows 32 x 32 pixels where a picture
has a size of whole tiles (at most sixteen). Where there are several, a thumbnail of the whole picture follows.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    GotOcr2ImageProcessor,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    InternVLVideoProcessor,
    PreTrainedTokenizerFast,
)

from core_bench.bundled.architectures import tokenizer as bundled_tokenizer

NAMED_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *NAMED_TOKENS.values())
TILE, PATCH, MOST_TILES = 128, 16, 16
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}<IMG_CONTEXT>
{%- elif part.type == 'video' -%}<video>
{%- elif part.type == 'text' -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{%- endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""


def build_tokenizer() -> PreTrainedTokenizerFast:
    return bundled_tokenizer.build_tokenizer(SPECIAL_TOKENS, eos="<|im_end|>", pad="<|endoftext|>", named=NAMED_TOKENS)


def build_processor(tokenizer: PreTrainedTokenizerFast | None = None) -> InternVLProcessor:
    """The real processor classes; see the module for what a token shows."""
    pixels: dict[str, Any] = {
        "size": {"height": TILE, "width": TILE},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    return InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(crop_to_patches=True, min_patches=1, max_patches=MOST_TILES, **pixels),
        tokenizer=tokenizer or build_tokenizer(),
        video_processor=InternVLVideoProcessor(**pixels),
        image_seq_length=(TILE // PATCH // 2) ** 2,
        chat_template=CHAT_TEMPLATE,
    )


def build_config(tokenizer: PreTrainedTokenizerFast) -> InternVLConfig:
    """6 layers x 8 query heads over 4 KV heads of a Qwen3 decoder; a vision tower of 2 layers."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    text: dict[str, Any] = {
        "model_type": "qwen3",
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
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    }
    vision: dict[str, Any] = {
        "image_size": [TILE, TILE],
        "patch_size": [PATCH, PATCH],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    return InternVLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<IMG_CONTEXT>"],
        image_seq_length=(TILE // PATCH // 2) ** 2,
        downsample_ratio=0.5,
        vision_feature_select_strategy="default",
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )


def build_model(seed: int = 0, tokenizer: PreTrainedTokenizerFast | None = None) -> InternVLForConditionalGeneration:
    """A freshly initialised model in float32, eval mode; the caller's random state is left alone."""
    config = build_config(tokenizer or build_tokenizer())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = InternVLForConditionalGeneration(config)
    model.generation_config.do_sample = False
    model.generation_config.eos_token_id = config.text_config.eos_token_id
    model.generation_config.pad_token_id = config.text_config.pad_token_id
    return model.eval()
