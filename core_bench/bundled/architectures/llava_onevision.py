"""The bundled LLaVA-OneVision: the real architecture and processor classes at a few million parameters, built offline.

A tile is 256 x 256 pixels in 8 x 8 tokens, so that one token shows 32 x 32 pixels where a picture has a size of whole
tiles (at most nine). The whole picture, squeezed into one tile, comes first. A frame of a clip is enlarged or reduced
to one tile and pooled to 4 x 4 tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    PreTrainedTokenizerFast,
)

from core_bench.bundled.architectures import tokenizer as bundled_tokenizer

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>")
TILE, PATCH, MOST_TILES = 256, 32, 9
PINPOINTS = [
    [TILE * down, TILE * across]
    for down in range(1, MOST_TILES + 1)
    for across in range(1, MOST_TILES + 1)
    if down * across <= MOST_TILES
]
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}<image>
{%- elif part.type == 'video' -%}<video>
{%- elif part.type == 'text' -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{%- endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""


def build_tokenizer() -> PreTrainedTokenizerFast:
    return bundled_tokenizer.build_tokenizer(SPECIAL_TOKENS, eos="<|im_end|>", pad="<|endoftext|>")


def build_processor(tokenizer: PreTrainedTokenizerFast | None = None) -> LlavaOnevisionProcessor:
    """The real processor classes; see the module for what a token shows."""
    pixels: dict[str, Any] = {
        "size": {"height": TILE, "width": TILE},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    return LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessor(image_grid_pinpoints=PINPOINTS, **pixels),
        tokenizer=tokenizer or build_tokenizer(),
        video_processor=LlavaOnevisionVideoProcessor(**pixels),
        num_image_tokens=(TILE // PATCH) ** 2,
        vision_feature_select_strategy="full",
        chat_template=CHAT_TEMPLATE,
        image_token="<image>",
        video_token="<video>",
        vision_aspect_ratio=f"anyres_max_{MOST_TILES}",
    )


def build_config(tokenizer: PreTrainedTokenizerFast) -> LlavaOnevisionConfig:
    """6 layers x 8 query heads over 4 KV heads of a Qwen2 decoder; a SigLIP tower of 2 layers."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    text: dict[str, Any] = {
        "model_type": "qwen2",
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "pad_token_id": ids["<|endoftext|>"],
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        # Qwen2 does not normalise queries and keys: with 0.02 and so narrow a model attention would start out flat.
        "initializer_range": 0.08,
    }
    vision: dict[str, Any] = {
        "model_type": "siglip_vision_model",
        "image_size": TILE,
        "patch_size": PATCH,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vision_use_head": False,
    }
    return LlavaOnevisionConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<image>"],
        video_token_id=ids["<video>"],
        image_grid_pinpoints=PINPOINTS,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        vision_aspect_ratio=f"anyres_max_{MOST_TILES}",
        tie_word_embeddings=True,
    )


def build_model(
    seed: int = 0, tokenizer: PreTrainedTokenizerFast | None = None
) -> LlavaOnevisionForConditionalGeneration:
    """A freshly initialised model in float32, eval mode; the caller's random state is left alone."""
    config = build_config(tokenizer or build_tokenizer())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlavaOnevisionForConditionalGeneration(config)
    model.generation_config.do_sample = False
    model.generation_config.eos_token_id = config.text_config.eos_token_id
    model.generation_config.pad_token_id = config.text_config.pad_token_id
    return model.eval()
