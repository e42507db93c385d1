"""The lines that `tasks check` prints of a task, its rows, one sample and its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from core_bench.answers import letter_of
from core_bench.errors import SampleError, one_line
from core_bench.prompttext import on_one_line, readable_prompt
from core_bench.schema import Media, Prepared, Region, Sample
from core_bench.taskspec import TaskSpec

if TYPE_CHECKING:
    from core_bench.model_wrappers.base import ModelWrapper
    from core_bench.taskcommand import SplitRows

T = TypeVar("T")
_MOST_LISTED = 8  # media, regions or frames that are named one by one


def task_lines(spec: TaskSpec) -> list[str]:
    """What the task is and how it is scored."""
    guessing = "" if spec.chance is None else f", guessing {spec.chance:g}"
    others = "".join(f", {name}" for name in spec.metrics if name != spec.headline)
    return [
        f"task {spec.name} ({spec.path})",
        f"scored by {spec.headline}{guessing}{f'; also {others[2:]}' if others else ''}",
    ]


def split_line(rows: SplitRows) -> list[str]:
    """How many rows a split has, how many fail and why, how many show their evidence, and which are defective."""
    failed, good = rows.reasons.total(), len(rows.good)
    read_by = f" ({', '.join(rows.modes)})" if rows.modes else ""
    why = ""
    if failed:
        [(reason, times)] = rows.reasons.most_common(1)
        why = f", {times} of them so: {reason}"
    located = sum(bool(sample.evidence) for sample in rows.good)
    return [
        f"split {rows.name}{read_by}: {good + failed} rows, {failed} cannot be used{why}",
        f"  evidence: {located} of {good} usable rows have regions{'' if located else '; detect needs them'}",
        *(f"  {note}" for note in rows.notes),
    ]


def sample_lines(sample: Sample, split: str) -> list[str]:
    """A sample as the task understands its row."""
    lines = [
        f"sample {sample.id} of split {split}, cluster {sample.cluster}",
        *(f"  media {number}: {_medium(medium)}" for number, medium in _first(sample.media)),
        *_more(sample.media, "media"),
        f"  question: {on_one_line(sample.question)}",
    ]
    if sample.phrase is not None:
        lines.append(f"  phrase: {on_one_line(sample.phrase)}")
    if sample.choices:
        options = (f"{letter_of(number)}. {on_one_line(option)}" for number, option in enumerate(sample.choices))
        lines.append(f"  choices: {'  '.join(options)}")
    lines.append(f"  target: {on_one_line(str(sample.target))}")
    lines += [f"  evidence: {_region(region)}" for _, region in _first(sample.evidence)]
    return [*lines, *_more(sample.evidence, "regions"), *([] if sample.evidence else ["  evidence: none"])]


def prompt_lines(wrapper: ModelWrapper, checkpoint: str, sample: Sample, prepared: Prepared) -> list[str]:
    """What the model reads, and how much of it is evidence. `checkpoint`: as it is to be called."""
    frames = [
        f"media {number} shows {len(shown)} frames: {', '.join(map(str, shown[:_MOST_LISTED]))}"
        f"{f', ... {shown[-1]}' if len(shown) > _MOST_LISTED else ''}"
        for number, shown in enumerate(prepared.frames)
        if shown
    ]
    token_map = prepared.token_map
    return [
        f"prompt of {wrapper.FAMILY}, {checkpoint}: {token_map.length} tokens, {token_map.n_visual} visual",
        *frames[:_MOST_LISTED],
        _evidence_line(sample, prepared),
        "",
        readable_prompt(wrapper.processor.tokenizer, prepared),
    ]


def _evidence_line(sample: Sample, prepared: Prepared) -> str:
    """Tokens of the evidence and what evenly spread attention would put on them, or why there are none."""
    from core_bench.evidence import omega
    from core_bench.ram import chance_level

    try:
        found = omega(sample.evidence, prepared.token_map)
    except SampleError as error:
        return f"no RAM: {one_line(error)}"
    chance = chance_level(found, prepared.spans["question"])
    return f"evidence: {len(found)} tokens, by chance {chance:.2%} of the question's attention"


def _medium(medium: Media) -> str:
    span = "" if medium.span is None else f", frames {medium.span[0]} to {medium.span[1] - 1}"
    page = "" if medium.page is None else f" {medium.page}"
    return f"{medium.path} ({medium.kind}{page}{span})"


def _region(region: Region) -> str:
    box = "the whole picture" if region.box is None else f"box {', '.join(f'{edge:g}' for edge in region.box)}"
    return f"media {region.medium}, {box}{'' if region.frame is None else f', frame {region.frame}'}"


def _first(items: Sequence[T]) -> list[tuple[int, T]]:
    return list(enumerate(items[:_MOST_LISTED]))


def _more(items: tuple[object, ...], what: str) -> list[str]:
    return [f"  and {len(items) - _MOST_LISTED} more {what}"] if len(items) > _MOST_LISTED else []
