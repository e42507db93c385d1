"""Detection: RAM of every head on the annotated samples of a task, one resumable row a sample."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from core_bench import headtables
from core_bench.config import RunConfig
from core_bench.decoding import MediaAhead, with_lap
from core_bench.errors import SampleError, one_line
from core_bench.evidence import omega, placebos
from core_bench.heads import HeadScores, pool_scores
from core_bench.memory import within_memory
from core_bench.progress import track
from core_bench.provenance import media_marks
from core_bench.ram import SampleRam, accumulate, measure
from core_bench.runfolder import Row, RunFolder
from core_bench.running import row_head
from core_bench.schema import Prepared, Sample
from core_bench.taskspec import FailedSample, TaskSpec
from core_bench.team import weight

if TYPE_CHECKING:
    from core_bench.model_wrappers.base import ModelWrapper

ARM = "detect"
TaskSamples = Sequence[tuple[TaskSpec, Sequence[Sample | FailedSample]]]


def detect(wrapper: ModelWrapper, config: RunConfig, tasks: TaskSamples, folder: RunFolder) -> None:
    """Measure every sample of `tasks` that `folder` has no row of yet, together with the folder's team."""
    for spec, samples in tasks:
        todo = [sample for sample in samples if (spec.name, sample.id, ARM, None) not in folder.done]
        todo = folder.team.share(todo, weight)
        unread = [sample for sample in todo if isinstance(sample, Sample)]
        with MediaAhead(unread, frames=config.frames, fps=config.fps) as media:
            for sample in track(todo, f"{spec.name}: detect"):
                folder.append(*with_lap([_row(wrapper, config, spec, sample, media)], media))
    folder.gather()


def tables(rows: Sequence[Row], tasks: TaskSamples) -> dict[str, HeadScores]:
    """Head table of every task that has at least one measured sample."""
    found = {}
    for spec, _ in tasks:
        good = [row for row in rows if row["task"] == spec.name and row["arm"] == ARM and row["failure"] is None]
        if good:
            good.sort(key=lambda row: str(row["id"]))
            found[spec.name] = accumulate([_measured(row) for row in good], [row["cluster"] for row in good])
    return found


def sidecar(
    wrapper: ModelWrapper, config: RunConfig, rows: Sequence[Row], tasks: TaskSamples, provenance: dict[str, Any]
) -> dict[str, Any]:
    """What heads.json records; `provenance` gives versions and command."""
    used = {
        spec.name: sorted(
            (row for row in rows if row["task"] == spec.name and row["failure"] is None), key=lambda row: str(row["id"])
        )
        for spec, _ in tasks
    }
    return {
        "checkpoint": provenance["checkpoint"],
        "checkpoint_hash": wrapper.checkpoint_hash,
        "revision": wrapper.revision,
        "tasks": [spec.name for spec, _ in tasks],
        "split": {spec.name: spec.split_for("detect") for spec, _ in tasks},
        "samples": {
            name: {"ids": [row["id"] for row in good], "clusters": sorted({row["cluster"] for row in good})}
            for name, good in used.items()
        },
        "media": _media_of(used, tasks),
        "query": config.query,
        "overlap": config.overlap,
        "limit": config.limit,
        "frames": {"frames": config.frames, "fps": config.fps, "max_pixels": config.max_pixels},
        "versions": provenance["versions"],
        "seed": config.seed,
        "command": provenance["command"],
    }


def _media_of(used: dict[str, list[Row]], tasks: TaskSamples) -> list[str]:
    """Content marks of the files that the measured samples show."""
    marks: set[str] = set()
    for spec, samples in tasks:
        measured = {row["id"] for row in used[spec.name]}
        found = media_marks(sample for sample in samples if sample.id in measured)
        marks.update(mark for many in found.values() for mark in many)
    return sorted(marks)


def write_tables(folder: Any, per_task: dict[str, HeadScores], side: dict[str, Any]) -> HeadScores:
    """All tables and the sidecar into `folder`; returns the pooled table."""
    pooled = pool_scores(list(per_task.values()))
    headtables.write_tables(folder, per_task, pooled, side)
    return pooled


def query_rows(prepared: Prepared, rule: str) -> tuple[int, ...]:
    """Positions of the query tokens; SampleError where the sample cannot serve the rule."""
    if not prepared.spans.get(rule):
        raise SampleError(f"--query {rule}: the sample has no such text")
    return prepared.spans[rule]


def measure_sample(
    wrapper: ModelWrapper, config: RunConfig, sample: Sample, media: MediaAhead | None = None
) -> tuple[SampleRam, Prepared, int | None]:
    """RAM of one sample under the config's query rule, overlap, frames and seed; and the chunk that its prompt was read
    in (None: at once). Raises SampleError."""
    visuals = None if media is None else media.read(sample)
    prepared = wrapper.prepare(
        sample, frames=config.frames, fps=config.fps, max_pixels=config.max_pixels, visuals=visuals
    )
    evidence = omega(sample.evidence, prepared.token_map, config.overlap)
    seed = zlib.crc32(f"{config.seed}/{sample.task}/{sample.id}".encode())
    elsewhere = placebos(evidence, prepared.token_map, seed=seed)
    rows = query_rows(prepared, config.query)
    measured, chunk = within_memory(
        lambda size: measure(wrapper, prepared, evidence, elsewhere, rows, size),
        prepared.token_map.length,
        config.prefill_chunk,
    )
    return measured, prepared, chunk


def _row(
    wrapper: ModelWrapper, config: RunConfig, spec: TaskSpec, sample: Sample | FailedSample, media: MediaAhead
) -> Row:
    row = row_head(spec, sample, ARM)
    if isinstance(sample, FailedSample):
        return {**row, "failure": sample.reason}
    import torch

    try:
        measured, prepared, chunk = measure_sample(wrapper, config, sample, media)
    except (SampleError, torch.OutOfMemoryError) as error:
        return {**row, "failure": one_line(error)}
    return {
        **row,
        "failure": None,
        **prepared.to_row(),
        "ram": measured.ram.tolist(),
        "placebo": None if measured.placebo is None else measured.placebo.tolist(),
        "chance": measured.chance,
        **({} if chunk is None else {"chunk": chunk}),
    }


def _measured(row: Row) -> SampleRam:
    placebo = None if row["placebo"] is None else np.array(row["placebo"])
    return SampleRam(ram=np.array(row["ram"]), placebo=placebo, chance=row["chance"])
