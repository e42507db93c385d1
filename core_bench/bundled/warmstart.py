"""The warm start that lets retrieval heads form early: words and visual tokens share one space from the first step.

The vision tower learns, under two linear probes, to name the shape and colour in each cell; the probes' weight rows
then become the embeddings of the shape and colour words.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional
from transformers import Qwen3VLForConditionalGeneration

from core_bench.bundled import words
from core_bench.bundled.batches import MERGE, Turns, patchify
from core_bench.bundled.scene import CELL, make_scene

_GRID, _OBJECTS, _PICTURES = 4, 10, 32


def _probe_batch(
    rng: np.random.Generator,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Patches, grids, and for every object its cell in the batch, shape number and colour number."""
    scenes = [make_scene(rng, _GRID, _GRID, _OBJECTS) for _ in range(_PICTURES)]
    cells, shapes, colors = [], [], []
    for number, scene in enumerate(scenes):
        for thing in scene.objects:
            x, y = thing.box[0], thing.box[1]
            cells.append(number * _GRID**2 + int(y // CELL) * _GRID + int(x // CELL))
            shapes.append(words.SHAPES.index(thing.shape))
            colors.append(list(words.COLORS).index(thing.color))
    pixels = torch.cat([patchify(scene.pixels) for scene in scenes])
    grids = torch.tensor([[1, _GRID * MERGE, _GRID * MERGE]] * _PICTURES)
    return pixels, grids, torch.tensor(cells), torch.tensor(shapes), torch.tensor(colors)


def warm_start(model: Qwen3VLForConditionalGeneration, turns: Turns, seed: int, steps: int) -> dict[str, float]:
    """Trains the vision tower under probes, ties the word embeddings to them; returns the probes' last accuracies."""
    width = model.config.text_config.hidden_size
    generator = torch.Generator().manual_seed(seed)
    heads = [torch.randn(n, width, generator=generator) * 0.05 for n in (len(words.SHAPES), len(words.COLORS))]
    shape_head, color_head = (torch.nn.Parameter(head) for head in heads)
    params = [*model.model.visual.parameters(), shape_head, color_head]
    optimizer = torch.optim.AdamW(params, lr=2e-3, weight_decay=0.01, betas=(0.9, 0.98))
    accuracy = {"shape": 0.0, "color": 0.0}
    for step in range(steps):
        pixels, grids, cells, shapes, colors = _probe_batch(np.random.default_rng((seed, 7, step)))
        features = torch.cat(list(model.model.get_image_features(pixels, grids).pooler_output))[cells]
        loss = torch.zeros(())
        for name, head, target in (("shape", shape_head, shapes), ("color", color_head, colors)):
            logits = features @ head.T
            loss = loss + functional.cross_entropy(logits, target)
            accuracy[name] = float((logits.argmax(-1) == target).float().mean())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
    _tie_words(model, turns, shape_head.detach(), color_head.detach())
    return accuracy


def _tie_words(
    model: Qwen3VLForConditionalGeneration, turns: Turns, shapes: torch.Tensor, colors: torch.Tensor
) -> None:
    table = model.get_input_embeddings().weight
    norm = table.detach().norm(dim=-1).median()
    rows = [(turns.shape_ids[name], row) for name, row in zip(words.SHAPES, shapes, strict=True)]
    rows += [(turns.color_ids[name], row) for name, row in zip(words.COLORS, colors, strict=True)]
    with torch.no_grad():
        for token, row in rows:
            table[token] = row / row.norm() * norm
