"""The warm start that lets retrieval heads form early: words and visual tokens share one space from the first step.

The vision tower learns, under two linear probes, to name the shape and color in each cell; the probes' weight rows
then become the embeddings of the shape and color words.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NoReturn

import numpy as np
import torch
from torch.nn import functional

from core_bench.bundled import words
from core_bench.bundled.batches import Turns
from core_bench.bundled.clip import make_clip
from core_bench.bundled.feeds import Feed, Layout, Plan
from core_bench.bundled.scene import CELL, make_scene
from core_bench.schema import Box


class _Embedded(Exception):
    """Ends the forward at the language model's door."""


def embeddings(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the language model reads: [rows, columns, width], visual tokens in their places, with gradients."""
    found: list[torch.Tensor] = []

    def stop(_: torch.nn.Module, args: tuple, kwargs: dict) -> NoReturn:
        found.append(kwargs["inputs_embeds"])
        raise _Embedded

    hook = model.model.language_model.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        model.model(**inputs, use_cache=False)
    except _Embedded:
        pass
    finally:
        hook.remove()
    return found[0]


def _media(rng: np.random.Generator, plan: Plan) -> tuple[np.ndarray, list[tuple[int, Box, str, str]]]:
    """Pixels of one conversation, and (part, box, shape, color) of all that is to be seen in it."""
    if plan.kind == "picture":
        scene = make_scene(rng, plan.rows, plan.cols, plan.objects[1])
        return scene.pixels[None], [(0, thing.box, thing.shape, thing.color) for thing in scene.objects]
    clip = make_clip(rng, plan.rows, plan.cols, plan.parts, [plan.parts] * plan.objects[1])
    found = [
        (second, box, track.shape, track.color)
        for track in clip.tracks
        for second, box in enumerate(track.boxes, start=track.first)
    ]
    return clip.pixels, found


def _layout(feed: Feed, plan: Plan) -> Layout:
    if plan.kind == "picture":
        return feed.pictures(plan.parts, plan.rows, plan.cols)
    return feed.clip([second + 0.25 for second in range(plan.parts)], plan.rows, plan.cols)


def _probe_batch(rng: np.random.Generator, feed: Feed, plan: Plan) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Model inputs, and for every token that shows one object: row, column, shape number, color number [m, 4].

    Tokens that show several objects, as in a thumbnail, have no name.
    """
    layout = _layout(feed, plan)
    ids = torch.tensor(layout.ids).expand(plan.size, -1).clone()
    media, marks = [], []
    for row in range(plan.size):
        pixels, things = _media(rng, plan)
        media.append(pixels)
        shown = [(at, shape, color) for part, box, shape, color in things for at in _cell(layout, part, box)]
        times = Counter(at for at, _, _ in shown)
        marks += [
            (row, at, words.SHAPES.index(shape), list(words.COLORS).index(color))
            for at, shape, color in shown
            if times[at] == 1
        ]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return inputs | feed.inputs(plan, media, ids), torch.tensor(marks)


def _cell(layout: Layout, part: int, box: Box) -> tuple[int, ...]:
    return layout.at(part, int(box[1] // CELL), int(box[0] // CELL))


def warm_start(
    model: Any, turns: Turns, feed: Feed, seed: int, steps: int, decay_from: float = 1.0
) -> dict[str, float]:
    """Trains the vision tower under probes, ties the word embeddings to them; returns the probes' last accuracies.

    The kinds of media that the feed names take turns. The learning rate falls linearly to zero after the share
    `decay_from` of the steps.
    """
    width = model.config.text_config.hidden_size
    generator = torch.Generator().manual_seed(seed)
    heads = [torch.randn(n, width, generator=generator) * 0.05 for n in (len(words.SHAPES), len(words.COLORS))]
    shape_head, color_head = (torch.nn.Parameter(head) for head in heads)
    language = {id(p) for p in [*model.model.language_model.parameters(), *model.lm_head.parameters()]}
    params = [*(p for p in model.parameters() if id(p) not in language), shape_head, color_head]
    lr, falling = 2e-3, (1 - decay_from) * steps
    optimizer = torch.optim.AdamW(params, lr=lr, weight_decay=0.01, betas=(0.9, 0.98))
    accuracy: dict[str, float] = {}
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = lr * min(1.0, (steps - step) / falling) if falling else lr
        plan = feed.probe_plans[step % len(feed.probe_plans)]
        inputs, marks = _probe_batch(np.random.default_rng((seed, 7, step)), feed, plan)
        rows, columns, shapes, colors = marks.unbind(1)
        features = embeddings(model, inputs)[rows, columns]
        loss = torch.zeros(())
        for name, head, target in (("shape", shape_head, shapes), ("color", color_head, colors)):
            logits = features @ head.T
            loss = loss + functional.cross_entropy(logits, target)
            key = name if plan.kind == "picture" else f"{name} in a {plan.kind}"
            accuracy[key] = float((logits.argmax(-1) == target).float().mean())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
    _tie_words(model, turns, shape_head.detach(), color_head.detach())
    return accuracy


def _tie_words(model: Any, turns: Turns, shapes: torch.Tensor, colors: torch.Tensor) -> None:
    table = model.get_input_embeddings().weight
    norm = table.detach().norm(dim=-1).median()
    rows = [(turns.shape_ids[name], row) for name, row in zip(words.SHAPES, shapes, strict=True)]
    rows += [(turns.color_ids[name], row) for name, row in zip(words.COLORS, colors, strict=True)]
    with torch.no_grad():
        for token, row in rows:
            table[token] = row / row.norm() * norm
