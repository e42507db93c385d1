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
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb

from core_bench.bundled.batches import Batch

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
        size, groups = attention.head_dim, attention.num_key_value_groups
        q_MHD = attention.q_norm(attention.q_proj(self.hidden[rows, columns]).unflatten(-1, (-1, size)))
        k_BKND = attention.k_norm(attention.k_proj(self.hidden).unflatten(-1, (-1, size))).transpose(1, 2)
        q_MHD, _ = apply_rotary_pos_emb(q_MHD, q_MHD, self.cos[rows, columns], self.sin[rows, columns])
        _, k_BKND = apply_rotary_pos_emb(k_BKND, k_BKND, self.cos, self.sin)
        k_MHND = k_BKND[rows].repeat_interleave(groups, dim=1)
        scores_MHN = torch.einsum("mhd,mhnd->mhn", q_MHD, k_MHND) * attention.scaling
        later_MN = torch.arange(self.hidden.shape[1])[None] > columns[:, None]
        return scores_MHN.masked_fill(later_MN[:, None], -torch.inf).log_softmax(-1)


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
    losses = {}
    for name, marks in batch.looks.items():
        log_MN = call.log_weights(marks[:, 0], marks[:, 1])[:, HEADS[name]]
        losses[f"look {name}"] = -log_MN[torch.arange(len(marks)), marks[:, 2]].mean()
    return losses


def idle_loss(calls: Iterable[Call], batch: Batch) -> torch.Tensor:
    """-log of the attention that is paid to anything but media at the question's tokens, over heads on average."""
    rows, columns = batch.idle.unbind(1)
    visual_MN = batch.inputs["mm_token_type_ids"][rows] > 0
    found = [
        -call.log_weights(rows, columns).masked_fill(visual_MN[:, None], -torch.inf).logsumexp(-1).mean()
        for call in calls
    ]
    return torch.stack(found).mean()
