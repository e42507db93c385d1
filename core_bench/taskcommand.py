"""`tasks check`: reads a task as a run would, says what became of its rows, and shows the first good sample.

Without a model nothing heavy is loaded. With one the sample's prompt is prepared by the checkpoint's own processor; no
weights are read.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core_bench.checkpoints import checkpoint_label, load_without_weights
from core_bench.config import MODES, RunConfig
from core_bench.errors import SampleError, one_line
from core_bench.registry import one_task
from core_bench.schema import Sample
from core_bench.taskfile import FunctionRef
from core_bench.taskreport import prompt_lines, sample_lines, split_line, task_lines
from core_bench.taskspec import FailedSample, TaskSpec
from core_bench.videofile import must_exist

if TYPE_CHECKING:
    from core_bench.model_wrappers.base import ModelWrapper

EXIT_NONE_USABLE = 1
_TRIES = 8  # samples whose media are read or whose scores are tried before the rest is given up
_NOT_OURS = ("class", "doc_to_visual", "doc_to_messages")  # functions that lmms-eval alone calls


@dataclass(frozen=True)
class SplitRows:
    """What became of the rows of one split: usable samples, and how often each reason made one unusable.

    `modes` read this split; `notes` tell of records that the task knows to be defective.
    """

    name: str
    modes: tuple[str, ...]
    good: tuple[Sample, ...]
    reasons: Counter[str]
    notes: tuple[str, ...]


def run_check(task: str, *, split: str | None, data_dir: str | None, config: RunConfig | None) -> int:
    """Print what a task's rows and its first good sample are, with a `config` also its prompt; returns the exit code.

    `task`: a YAML path or a name; `split`: default all that the modes read. UserError, with file and line where it is
    one of the file, for what would stop every run.
    """
    spec = one_task(task, "FILE")
    _resolve_functions(spec)
    splits = [_read(spec, name, modes, data_dir) for name, modes in _splits(spec, split).items()]
    print("\n".join([*task_lines(spec), *(line for rows in splits for line in split_line(rows))]), flush=True)
    samples = [(rows.name, sample) for rows in splits for sample in rows.good]
    if not samples:
        return _complain("no row can be used")
    wrapper = None if config is None else load_without_weights(config)
    for name, sample in samples[:_TRIES]:
        try:
            lines = _scored_and_prompted(spec, sample, wrapper, config)
        except SampleError as error:
            _complain(f"sample {sample.id} cannot be used: {one_line(error)}")
            continue
        print("\n".join(["", *sample_lines(sample, name), *lines]))
        return 0
    return _complain(f"none of {min(len(samples), _TRIES)} samples could be used")


def _splits(spec: TaskSpec, wanted: str | None) -> dict[str, tuple[str, ...]]:
    """Split -> the modes that read it: the one wanted, or all; the one that heads are found on first."""
    by_mode = {mode: spec.split_for(mode) for mode in sorted(MODES, key=lambda mode: mode != "detect")}
    names = dict.fromkeys(by_mode.values()) if wanted is None else (wanted,)
    return {name: tuple(mode for mode, split in by_mode.items() if split == name) for name in names}


def _read(spec: TaskSpec, split: str, modes: tuple[str, ...], data_dir: str | None) -> SplitRows:
    notes: list[str] = []
    good, reasons = [], Counter[str]()
    for sample in spec.samples(split, data_dir=data_dir, report=notes.append):
        reason = _unusable(sample)
        if isinstance(sample, Sample) and reason is None:
            good.append(sample)
        else:
            reasons[str(reason)] += 1
    return SplitRows(split, modes, tuple(good), reasons, tuple(notes))


def _unusable(sample: Sample | FailedSample) -> str | None:
    """Why a run could not use this row, as far as its text and the presence of its files tell."""
    if isinstance(sample, FailedSample):
        return sample.reason
    try:
        for medium in sample.media:
            must_exist(medium.path)
    except SampleError as error:
        return one_line(error)
    return None


def _scored_and_prompted(
    spec: TaskSpec, sample: Sample, wrapper: ModelWrapper | None, config: RunConfig | None
) -> list[str]:
    """Score an empty answer, to see that it can be, then the lines of the prompt, where there is a model. SampleError
    where either fails."""
    if not spec.ranks:
        spec.score(sample, "", boxes="pixel" if wrapper is None else wrapper.BOXES)
    if wrapper is None or config is None:
        return []
    prepared = wrapper.prepare(sample, frames=config.frames, fps=config.fps, max_pixels=config.max_pixels)
    return ["", *prompt_lines(wrapper, checkpoint_label(config), sample, prepared)]


def _resolve_functions(spec: TaskSpec) -> None:
    """Import every function that the file names. UserError with file and line for one that is not there."""
    for ref in _functions(spec):
        ref.resolve()


def _functions(spec: TaskSpec) -> Iterator[FunctionRef]:
    named: Sequence[tuple[str, object]] = (*spec.keys.items(), *spec.core.items(), *spec.core.get("groups", {}).items())
    for key, value in named:
        if isinstance(value, FunctionRef) and key not in _NOT_OURS:
            yield value


def _complain(line: str) -> int:
    print(f"core_bench: {line}", file=sys.stderr, flush=True)
    return EXIT_NONE_USABLE
