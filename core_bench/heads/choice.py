"""Which heads an arm takes: budgets ("10%", "5"), arms ("top:5%"), head lists in files, random controls."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from core_bench.errors import UserError
from core_bench.heads.plan import Head, HeadShape
from core_bench.heads.scores import HeadScores

ArmKind = Literal["top", "bottom", "random", "file"]
MIN_DRAWS = 5
_BUDGET = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(%?)")


@dataclass(frozen=True)
class ArmSpec:
    """One arm as the user wrote it. `amount` is a budget ("5%"), or for kind "file" the path of a head list."""

    kind: ArmKind
    amount: str

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.amount}"


@dataclass(frozen=True)
class Draw:
    """One random control set, sorted. `displaced` of its heads come from a neighbouring layer: theirs had too few
    left."""

    heads: tuple[Head, ...]
    displaced: int


def check_budget(text: str, argument: str = "budget") -> Fraction | int:
    """A share in (0, 1] for "10%", a count of at least 1 for "5"; UserError naming `argument` for anything else."""
    match = _BUDGET.fullmatch(text.strip())
    if match is None or (not match[2] and "." in match[1]):
        raise UserError(f"{argument}: expected a share of heads such as 10% or a count such as 5, got {text!r}")
    number = Fraction(match[1])
    if not number:
        raise UserError(f"{argument}: expected at least one head, got {text!r}")
    if not match[2]:
        return int(number)
    if number > 100:
        raise UserError(f"{argument}: expected at most 100% of the heads, got {text!r}")
    return number / 100


def k_for(budget_text: str, n_heads: int, argument: str = "budget") -> int:
    """How many of `n_heads` a budget means: "5" is 5, a share p is max(1, round half up(p * n_heads))."""
    budget = check_budget(budget_text, argument)
    if isinstance(budget, Fraction):
        return max(1, math.floor(budget * n_heads + Fraction(1, 2)))  # exact: a float share could round 2.5 down
    if budget > n_heads:
        raise UserError(f"{argument}: expected at most the model's {n_heads} heads, got {budget_text!r}")
    return budget


def parse_arms(text: str, argument: str = "--ablate") -> tuple[ArmSpec, ...]:
    """Arms of a comma-separated list: `5%` (short for `top:5%`), `top:5%`, `bottom:5`, `random:5%`, `file:PATH`.

    A path cannot hold a comma. UserError for an unknown kind, a bad budget, an empty item, or the same arm twice.
    """
    specs = [_parse_arm(item.strip(), argument) for item in text.split(",")]
    for spec, times in Counter(specs).items():
        if times > 1:
            raise UserError(f"{argument}: {spec.name} is given {times} times")
    return tuple(specs)


def _parse_arm(item: str, argument: str) -> ArmSpec:
    kind, colon, amount = item.partition(":")
    if not colon:
        kind, amount = "top", item
    for known in get_args(ArmKind):
        if kind == known:
            if known == "file" and not amount:
                raise UserError(f"{argument}: expected file:PATH, got {item!r}")
            if known != "file":
                check_budget(amount, argument)
            return ArmSpec(known, amount.strip())
    raise UserError(f"{argument}: expected top:K, bottom:K, random:K or file:PATH, got {item!r}")


def read_head_list(path: str | os.PathLike[str], shape: HeadShape) -> list[Head]:
    """Heads of a text file, `layer<TAB>head` a line; blank lines, `#` comments and a `layer head` first line are
    skipped."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: expected a readable head list: {error}") from None
    heads: list[Head] = []
    for number, line in enumerate(lines, start=1):
        cells = line.partition("#")[0].split()
        if not cells or (number == 1 and cells == ["layer", "head"]):
            continue
        if len(cells) != 2 or not all(re.fullmatch("[0-9]{1,9}", cell) for cell in cells):
            raise UserError(f"{path}:{number}: expected layer<TAB>head, got {line!r}")
        head = (int(cells[0]), int(cells[1]))
        shape.check([head], f"{path}:{number}")
        if head in heads:
            raise UserError(f"{path}:{number}: head {head} is listed twice")
        heads.append(head)
    if not heads:
        raise UserError(f"{path}: expected at least one head, got none")
    return heads


def select_heads(spec: ArmSpec, scores: HeadScores, shape: HeadShape, argument: str = "--ablate") -> list[Head]:
    """The heads of a top, bottom or file arm; random arms have several sets, see `random_controls`."""
    if spec.kind == "file":
        return read_head_list(spec.amount, shape)
    if spec.kind == "random":
        raise ValueError("a random arm has several head sets: use random_controls")
    k = k_for(spec.amount, shape.size, argument)
    return scores.top(k) if spec.kind == "top" else scores.bottom(k)


def random_controls(scores: HeadScores, k: int, n_draws: int = MIN_DRAWS, seed: int = 0) -> list[Draw]:
    """`n_draws` distinct random sets of k heads (fewer only when no more exist), none touching the top k.

    Each set takes as many heads from a layer as the top k has there. Where a layer has too few others, the rest come
    from the nearest layers with heads to spare (the lower one first at equal distance) and count as displaced. Needs
    n_draws >= 5, and 2k heads in the model.
    """
    if n_draws < MIN_DRAWS:
        raise UserError(f"random control: expected at least {MIN_DRAWS} draws, got {n_draws}")
    top = set(scores.top(k))
    free = [[(layer, h) for h in range(scores.n_heads) if (layer, h) not in top] for layer in range(scores.n_layers)]
    if k > sum(map(len, free)):
        raise UserError(
            f"random control: {k} of {scores.ram.size} heads leave only {scores.ram.size - k} outside the top set"
        )
    quota, displaced = _layer_quota([scores.n_heads - len(rest) for rest in free], [len(rest) for rest in free])
    possible = math.prod(math.comb(len(rest), count) for rest, count in zip(free, quota, strict=True))
    rng = np.random.default_rng(seed)
    sets = _all_sets(free, quota, rng) if possible <= 4 * n_draws else _distinct_sets(free, quota, n_draws, rng)
    return [Draw(heads, displaced) for heads in sets[:n_draws]]


def _layer_quota(wanted: Sequence[int], spare: Sequence[int]) -> tuple[list[int], int]:
    """Heads to take from each layer, and how many of them stand in for another layer's."""
    quota = [min(pair) for pair in zip(wanted, spare, strict=True)]
    displaced = 0
    for layer, (want, have) in enumerate(zip(wanted, spare, strict=True)):
        for _ in range(max(0, want - have)):
            open_layers = [other for other in range(len(spare)) if quota[other] < spare[other]]
            quota[min(open_layers, key=lambda other: (abs(other - layer), other))] += 1
            displaced += 1
    return quota, displaced


def _all_sets(free: list[list[Head]], quota: list[int], rng: np.random.Generator) -> list[tuple[Head, ...]]:
    """Every set there is, in random order: drawing until the last one turns up could take for ever."""
    per_layer = [list(itertools.combinations(rest, count)) for rest, count in zip(free, quota, strict=True)]
    sets = [tuple(itertools.chain.from_iterable(parts)) for parts in itertools.product(*per_layer)]
    return [sets[index] for index in rng.permutation(len(sets))]


def _distinct_sets(
    free: list[list[Head]], quota: list[int], n_draws: int, rng: np.random.Generator
) -> list[tuple[Head, ...]]:
    found: dict[tuple[Head, ...], None] = {}  # a dict keeps the order of drawing
    while len(found) < n_draws:
        parts = [
            sorted(rest[i] for i in rng.choice(len(rest), size=count, replace=False))
            for rest, count in zip(free, quota, strict=True)
        ]
        found[tuple(itertools.chain.from_iterable(parts))] = None
    return list(found)
