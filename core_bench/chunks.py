"""Reads a prompt in chunks: the language model's own forward, called on one stretch of positions after the other.

Only the memory of a forward changes (activations of one chunk instead of the whole prompt); keys and values pile up in
the cache as they do while decoding, so every query still sees what it would see in one pass.

Shape suffixes: B batch, N tokens of the prompt, V visual tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

CACHE_NAMES = ("cache", "past_key_values")  # what transformers calls the cache, in newer and older releases
# Arguments of a decoder stack that have one entry a token, and along which dimension.
_BY_TOKEN = {"input_ids": 1, "inputs_embeds": 1, "position_ids": -1, "visual_pos_masks": 1, "cache_position": 0}
_UNCUT = ("output_attentions", "output_hidden_states")


@dataclass(frozen=True)
class Part:
    """Tokens [start, stop) of the `length` that one call of the language model was given."""

    start: int
    stop: int
    length: int


@contextmanager
def chunked(language_model: nn.Module, size: int, tell: Callable[[Part | None], None]) -> Iterator[None]:
    """Within the block, `language_model` reads more than `size` tokens in chunks of `size`.

    `tell` hears of every part before it is read, and None after the last. Raises ValueError for a size below 1, and
    during the forward for arguments that cannot be cut: attention weights or hidden states asked for, a prepared 4-D
    mask, a tensor of unknown meaning.
    """
    if size < 1:
        raise ValueError(f"chunk: expected at least 1 token, got {size}")
    whole, own = language_model.forward, vars(language_model).get("forward")  # accelerate puts one there too

    def forward(*args: Any, **kwargs: Any) -> Any:
        if args:
            raise ValueError("chunk: expected the language model's arguments by name")
        given = kwargs.get("inputs_embeds")
        given = kwargs.get("input_ids") if given is None else given
        if given is None or given.shape[1] <= size:
            return whole(**kwargs)
        try:
            return _in_chunks(whole, kwargs, given.shape[1], size, tell)
        finally:
            tell(None)

    language_model.forward = forward
    try:
        yield
    finally:
        if own is None:
            del language_model.forward  # the class's own again
        else:
            language_model.forward = own


def _in_chunks(
    whole: Callable[..., Any], given: dict[str, Any], length: int, size: int, tell: Callable[[Part | None], None]
) -> Any:
    cache = {name: given.pop(name) for name in CACHE_NAMES if name in given}
    cache = {name: value for name, value in cache.items() if value is not None}
    before = next((value.get_seq_length() for value in cache.values()), 0)
    kept = bool(cache) or given.get("use_cache", True)
    read: list[torch.Tensor] = []
    for start in range(0, length, size):
        part = Part(start, min(start + size, length), length)
        tell(part)
        output = whole(**_cut(given, part, before), **cache)
        if not cache:  # the first part made it
            name = next(name for name in CACHE_NAMES if output.get(name) is not None)
            cache = {name: output[name]}
        read.append(output.last_hidden_state)
    return type(output)(last_hidden_state=torch.cat(read, dim=1), **(cache if kept else {}))


def _cut(given: dict[str, Any], part: Part, before: int) -> dict[str, Any]:
    """The arguments of one part; `before` tokens were in the cache when the call began."""
    cut: dict[str, Any] = {"use_cache": True}
    for name, value in given.items():
        if name in _BY_TOKEN and value is not None:
            cut[name] = value.narrow(_BY_TOKEN[name], part.start, part.stop - part.start)
        elif name == "attention_mask" and value is not None:
            if value.ndim != 2:
                raise ValueError(f"chunk: expected a 2-D padding mask, got {value.ndim} dimensions")
            cut[name] = value[:, : before + part.stop]
        elif name == "deepstack_visual_embeds" and value is not None:
            cut[name] = _cut_visual(value, given["visual_pos_masks"], part)
        elif name not in ("use_cache", "visual_pos_masks"):
            if isinstance(value, torch.Tensor) or (name in _UNCUT and value):
                raise ValueError(f"chunk: cannot read a prompt in chunks with {name}")
            cut[name] = value
    return cut


def _cut_visual(layers: list[torch.Tensor], mask_BN: torch.Tensor, part: Part) -> list[torch.Tensor]:
    """DeepStack features [V, D] of the part's visual tokens; V counts those of all rows, row after row."""
    inside_BN = torch.zeros_like(mask_BN)
    inside_BN[:, part.start : part.stop] = True
    chosen_V = inside_BN[mask_BN]
    return [features_VD[chosen_V.to(features_VD.device)] for features_VD in layers]
