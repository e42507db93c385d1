"""How a family's model is fed with generated media in training: one module a family, as its processor would write them.

Tests hold every feed against the real processor and against the token map of the family's wrapper.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import torch

FAMILIES = ("qwen3vl", "llava_onevision", "internvl")

Pixels = np.ndarray  # uint8 [parts, height, width, 3]: pictures, pages, or one picture a second of a clip


@dataclass(frozen=True)
class Plan:
    """What one step trains on.

    `kind`: "picture", "document" or "clip"; `parts`: pictures, pages or seconds of one conversation; `objects`: their
    number, a closed range; `one_second`: whether clips are seen second by second, so that moments can be asked for.
    Shares of the turns: `choice` are multiple choice, `moment` about moments, `absent` (of a document's) about a shape
    that it does not show. `reach`: question and media are moved apart by up to so many positions, in half of the
    conversations.
    """

    kind: str
    size: int
    parts: int
    rows: int
    cols: int
    objects: tuple[int, int]
    max_turns: int = 6
    choice: float = 0.0
    moment: float = 0.0
    one_second: bool = True
    reach: int = 0
    absent: float = 0.2


@dataclass(frozen=True)
class Layout:
    """The token ids of one conversation's media; `at(part, row, col)` gives the indices into `ids` of all tokens that
    show a cell of 32 x 32 pixels."""

    ids: list[int]
    at: Callable[[int, int, int], tuple[int, ...]]


class Feed(Protocol):
    """What differs between families in training."""

    visual_ids: tuple[int, ...]
    probe_plans: tuple[Plan, ...]  # media on which the vision tower is started

    def fit(self, plan: Plan) -> Plan:
        """The plan with media of a size that the family reads at its own resolution."""
        ...

    def length(self, plan: Plan) -> int:
        """Tokens of one conversation's media."""
        ...

    def pictures(self, parts: int, rows: int, cols: int) -> Layout:
        """A picture, or the pages of a document, of rows x cols cells."""
        ...

    def clip(self, stamps: Sequence[float], rows: int, cols: int, wrapped: bool = True) -> Layout:
        """A clip with one time stamp (seconds) for each part; `wrapped` says how the processor writes it, where a
        family's processors differ in that."""
        ...

    def inputs(self, plan: Plan, media: Sequence[Pixels], ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """The model's inputs beside token ids (int64 [rows, columns]) and mask, for one `Pixels` a row."""
        ...

    def positions(self, model: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The model's own position ids, int64 [..., rows, columns]."""
        ...


def make_feed(family: str, processor: Any) -> Feed:
    """The feed of a family; imports torch and transformers."""
    return cast(Feed, importlib.import_module(f"{__name__}.{family}").MediaFeed(processor))


def plain_positions(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """0, 1, 2, ... in every row: int64 [rows, columns]; rows are padded on the right."""
    rows, columns = inputs["input_ids"].shape
    return torch.arange(columns).expand(rows, columns).clone()
