"""Guidance of attention in training: which helper heads read an answer off where, and that they rest elsewhere.

Left alone, the model does not find out within thousands of steps that a letter is read off the option of the remembered
color, or a moment off an object's first and last second. The heads that find what a question asks for are not guided
here; docs/bundled-models.md says what else of the training bears on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from core_bench.bundled.batches import Batch, Sights

# Shapes: B rows, N columns, M marks, H query heads, K KV heads, D head size.
LAYER = 4
HEADS = {"option": 0, "first": 2, "last": 4}  # by name of batches.LOOKS
# In these layers no head is to look at the media while the question is read: nothing asks for it there, and heads that
# do so idly would rank high in RAM though they carry nothing.
IDLE_LAYERS = (4, 5)


@dataclass(frozen=True)
class Call:
    """What the attention of a decoder layer was called with: hidden [B, N, width], cos and sin [B, N, D]."""

    attention: Any
    hidden: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor

    def log_weights(self, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Log attention of the queries at (rows, columns), int64 [M]: float32 [M, H, N], -inf for later keys."""
        attention = self.attention
        cos_BND, sin_BND = (turn.expand(len(self.hidden), -1, -1) for turn in (self.cos, self.sin))
        q_MHD = self._heads("q", self.hidden[rows, columns])
        k_BKND = self._heads("k", self.hidden).transpose(1, 2)
        q_MHD = _rotated(q_MHD, cos_BND[rows, columns][:, None], sin_BND[rows, columns][:, None])
        k_BKND = _rotated(k_BKND, cos_BND[:, None], sin_BND[:, None])
        k_MHND = k_BKND[rows].repeat_interleave(attention.num_key_value_groups, dim=1)
        scores_MHN = torch.einsum("mhd,mhnd->mhn", q_MHD, k_MHND) * attention.scaling
        later_MN = torch.arange(self.hidden.shape[1])[None] > columns[:, None]
        return scores_MHN.masked_fill(later_MN[:, None], -torch.inf).log_softmax(-1)

    def log_mass(self, sights: Sights) -> torch.Tensor:
        """Log attention of each query on its columns together: float32 [M, H]."""
        log_MHN = self.log_weights(*sights.queries.unbind(1))
        columns_MP = sights.columns.clamp(min=0)
        log_MHP = log_MHN.gather(2, columns_MP[:, None].expand(-1, log_MHN.shape[1], -1))
        return log_MHP.masked_fill(sights.columns[:, None] < 0, -torch.inf).logsumexp(-1)

    def _heads(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        """Queries ("q") or keys ("k") before their rotation: [..., heads, D]."""
        found = getattr(self.attention, f"{name}_proj")(hidden).unflatten(-1, (-1, self.attention.head_dim))
        norm = getattr(self.attention, f"{name}_norm", None)  # Qwen3 has one, Qwen2 has none
        return found if norm is None else norm(found)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding (Su et al. 2021), halves of D as pairs."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


@contextmanager
def watched(layers: Iterable[Any]) -> Iterator[list[Call]]:
    """The calls of the attention of each of `layers`, in order."""
    calls: list[Call] = []

    def keep(module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        calls.append(Call(module, kwargs["hidden_states"], *kwargs["position_embeddings"]))

    hooks = [layer.self_attn.register_forward_pre_hook(keep, with_kwargs=True) for layer in layers]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def look_losses(call: Call, batch: Batch) -> dict[str, torch.Tensor]:
    """For each kind of look: -log of the attention that its head pays to the right place, on average."""
    return {f"look {name}": -call.log_mass(sights)[:, HEADS[name]].mean() for name, sights in batch.looks.items()}


def retrieval(calls: Iterable[Call], batch: Batch) -> torch.Tensor:
    """Attention that the words which ask pay to what is asked for, on average: float32 [L, H] for L calls."""
    return torch.stack([call.log_mass(batch.finds).exp().mean(0) for call in calls])


def idle_loss(calls: Iterable[Call], batch: Batch) -> torch.Tensor:
    """-log of the attention that is paid to anything but media at the question's tokens, over heads on average."""
    rows, columns = batch.idle.unbind(1)
    visual_MN = batch.visual[rows]
    found = [
        -call.log_weights(rows, columns).masked_fill(visual_MN[:, None], -torch.inf).logsumexp(-1).mean()
        for call in calls
    ]
    return torch.stack(found).mean()
