"""Trains a bundled checkpoint: `python -m core_bench.bundled.train --family qwen3vl --out FOLDER`.

Seeded and resumable: the same command goes on from FOLDER/state.pt. Every step draws its data from (seed, step), so an
interrupted training sees the same pictures as an undisturbed one. The recipe is in docs/bundled-models.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from core_bench.bundled import guide
from core_bench.bundled.architectures import FAMILIES, architecture
from core_bench.bundled.batches import Batch, Turns, make_batch
from core_bench.bundled.clip import MOMENT_SECONDS
from core_bench.bundled.feeds import Feed, Plan, make_feed
from core_bench.bundled.warmstart import warm_start
from core_bench.errors import UserError


@dataclass(frozen=True)
class Recipe:
    """Everything that the result depends on besides library versions and the processor's arithmetic."""

    seed: int = 0
    steps: int = 2200
    probe_steps: int = 100
    probe_decay_from: float = 1.0  # share of the probe steps after which their learning rate falls linearly to zero
    pictures_until: int = 240  # until this step small pictures only: retrieval forms there soonest
    short_until: int = 700  # until this step clips of at most 8 seconds
    long_from: int = 800  # from this step on, a share of long media
    long_share: float = 0.2
    reach: int = 2048  # positions by which questions are moved away from the media at most
    reach_from: int = 500
    batch_size: int = 32
    lr: float = 2e-3
    warmup: int = 100
    decay_from: float = 0.6  # share of the steps after which the learning rate falls linearly to zero
    aux_until: float = 0.85  # share of the steps during which there are helping targets
    idle_from: int = 400  # from this step on, heads of the upper layers are kept from looking at media idly
    idle_weight: float = 0.3
    head_dropout: float = 0.1  # whole heads, per conversation: several heads then carry an answer onward
    head_dropout_from: int = 1300  # in layers 1 and up
    finish_steps: int = 160  # at the end, head dropout in every layer, so that no other single head is indispensable
    finish_lr: float = 5e-4
    finish_rounds: int = 3  # each with a learning rate that rises and falls; in the last, half of the media are long
    spare: int = 2  # heads that the later rounds never drop: those that retrieve most after the first

    @property
    def total_steps(self) -> int:
        return self.steps + self.finish_rounds * self.finish_steps


# The others' towers read objects at several sizes, and cut across.
_SHORTER = Recipe(steps=2000, head_dropout_from=1200)  # their prompts are longer, so are their steps
RECIPES = {
    "qwen3vl": Recipe(),
    "llava_onevision": replace(_SHORTER, probe_steps=1200, probe_decay_from=0.5, pictures_until=320),
    "internvl": replace(_SHORTER, probe_steps=300),
}


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, constant, linear decay to zero; the same again, shorter and lower, for each finishing round."""
    if step >= recipe.steps:
        done = (step - recipe.steps) % recipe.finish_steps
        left = recipe.finish_steps - done
        return recipe.finish_lr * min(1.0, (done + 1) / 10, left / (0.5 * recipe.finish_steps))
    rising = min(1.0, (step + 1) / recipe.warmup)
    start = recipe.decay_from * recipe.steps
    falling = min(1.0, (recipe.steps - step) / (recipe.steps - start))
    return recipe.lr * min(rising, falling)


# After how many layers a helping target is read off, so that the layers above can work with it. After the first one the
# color stands at the word that asks for it: that is where retrieval settles.
AUX_LAYERS = {"shape": 1}
AUX_LAYERS_ELSE = 3
LOG_EVERY = 20  # steps that one line of the log averages
TOKENS = 5000  # of one step, about: conversations are fewer where they are longer
_TURN_TOKENS = 45


def curriculum(recipe: Recipe, feed: Feed, step: int, rng: np.random.Generator) -> Plan:
    """What the step trains on: small pictures first, then pictures, documents and clips of mixed sizes."""
    if step < recipe.pictures_until // 2:
        return feed.fit(Plan("picture", recipe.batch_size, 1, 4, 4, (4, 4)))
    if step < recipe.pictures_until:
        return feed.fit(Plan("picture", recipe.batch_size, 1, 6, 6, (4, 8)))
    far = step >= recipe.total_steps - recipe.finish_steps
    if step >= recipe.long_from and rng.random() < (0.5 if far else recipe.long_share):
        plan = feed.fit(_far_document(rng) if far and rng.random() < 0.5 else _long_plan(rng))
        return replace(plan, size=_affordable(plan, feed, 8), reach=0 if plan.moment else recipe.reach)
    drawn = rng.random()
    if drawn < 0.2:
        rows, cols = (int(n) for n in rng.integers(4, 11, size=2))
        plan = Plan("picture", 0, 1, rows, cols, (4, min(16, rows * cols // 2)), 4, choice=0.4)
    elif drawn < 0.45:
        pages, rows, cols = int(rng.integers(1, 5)), int(rng.integers(4, 9)), int(rng.integers(4, 8))
        plan = Plan("document", 0, pages, rows, cols, (4, min(12, pages * cols)), absent=0.3)
    else:
        watched = bool(rng.random() < 0.7)
        longest = 8 if step < recipe.short_until else MOMENT_SECONDS if watched else 16
        seconds, rows, cols = int(rng.integers(3, longest + 1)), int(rng.integers(3, 5)), int(rng.integers(3, 5))
        choice, moment, turns = (0.4, 0.5, 6) if watched else (0.8, 0.0, 4)
        plan = Plan("clip", 0, seconds, rows, cols, (6, 14), turns, choice, moment, one_second=watched)
    # Which second is first or last shows in the distances, so these stay as they are where moments are asked for.
    reach = 0 if step < recipe.reach_from or plan.moment else recipe.reach
    plan = feed.fit(plan)
    return replace(plan, size=_affordable(plan, feed, recipe.batch_size), reach=reach)


def _long_plan(rng: np.random.Generator) -> Plan:
    """Media of about 200 to 2,500 tokens; without them the model answers nonsense at lengths it never saw."""
    drawn = rng.random()
    if drawn < 0.3:
        rows, cols = (int(n) for n in rng.integers(11, 25, size=2))
        return Plan("picture", 0, 1, rows, cols, (8, 16), choice=0.3, max_turns=4)
    if drawn < 0.55:
        pages, rows, cols = int(rng.integers(2, 7)), int(rng.integers(8, 17)), int(rng.integers(6, 15))
        return Plan("document", 0, pages, rows, cols, (8, 12))
    rows, cols = (int(n) for n in rng.integers(5, 13, size=2))
    if drawn < 0.7:
        return Plan("clip", 0, int(rng.integers(6, MOMENT_SECONDS + 1)), rows, cols, (8, 14), choice=0.2, moment=0.7)
    return Plan("clip", 0, int(rng.integers(8, 17)), rows, cols, (8, 14), 4, choice=0.7)


def _far_document(rng: np.random.Generator) -> Plan:
    """A document of about 1,000 to 4,000 tokens: in such a one, evidence is easily taken to be absent."""
    pages, rows, cols = int(rng.integers(6, 17)), int(rng.integers(12, 17)), int(rng.integers(12, 17))
    return Plan("document", 0, pages, rows, cols, (8, 12), absent=0.2)


def _affordable(plan: Plan, feed: Feed, most: int) -> int:
    return max(2, min(most, TOKENS // (feed.length(plan) + plan.max_turns * _TURN_TOKENS)))


@contextmanager
def dropped_heads(
    model: Any,
    rate: float,
    seed: int,
    first_layer: int = 1,
    spared: Sequence[Sequence[int]] = (),
) -> Iterator[None]:
    """Silences each head (o_proj input) of `first_layer` and above with probability `rate`, per conversation, but for
    the `spared` (layer, head)."""
    generator = torch.Generator().manual_seed(seed)
    n_heads = model.config.text_config.num_attention_heads

    def silence(module: torch.nn.Module, args: tuple, kept: list[int]) -> tuple:
        x_BND = args[0]
        keep = torch.rand(x_BND.shape[0], 1, n_heads, 1, generator=generator) >= rate
        keep[:, :, kept] = True
        heads = x_BND.unflatten(-1, (n_heads, -1)) * keep
        return (heads.flatten(-2),)

    hooks = []
    if rate > 0:
        for number, layer in enumerate(model.model.language_model.layers):
            kept = [head for of, head in spared if of == number]
            if number >= first_layer:
                hooks.append(layer.self_attn.o_proj.register_forward_pre_hook(partial(silence, kept=kept)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def losses(
    model: Any, feed: Feed, batch: Batch, turns: Turns
) -> tuple[torch.Tensor, dict[str, torch.Tensor], dict[str, float]]:
    """Cross entropy at the answers and at the helping targets by name, and the share of right answers by kind.

    The helping targets are read off after AUX_LAYERS layers.
    """
    language = model.model.language_model
    with captured(language.layers) as after, guide.watched(language.layers) as calls:
        positions = _positions(model, feed, batch)
        hidden = model.model(**batch.inputs, position_ids=positions, use_cache=False).last_hidden_state
    among = {"choice": list(turns.color_ids.values()), "asked": list(turns.shape_ids.values())}
    among["begins"] = [turns.yes_id, turns.no_id]
    aux = {}
    for name, marks in batch.aux.items():
        early = after[AUX_LAYERS.get(name, AUX_LAYERS_ELSE) - 1]
        said = model.lm_head(language.norm(early[marks[:, 0], marks[:, 1]]))
        if name in among:  # only which of these it is: another token may stay the likeliest
            others = torch.ones(said.shape[1], dtype=torch.bool)
            others[among[name]] = False
            said = said.masked_fill(others, -torch.inf)
        aux[name] = functional.cross_entropy(said, marks[:, 2])
    aux |= guide.look_losses(calls[guide.LAYER], batch)
    aux["idle"] = guide.idle_loss([calls[layer] for layer in guide.IDLE_LAYERS], batch)
    answers = model.lm_head(hidden[batch.answers[:, 0], batch.answers[:, 1]])
    right = _right_by_kind(batch, answers.argmax(-1) == batch.answers[:, 2])
    return functional.cross_entropy(answers, batch.answers[:, 2]), aux, right


@contextmanager
def captured(layers: Iterable[torch.nn.Module]) -> Iterator[list[torch.Tensor]]:
    """The output of every layer in turn."""
    outputs: list[torch.Tensor] = []

    def keep(_: torch.nn.Module, args: tuple, output: torch.Tensor | tuple) -> None:
        outputs.append(output[0] if isinstance(output, tuple) else output)

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def _positions(model: Any, feed: Feed, batch: Batch) -> torch.Tensor:
    """The model's own positions, int64 [..., rows, columns], with the batch's questions moved away."""
    positions = feed.positions(model, batch.inputs)
    for row, column, distance in batch.shifts:
        positions[..., row, column:] += distance
    return positions


def _right_by_kind(batch: Batch, right: torch.Tensor) -> dict[str, float]:
    """Share of turns whose whole answer was right, for each kind of turn."""
    ends = [*batch.firsts[1:], len(right)]
    whole = [bool(right[first:end].all()) for first, end in zip(batch.firsts, ends, strict=True)]
    kinds = sorted(set(batch.kinds))
    return {
        kind: float(np.mean([value for value, of in zip(whole, batch.kinds, strict=True) if of == kind]))
        for kind in kinds
    }


def _averages(figures: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each figure over the steps that have it."""
    names = sorted({name for step in figures for name in step})
    return {name: round(float(np.mean([step[name] for step in figures if name in step])), 4) for name in names}


class Trainer:
    """Model, optimizer and step counter, saved as one file."""

    def __init__(self, family: str, recipe: Recipe, out: Path) -> None:
        self.family, self.recipe, self.out = family, recipe, out
        built = architecture(family)
        self.tokenizer = built.build_tokenizer()
        self.processor = built.build_processor(self.tokenizer)
        self.turns, self.feed = Turns(self.tokenizer), make_feed(family, self.processor)
        self.model = built.build_model(recipe.seed, self.tokenizer).train()
        betas = (0.9, 0.98)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=recipe.lr, betas=betas, weight_decay=0.01)
        self.step, self.log = 0, []  # type: int, list[dict]
        self.spared: list[list[int]] = []  # (layer, head)

    def start(self) -> None:
        """Resumes from the saved state, or runs the warm start. UserError for the state of another recipe."""
        path = self.out / "state.pt"
        if path.exists():
            state = torch.load(path, weights_only=True)
            made_with, recipe = state["recipe"], self._recipe()
            other = [f"{k} {made_with.get(k)}" for k in recipe if made_with.get(k) != recipe[k]]
            if other or made_with.keys() != recipe.keys():
                raise UserError(f"{path}: made by another recipe ({', '.join(other)}): expected an --out of its own")
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.log, self.spared = state["step"], state["log"], state["spared"]
            return
        made = self.recipe
        accuracy = warm_start(self.model, self.turns, self.feed, made.seed, made.probe_steps, made.probe_decay_from)
        print("probes", accuracy, flush=True)
        self.log.append({"step": 0, "probes": accuracy})

    def save(self) -> None:
        state = {
            "recipe": self._recipe(),
            "spared": self.spared,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "log": self.log,
        }
        torch.save(state, self.out / "state.tmp")
        (self.out / "state.tmp").replace(self.out / "state.pt")

    def _recipe(self) -> dict[str, Any]:
        return {"family": self.family, **asdict(self.recipe)}

    def _most_retrieving(self) -> list[list[int]]:
        """(layer, head) of the `spare` heads by which the words that ask look most at what is asked for."""
        found = []
        for number in range(8):
            rng = np.random.default_rng((self.recipe.seed, 3, number))
            batch = make_batch(self.turns, self.feed, rng, curriculum(self.recipe, self.feed, self.step, rng))
            layers = self.model.model.language_model.layers
            with torch.no_grad(), guide.watched(layers) as calls:
                positions = _positions(self.model, self.feed, batch)
                self.model.model(**batch.inputs, position_ids=positions, use_cache=False)
                found.append(guide.retrieval(calls, batch))
        mass_LH = torch.stack(found).mean(0)
        best = mass_LH.flatten().argsort(descending=True)[: self.recipe.spare].tolist()
        spared = [list(divmod(at, mass_LH.shape[1])) for at in sorted(best)]
        self.log.append(
            {
                "step": self.step,
                "spared": spared,
                "retrieval": [round(mass_LH.flatten()[at].item(), 4) for at in sorted(best)],
            }
        )
        return spared

    def train_step(self) -> dict[str, float]:
        recipe, step = self.recipe, self.step
        rng = np.random.default_rng((recipe.seed, 1, step))
        if step == recipe.steps + recipe.finish_steps:
            self.spared = self._most_retrieving()
        batch = make_batch(self.turns, self.feed, rng, curriculum(recipe, self.feed, step, rng))
        rate = recipe.head_dropout if step >= recipe.head_dropout_from else 0.0
        first_layer = 1 if step < recipe.steps else 0
        with dropped_heads(self.model, rate, recipe.seed * 1_000_003 + step, first_layer, self.spared):
            answer, aux, right = losses(self.model, self.feed, batch, self.turns)
        loss = answer
        if step >= recipe.idle_from:
            loss = loss + recipe.idle_weight * aux["idle"]
        if step < recipe.aux_until * recipe.steps:
            loss = loss + sum(value for name, value in aux.items() if name != "idle")
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return {"answer": answer.item(), **{f"aux {name}": value.item() for name, value in aux.items()}, **right}

    def run(self) -> None:
        began, recent = time.perf_counter(), []  # type: float, list[dict[str, float]]
        while self.step < self.recipe.total_steps:
            recent.append(self.train_step())
            if self.step % LOG_EVERY == 0:
                entry = {"step": self.step, **_averages(recent)}
                recent.clear()
                self.log.append(entry)
                print(entry, f"{time.perf_counter() - began:.0f} s", flush=True)
            if self.step % (5 * LOG_EVERY) == 0 or self.step == self.recipe.total_steps:
                self.save()

    def export(self) -> Path:
        """The finished checkpoint in bfloat16, in the hub's layout."""
        folder = self.out / "checkpoint"
        self.model.eval().to(torch.bfloat16).save_pretrained(folder)
        self.processor.save_pretrained(folder)
        record = {"recipe": self._recipe(), "log": self.log}
        (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n")
        return folder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m core_bench.bundled.train", description=__doc__)
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--steps", type=int, help="default: the family's")
    args = parser.parse_args()
    recipe = RECIPES[args.family]
    recipe = replace(recipe, seed=args.seed, steps=args.steps or recipe.steps)
    try:
        trainer = Trainer(args.family, recipe, _folder(args.out))
        trainer.start()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    trainer.run()
    print("checkpoint:", trainer.export())


def _folder(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: expected a folder that can be written, got: {error.strerror}") from None
    return out


if __name__ == "__main__":
    main()
