"""One sample as a picture: media, evidence and its tokens, and where chosen heads look while the prompt is read."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from core_bench.checkpoints import load_wrapper
from core_bench.config import RunConfig
from core_bench.detect import query_rows
from core_bench.errors import SampleError, UserError, one_line
from core_bench.evaluate import find_table, say
from core_bench.evidence import omega
from core_bench.heads import Head, HeadScores
from core_bench.media import read_visual
from core_bench.registry import one_task
from core_bench.schema import Sample
from core_bench.show_attention import key_mass
from core_bench.show_drawing import HeatColumn, draw_sheet
from core_bench.show_panels import Panel, choose, make_panels
from core_bench.show_report import Shown, caption, head_lines, head_table, left_out, name_of
from core_bench.taskspec import FailedSample, TaskSpec

if TYPE_CHECKING:
    from core_bench.model_wrappers.base import ModelWrapper

EXIT_NOT_SHOWN = 1
_NAMED_IDS = 5  # ids that a message names


def run_show(
    config: RunConfig, *, task: str, sample: str, split: str | None, heads: Sequence[Head], table: bool, out: str | None
) -> int:
    """Draw one sample to the file `out` (default: TASK-SAMPLE.png here) and print the numbers; returns the exit code.

    `heads`: those to show, the first and the last of the head table if none is given; `table`: look ranks up in the
    head table also where heads are given. UserError for a task, split, sample or head that does not exist and for a
    place that cannot be written; a sample that cannot be shown is one line on stderr and exit code 1.
    """
    spec = one_task(task, "--task")
    split = split or spec.split_for("detect")
    chosen = find_sample(spec, split, sample, config.data_dir)
    file = _out_file(f"{_file_name(spec.name)}-{_file_name(chosen.id)}.png" if out is None else out)
    wrapper = load_wrapper(config)
    for layer, head in heads:
        if not (layer < wrapper.shape.n_layers and head < wrapper.shape.n_heads):
            raise UserError(f"--head {layer}:{head}: expected a head of the model, it has {wrapper.shape} from 0:0 up")
    import torch

    try:
        if isinstance(chosen, FailedSample):
            raise SampleError(chosen.reason)
        scores = _table(config, wrapper) if table or not heads else None
        shown = measure(wrapper, config, spec, chosen, split, heads or _ends(scores), scores)
        panels = _panels(config, shown)
        size = _draw(shown, panels, file)
    except (SampleError, torch.OutOfMemoryError) as error:
        print(f"core_bench: error: sample {chosen.id} cannot be shown: {one_line(error)}", file=sys.stderr)
        return EXIT_NOT_SHOWN
    print("\n".join([*caption(shown), "", head_table(shown), *left_out(shown, *panels)]))
    print(f"wrote {file} ({size[0]} x {size[1]} pixels)")
    return 0


def find_sample(spec: TaskSpec, split: str, wanted: str, data_dir: str | None) -> Sample | FailedSample:
    """The sample of this id, else of this 0-based number; UserError names some that exist."""
    samples = spec.samples(split, data_dir=data_dir)
    by_id = {sample.id: sample for sample in samples}
    if wanted in by_id:
        return by_id[wanted]
    if wanted.isascii() and wanted.isdigit() and int(wanted) < len(samples):
        return samples[int(wanted)]
    some = ", ".join(list(by_id)[:_NAMED_IDS]) + (", ..." if len(by_id) > _NAMED_IDS else "")
    raise UserError(
        f"--sample: expected an id of {spec.name}, split {split} ({some}) or a number from 0 to {len(samples) - 1}, "
        f"got {wanted!r}"
    )


def measure(
    wrapper: ModelWrapper,
    config: RunConfig,
    spec: TaskSpec,
    sample: Sample,
    split: str,
    heads: Sequence[Head],
    scores: HeadScores | None,
) -> Shown:
    """Read the prompt once for the attention of `heads` and once for the answer. Raises SampleError for media, texts
    or a query rule that cannot be used; a sample without evidence tokens is shown without."""
    prepared = wrapper.prepare(sample, frames=config.frames, fps=config.fps, max_pixels=config.max_pixels)
    rows = query_rows(prepared, config.query)
    evidence: tuple[int, ...] = ()
    why_empty = None
    try:
        evidence = omega(sample.evidence, prepared.token_map, config.overlap)
    except SampleError as error:
        why_empty = one_line(error)
    ranking = scores.ranking() if scores is not None else []
    prediction = wrapper.generate(prepared, config.max_new_tokens or spec.max_new_tokens)
    return Shown(
        sample=sample,
        split=split,
        query=config.query,
        prepared=prepared,
        rows=rows,
        omega=evidence,
        why_empty=why_empty,
        heads=tuple(heads),
        ranks={head: f"{n} of {len(ranking)}" for n, head in enumerate(ranking, start=1)},
        mass_SM=key_mass(wrapper, prepared, rows, heads),
        prediction=prediction,
        score=_scored(spec, sample, prediction, wrapper.BOXES),
    )


def _panels(config: RunConfig, shown: Shown) -> tuple[tuple[Panel, ...], tuple[int, ...]]:
    """All panels, and the indices of those to draw."""
    visuals = [read_visual(medium, frames=config.frames, fps=config.fps) for medium in shown.sample.media]
    panels = make_panels(shown.sample, visuals, shown.prepared.token_map, shown.omega)
    if not panels:
        raise SampleError("it shows no picture")
    return panels, choose(panels, shown.mass_SM[0])


def _draw(shown: Shown, panels: tuple[Sequence[Panel], Sequence[int]], out: Path) -> tuple[int, int]:
    """Write the sheet; returns its width and height."""
    parts = shown.shares()
    lines = [*caption(shown), *head_lines(shown), *left_out(shown, *panels)]
    columns = [
        HeatColumn(f"head {name_of(head)}", mass_M, part.brightest)
        for head, mass_M, part in zip(shown.heads, shown.mass_SM, parts, strict=True)
    ]
    sheet = draw_sheet(lines, [panels[0][n] for n in panels[1]], columns)
    try:
        sheet.save(out, format="PNG")
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror or error}") from None
    return sheet.size


def _table(config: RunConfig, wrapper: ModelWrapper) -> HeadScores:
    scores, meta = find_table(config, wrapper)
    say(f"heads: {meta.where}{'' if meta.note is None else f' (note: {meta.note})'}")
    return scores


def _ends(scores: HeadScores | None) -> tuple[Head, ...]:
    """The first and the last head of a table."""
    if scores is None:
        raise RuntimeError("no head to show and no table to take one from")
    return tuple(dict.fromkeys([scores.top(1)[0], scores.bottom(1)[0]]))


def _scored(spec: TaskSpec, sample: Sample, prediction: str, boxes: str) -> str:
    """The headline score of an answer, or why it has none."""
    try:
        score = spec.score(sample, prediction, boxes=boxes)
    except SampleError as error:
        return f"not scored: {one_line(error)}"
    return f"{spec.headline} {score.scores[spec.headline]:g}{', unparsed' if score.unparsed else ''}"


def _out_file(name: str) -> Path:
    out = Path(os.path.expanduser(name))
    if out.suffix.lower() != ".png":
        raise UserError(f"--out: expected the name of a .png file, got {name!r}")
    if out.is_dir() or not out.parent.is_dir():
        raise UserError(f"--out {name}: expected a file in a folder that exists")
    return out


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", text).strip("_.")[:80] or "sample"
