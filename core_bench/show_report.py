"""What is said of one shown sample: captions of the sheet, lines and the table on stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tabulate import tabulate

from core_bench.heads import Head
from core_bench.prompttext import on_one_line
from core_bench.ram import chance_level
from core_bench.schema import Prepared, Sample
from core_bench.show_attention import FloatArray, Shares, shares
from core_bench.show_panels import Panel


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What is known of one sample, besides its pixels. `omega` is empty where `why_empty` says why.

    `mass_SM`: each head's mass on every token, float64 [heads, tokens]. `ranks`: a head's place in the head table.
    """

    sample: Sample
    split: str
    query: str
    prepared: Prepared
    rows: tuple[int, ...]
    omega: tuple[int, ...]
    why_empty: str | None
    heads: tuple[Head, ...]
    ranks: Mapping[Head, str]
    mass_SM: FloatArray
    prediction: str
    score: str

    @property
    def chance(self) -> float:
        return chance_level(self.omega, self.rows)

    def shares(self) -> list[Shares]:
        """How each head's mass divides, in the order of `heads`."""
        return [shares(mass_M, self.prepared.token_map, self.omega) for mass_M in self.mass_SM]


def caption(shown: Shown) -> list[str]:
    """What the sample is and what came out."""
    sample, token_map = shown.sample, shown.prepared.token_map
    lines = [
        f"{sample.task}, split {shown.split}, sample {sample.id}",
        f"question: {on_one_line(sample.question)}",
        *([] if sample.phrase is None else [f"phrase: {on_one_line(sample.phrase)}"]),
        *([f"options: {', '.join(sample.choices)}"] if sample.choices else []),
        f"target: {on_one_line(str(sample.target))}",
        f"answer: {on_one_line(shown.prediction)} ({shown.score})",
        f"{token_map.length} tokens, {token_map.n_visual} visual; query {shown.query}: {len(shown.rows)} tokens",
    ]
    if shown.why_empty is None:
        lines.append(f"evidence: {len(shown.omega)} visual tokens, by chance {shown.chance:.2%} of the attention")
    else:
        lines.append(f"no RAM: {shown.why_empty}")
    return lines


def head_table(shown: Shown) -> str:
    """A row a head: RAM on this sample beside chance, and where the rest of its mass lies, in per cent."""
    with_ram = shown.why_empty is None
    rows = []
    for head, part in zip(shown.heads, shown.shares(), strict=True):
        ram = [_percent(part.omega), f"{part.omega / shown.chance:.1f}x"] if with_ram and shown.chance else ["-", "-"]
        rest = (part.other_cells, part.markers, part.first_token, part.other_text)
        rows.append([name_of(head), shown.ranks.get(head, "-"), *ram, *map(_percent, rest), _brightness(part)])
    names = ["head", "rank", "RAM %", "of chance", "other cells", "markers", "first token", "other text", "brightest"]
    return tabulate(rows, names, disable_numparse=True, stralign="right")


def left_out(shown: Shown, panels: Sequence[Panel], drawn: Sequence[int]) -> list[str]:
    """A line that says how many pictures are not drawn, and what each head puts on them; none where all are."""
    hidden = [position for n, panel in enumerate(panels) if n not in set(drawn) for position in panel.positions()]
    if not hidden:
        return []
    masses = ", ".join(
        f"{name_of(head)} {mass_M[hidden].sum():.2%}" for head, mass_M in zip(shown.heads, shown.mass_SM, strict=True)
    )
    return [f"{len(panels) - len(drawn)} of {len(panels)} pictures are left out; mass on them: {masses}"]


def head_lines(shown: Shown) -> list[str]:
    """A sentence a head, for the sheet."""
    lines = []
    for head, part in zip(shown.heads, shown.shares(), strict=True):
        ram = f"RAM {part.omega:.2%}, " if shown.why_empty is None else ""
        rank = f" (rank {shown.ranks[head]})" if head in shown.ranks else ""
        lines.append(
            f"head {name_of(head)}{rank}: {ram}other visual cells {part.other_cells:.2%}, first token "
            f"{part.first_token:.2%}, markers {part.markers:.2%}, other text {part.other_text:.2%}; "
            f"brightest cell {_brightness(part)}%"
        )
    return lines


def name_of(head: Head) -> str:
    """LAYER:HEAD, as --head takes it."""
    return f"{head[0]}:{head[1]}"


def _brightness(part: Shares) -> str:
    """In per cent; one cell of thousands holds little, so two digits wherever they stand."""
    return f"{100 * part.brightest:.2g}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"
