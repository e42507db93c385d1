"""Notices numbers that are none: a model whose logits are NaN or infinite has no answer, and argmax would invent one.

Shape suffixes: B batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import LogitsProcessor

from core_bench.errors import SampleError


class FiniteLogits(LogitsProcessor):
    """Ends a generation in SampleError where logits are NaN or +inf, or all of them -inf (one alone may be masked)."""

    def __call__(self, input_ids: torch.Tensor, scores_BV: torch.Tensor) -> torch.Tensor:
        largest_B = scores_BV.amax(dim=-1)  # NaN where one is NaN
        if not bool(torch.isfinite(largest_B).all()):
            raise SampleError(f"the model's logits are {float(largest_B[~torch.isfinite(largest_B)][0])}")
        return scores_BV


@contextmanager
def first_broken_layer(layers: Iterable[nn.Module]) -> Iterator[list[int]]:
    """Collects, while the model runs, the number of the first layer whose output is not finite; [] where all are."""
    found: list[int] = []

    def look(number: int, _: nn.Module, args: tuple[Any, ...], output: torch.Tensor | tuple[Any, ...]) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        if not found and not bool(torch.isfinite(hidden).all()):
            found.append(number)

    hooks = [layer.register_forward_hook(partial(look, number)) for number, layer in enumerate(layers)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
