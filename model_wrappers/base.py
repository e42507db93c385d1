"""What every model family shares: loading, preparing a prompt, the head grid, text spans, generation.

A family says where its parts live (`COMPONENTS`), how its processor is asked for media (`media_options`) and what the
visual tokens show that came back (`token_map`); everything else here reads only the checkpoint's own config and
processor. docs/families.md shows a whole family.
"""

from __future__ import annotations

import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from PIL import Image
from torch import nn
from transformers import LogitsProcessorList

from core_bench.errors import SampleError
from core_bench.heads import HeadShape
from core_bench.media import Visual, read_visual
from core_bench.model_wrappers.chat import ChatPrompts
from core_bench.model_wrappers.finite import FiniteLogits, first_broken_layer
from core_bench.model_wrappers.loading import (
    check_agreement,
    content_hash,
    empty_model,
    load_model,
    load_processor,
    pin_revision,
)
from core_bench.schema import Prepared, Sample, TokenMap
from core_bench.subtitles import with_subtitles

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "typical_p")
_PROCESSING = (
    "size",
    "patch_size",
    "merge_size",
    "temporal_patch_size",
    "min_patches",
    "max_patches",
    "cap_pixels_per_frame",
    "max_video_tokens",
)
_IDS = tuple((name, name) for name in ("image_token_id", "video_token_id"))


@dataclass(frozen=True)
class Components:
    """Dotted paths, from the loaded model, of the parts that the suite touches."""

    language_model: str
    vision_tower: str
    lm_head: str


class ModelWrapper(ChatPrompts, ABC):
    """A loaded multimodal model with its processor; made by `load`."""

    FAMILY: ClassVar[str]
    MODEL_TYPES: ClassVar[tuple[str, ...]]
    COMPONENTS: ClassVar[Components]
    # Coordinates in which the family's models write boxes, see core_bench/scoring_boxes.py.
    BOXES: ClassVar[str] = "pixel"
    # Settings of the processor and of the model's config, by their dotted names, that must be equal.
    MUST_AGREE: ClassVar[tuple[tuple[str, str], ...]] = ()

    def __init__(self, model: Any, processor: Any, *, checkpoint: str = "", revision: str | None = None) -> None:
        """Wrap a model and processor that are in memory already; the model is set to eval mode and greedy decoding."""
        self.model = model.eval()
        self.processor = processor
        self.checkpoint = checkpoint
        self.revision = revision
        _decode_greedily(self.model, processor.tokenizer)

    @classmethod
    def load(
        cls,
        checkpoint: str | os.PathLike[str],
        *,
        revision: str | None = None,
        device: str = "cpu",
        dtype: str = "float32",
        device_map: str | None = None,
    ) -> Self:
        """Load a hub id or a local folder through transformers; code from the checkpoint is never run.

        `device_map` (needs accelerate) spreads the model and replaces `device`. Raises UserError, in one line, for a
        checkpoint that is not there, lacks weights, belongs to another family or has a processor that was made for
        another model, and for an unknown dtype or device.
        """
        name = os.path.expanduser(os.fspath(checkpoint))
        revision = pin_revision(name, revision, cls.FAMILY, cls.MODEL_TYPES)
        model = load_model(name, revision, dtype=dtype, device=device, device_map=device_map)
        processor = load_processor(name, revision)
        check_agreement(name, model, processor, (*_IDS, *cls.MUST_AGREE))
        return cls(model, processor, checkpoint=name, revision=revision)

    @classmethod
    def without_weights(cls, checkpoint: str | os.PathLike[str], *, revision: str | None = None) -> Self:
        """The same model with no numbers in it, made from the config alone: it prepares prompts, and can do no more.

        Of a hub id only the config and the processor's files are fetched. Raises UserError as `load` does.
        """
        name = os.path.expanduser(os.fspath(checkpoint))
        revision = pin_revision(name, revision, cls.FAMILY, cls.MODEL_TYPES)
        model, processor = empty_model(name, revision), load_processor(name, revision)
        check_agreement(name, model, processor, (*_IDS, *cls.MUST_AGREE))
        return cls(model, processor, checkpoint=name, revision=revision)

    def prepare(
        self,
        sample: Sample,
        *,
        frames: int | None = None,
        fps: float | None = None,
        max_pixels: int | None = None,
        noise_seed: int | None = None,
        visuals: Sequence[Visual] | None = None,
    ) -> Prepared:
        """Inputs of one sample: the media in order, then the prompt; `prime` after the generation prompt.

        Videos: `frames` or `fps`; with neither, as many as the medium says, else up to 32, evenly. What `max_pixels`
        caps is the family's, see its docstring; default: the checkpoint's own limits. `noise_seed` replaces every
        picture and frame by seeded noise of the same size. `visuals`: the media, where they have been read already.
        Raises SampleError for media that cannot be read, a medium the processor refuses, and control tokens in the
        sample's texts.
        """
        if visuals is None:
            visuals = [read_visual(medium, frames=frames, fps=fps) for medium in sample.media]
        if noise_seed is not None:
            visuals = [as_noise(visual, sample.id, n, noise_seed) for n, visual in enumerate(visuals)]
        sample = with_subtitles(sample, visuals)
        chat = self.render_chat(sample, [{"type": "image" if v.kind == "picture" else "video"} for v in visuals])
        call: dict[str, Any] = {
            "images": [visual.pictures[0] for visual in visuals if visual.kind == "picture"],
            "videos": [frames_TCHW(visual) for visual in visuals if visual.kind == "clip"],
            **self.media_options(visuals, max_pixels),
        }
        call = {name: value for name, value in call.items() if value}  # no media, no options for them
        try:
            inputs = self.processor(
                text=[chat.text], return_tensors="pt", add_special_tokens=self.adds_bos(chat.text), **call
            )
        except ValueError as error:  # such as an aspect ratio above 200
            names = ", ".join(visual.path for visual in visuals) or "no media"
            raise SampleError(f"{names}: refused by the processor ({str(error).splitlines()[0]})") from error
        ids = inputs["input_ids"][0].tolist()
        return Prepared(
            inputs=dict(inputs),
            token_map=self.token_map(ids, inputs, visuals, max_pixels),
            spans=self.query_spans(sample, chat, ids),
            frames=tuple(visual.frames for visual in visuals),
            fps=tuple(visual.fps for visual in visuals),
            seconds=tuple(visual.seconds if visual.ticks else () for visual in visuals),
        )

    @abstractmethod
    def media_options(self, visuals: Sequence[Visual], max_pixels: int | None) -> dict[str, Any]:
        """Further arguments of the processor's call, `images_kwargs` and `videos_kwargs` above all.

        `images` (a list of pictures) and `videos` (a list of uint8 [frames, 3, height, width]) are given already and
        may be replaced here. Raises SampleError for media that the family cannot show in one prompt.
        """

    @abstractmethod
    def token_map(
        self, ids: Sequence[int], inputs: Mapping[str, Any], visuals: Sequence[Visual], max_pixels: int | None
    ) -> TokenMap:
        """What every visual token shows, from what the processor returned: `ids` of the prompt, and all its `inputs`.

        Raises RuntimeError where these contradict each other.
        """

    @property
    def processing(self) -> dict[str, Any]:
        """The processors' settings that decide how many tokens a medium becomes, in plain values, for the record."""
        found: dict[str, Any] = {}
        for kind in ("image_processor", "video_processor"):
            processor = getattr(self.processor, kind, None)
            settings = {} if processor is None else processor.to_dict()
            found |= {f"{kind}.{name}": settings[name] for name in _PROCESSING if settings.get(name) is not None}
        return found

    @property
    def language_model(self) -> nn.Module:
        return self.model.get_submodule(self.COMPONENTS.language_model)

    @property
    def vision_tower(self) -> nn.Module:
        return self.model.get_submodule(self.COMPONENTS.vision_tower)

    @property
    def lm_head(self) -> nn.Module:
        return self.model.get_submodule(self.COMPONENTS.lm_head)

    @property
    def shape(self) -> HeadShape:
        """Layers, query heads and key/value heads of the language model, from its config."""
        text = self.model.config.get_text_config()
        kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        return HeadShape(text.num_hidden_layers, text.num_attention_heads, kv_heads)

    @cached_property
    def checkpoint_hash(self) -> str:
        """16 hex digits that name the content of the checkpoint's files (see `content_hash`)."""
        return content_hash(self.checkpoint, self.revision)

    def device_inputs(self, prepared: Prepared) -> dict[str, Any]:
        """The inputs on the model's device; floating-point tensors in the model's dtype."""
        moved: dict[str, Any] = {}
        for name, value in prepared.inputs.items():
            if isinstance(value, torch.Tensor):
                dtype = self.model.dtype if value.is_floating_point() else value.dtype
                value = value.to(self.model.device, dtype)
            moved[name] = value
        return moved

    def generate(self, prepared: Prepared, max_new_tokens: int) -> str:
        """The greedy continuation as text, without special tokens and without the primed start of the answer.

        Raises SampleError, which names the layer, where the model's numbers are no longer finite.
        """
        try:
            ids_BN = self._generate(prepared, max_new_tokens)
        except SampleError as error:
            with (
                first_broken_layer(self.language_model.get_submodule("layers").children()) as broken,
                suppress(SampleError),
            ):
                self._generate(prepared, max_new_tokens)
            where = f"from layer {broken[0]} on" if broken else "in the output head"
            raise SampleError(f"{error}, {where}") from None
        new_ids = ids_BN[0, prepared.token_map.length :]
        return str(self.processor.tokenizer.decode(new_ids, skip_special_tokens=True))

    def _generate(self, prepared: Prepared, max_new_tokens: int) -> torch.Tensor:
        with torch.inference_mode():
            ids_BN: torch.Tensor = self.model.generate(
                **self.device_inputs(prepared),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                num_beams=1,
                logits_processor=LogitsProcessorList([FiniteLogits()]),
            )
        return ids_BN


def as_noise(visual: Visual, sample_id: str, medium: int, seed: int) -> Visual:
    """The same medium with every pixel drawn uniformly at random: the image-blind control."""
    rng = np.random.default_rng([seed, zlib.crc32(sample_id.encode()), medium])
    width, height = visual.size
    pictures = tuple(Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)) for _ in visual.pictures)
    return replace(visual, pictures=pictures)


def frames_TCHW(clip: Visual) -> torch.Tensor:
    """uint8 [frames, 3, height, width]; where a file changes its resolution, frames are resized to the first."""
    pictures = [p if p.size == clip.size else p.resize(clip.size) for p in clip.pictures]
    return torch.from_numpy(np.stack([np.asarray(p) for p in pictures])).permute(0, 3, 1, 2).contiguous()


def runs_of(ids: Sequence[int], token_id: int) -> list[tuple[int, int]]:
    """(start, length) of every maximal run of `token_id` in `ids`, in order."""
    hits = np.flatnonzero(np.asarray(ids) == token_id)
    if not len(hits):
        return []
    pieces = np.split(hits, np.flatnonzero(np.diff(hits) > 1) + 1)
    return [(int(piece[0]), len(piece)) for piece in pieces]


def _decode_greedily(model: Any, tokenizer: Any) -> None:
    """Clear the checkpoint's sampling settings, which transformers would warn about on every greedy call."""
    config = model.generation_config
    config.do_sample = False
    for name in _SAMPLING:
        if hasattr(config, name):
            setattr(config, name, None)
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
