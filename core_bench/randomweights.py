"""`--checkpoint random:NAME[:LAYERS]`: the language side of a published model at its real sizes, with random weights.

For prefill time only: which numbers the weights hold does not change how long dense arithmetic takes. The prompt is
random text tokens, of exactly the length asked for; there is no vision tower, no tokenizer and nothing to download.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3VLConfig
from transformers import Qwen3VLForConditionalGeneration as Qwen3VLModel

from core_bench.errors import UserError
from core_bench.heads import HeadShape
from core_bench.registry import suggestion

PREFIX = "random:"
_MAX_TOKENS = 262144


@dataclass(frozen=True)
class Sizes:
    """A decoder's sizes, from the checkpoint's config.json on the Hugging Face Hub (`source`)."""

    family: str
    source: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int
    theta: float
    tied: bool = False


# LLaVA-OneVision reads with Qwen2-7B, InternVL3.5-8B with Qwen3-8B: the decoders' own sizes.
SIZES = {
    "Qwen3-VL-4B": Sizes("qwen3_vl", "Qwen/Qwen3-VL-4B-Instruct", 36, 2560, 9728, 32, 8, 128, 151936, 5e6, tied=True),
    "Qwen3-VL-8B": Sizes("qwen3_vl", "Qwen/Qwen3-VL-8B-Instruct", 36, 4096, 12288, 32, 8, 128, 151936, 5e6),
    "Qwen3-VL-32B": Sizes("qwen3_vl", "Qwen/Qwen3-VL-32B-Instruct", 64, 5120, 25600, 64, 8, 128, 151936, 5e6),
    "LLaVA-OneVision-7B": Sizes("qwen2", "Qwen/Qwen2-7B-Instruct", 28, 3584, 18944, 28, 4, 128, 152064, 1e6),
    "InternVL3.5-8B": Sizes("qwen3", "Qwen/Qwen3-8B", 36, 4096, 12288, 32, 8, 128, 151936, 1e6),
}


@dataclass(frozen=True)
class RandomModel:
    """What `speed` needs of a model wrapper, without a processor: text prompts only."""

    model: PreTrainedModel
    shape: HeadShape
    checkpoint_hash: str

    def inputs(self, tokens: int, seed: int = 0) -> dict[str, Any]:
        """A prompt of `tokens` seeded random text tokens, batch of one, on the model's device."""
        vocab = self.model.config.get_text_config().vocab_size
        generator = torch.Generator().manual_seed(seed)
        # The last ids of these vocabularies are special, visual placeholders among them.
        ids_1N = torch.randint(0, max(vocab - 2000, vocab // 2), (1, tokens), generator=generator)
        return {"input_ids": ids_1N.to(self.model.device)}


def is_random(checkpoint: str | None) -> bool:
    return checkpoint is not None and checkpoint.startswith(PREFIX)


def sizes_of(checkpoint: str) -> tuple[Sizes, int]:
    """The sizes and the number of layers that "random:NAME[:LAYERS]" names; UserError for anything else."""
    name, _, count = checkpoint.removeprefix(PREFIX).partition(":")
    if name not in SIZES:
        known = ", ".join(SIZES)
        raise UserError(f"--checkpoint {checkpoint}: expected one of {known} after random:{suggestion(name, SIZES)}")
    sizes = SIZES[name]
    if not count:
        return sizes, sizes.layers
    if not count.isascii() or not count.isdigit() or not 1 <= int(count) <= sizes.layers:
        raise UserError(f"--checkpoint {checkpoint}: expected 1 to {sizes.layers} layers after {name}, got {count!r}")
    return sizes, int(count)


def build_random(checkpoint: str, *, device: str, dtype: str, seed: int = 0, vocab: int | None = None) -> RandomModel:
    """The model, made on its device. `vocab` overrides the size of the vocabulary, for tests.

    Raises UserError for an unknown name and where the device has too little memory.
    """
    sizes, layers = sizes_of(checkpoint)
    config, kind = _config(sizes, layers, vocab or sizes.vocab)
    place = torch.device(device)
    devices = [place] if place.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices), place:
            torch.manual_seed(seed)
            model = kind._from_config(config, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise UserError(f"--checkpoint {checkpoint}: not enough memory on {device}; name fewer layers") from error
    shape = HeadShape(layers, sizes.heads, sizes.kv_heads)
    return RandomModel(model.eval(), shape, checkpoint_hash=f"random:{seed}")


def _config(sizes: Sizes, layers: int, vocab: int) -> tuple[Any, Any]:
    """transformers' config and class of the decoder with its output head."""
    text: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_size,
        "max_position_embeddings": _MAX_TOKENS,
        "tie_word_embeddings": sizes.tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": sizes.theta},
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if sizes.family == "qwen2":
        return Qwen2Config(**{k: v for k, v in text.items() if k != "head_dim"}), Qwen2ForCausalLM
    if sizes.family == "qwen3":
        return Qwen3Config(**text), Qwen3ForCausalLM
    text["rope_parameters"] |= {"mrope_section": [24, 20, 20], "mrope_interleaved": True}
    # A vision tower that nobody calls, as small as it gets.
    vision = {
        "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 1, "out_hidden_size": sizes.hidden,
        "num_position_embeddings": 4, "deepstack_visual_indexes": [0],
    }  # fmt: skip
    config = Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=sizes.tied)
    return config, Qwen3VLModel
