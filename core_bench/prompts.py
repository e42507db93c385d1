"""Prompts of a wanted length for `speed`: noise pictures through the model's real processor, or random text tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from core_bench.model_wrappers.base import ModelWrapper
from core_bench.randomweights import RandomModel
from core_bench.schema import Media, Prepared, Sample

SIDE = 512  # pixels: pictures small enough that the vision tower, which is not what is timed, stays cheap
_QUESTION = "What do you see?"


@dataclass(frozen=True)
class Timed:
    """A pass that was timed, to tell how long one at another length takes at least."""

    tokens: int
    seconds: float

    def expected_s(self, tokens: int) -> float:
        """By linear growth alone."""
        return self.seconds * tokens / self.tokens


def prompt_inputs(wrapper: ModelWrapper | RandomModel, tokens: int, folder: Path) -> dict[str, Any]:
    """Model inputs of about `tokens` tokens (of exactly so many for random weights), on the model's device."""
    if isinstance(wrapper, RandomModel):
        return wrapper.inputs(tokens)
    return wrapper.device_inputs(prompt_of(wrapper, tokens, folder))


def prompt_of(wrapper: ModelWrapper, tokens: int, folder: Path) -> Prepared:
    """A prompt of about `tokens` tokens, by the model's real processor: noise pictures and a short question.

    How many tokens a picture takes is measured on the processor, not assumed: between two pictures and three, because
    a family may show one alone in more tokens than beside others. What is missing to whole pictures is one picture cut
    to size, if that comes closer. Pictures are written to `folder`.
    """
    two, three = (_prepared(wrapper, [SIDE] * count, folder).token_map.length for count in (2, 3))
    per_picture = three - two
    whole, left = divmod(max(tokens - (two - 2 * per_picture), 0), per_picture)
    rows = round(SIDE * left / per_picture / 32) * 32
    choices = [[SIDE] * whole or [64], [SIDE] * whole + [rows or SIDE]]
    prompts = [_prepared(wrapper, heights, folder) for heights in choices]
    return min(prompts, key=lambda prepared: abs(prepared.token_map.length - tokens))


def _prepared(wrapper: ModelWrapper, heights: Sequence[int], folder: Path) -> Prepared:
    media = []
    for height in heights:
        path = folder / f"noise{height}.png"
        if not path.exists():
            noise = np.random.default_rng(height).integers(0, 255, (height, SIDE, 3), dtype=np.uint8)
            Image.fromarray(noise).save(path)
        media.append(Media(kind="image", path=str(path)))
    sample = Sample(
        task="speed",
        id=f"{len(heights)} pictures",
        cluster="noise",
        media=tuple(media),
        prompt=_QUESTION,
        question=_QUESTION,
        target=None,
    )
    return wrapper.prepare(sample)
