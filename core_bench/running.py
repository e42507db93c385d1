"""Generation under every arm of a task, the arms interleaved on the same inputs; one row a sample, arm and draw."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from core_bench.arms import Arm
from core_bench.config import RunConfig
from core_bench.decoding import MediaAhead, with_lap
from core_bench.errors import SampleError, one_line
from core_bench.heads import Head
from core_bench.memory import within_memory
from core_bench.metrics import Score
from core_bench.progress import track
from core_bench.ranking import rank
from core_bench.runfolder import Row, RunFolder
from core_bench.schema import Prepared, Sample
from core_bench.scoring_mmdocir import write_ranking
from core_bench.taskspec import FailedSample, TaskSpec
from core_bench.team import this_team, weight

if TYPE_CHECKING:
    from core_bench.model_wrappers.base import ModelWrapper

TIMED_MODES = ("dense", "hybrid")


def run_arms(
    wrapper: ModelWrapper,
    config: RunConfig,
    spec: TaskSpec,
    samples: Sequence[Sample | FailedSample],
    arms: Sequence[Arm],
    folder: RunFolder,
    heads: Sequence[Head] = (),
) -> None:
    """Append a row for every (sample, arm, draw) that `folder` lacks. `heads` rank, for tasks that are scored so.

    The order of the arms turns from sample to sample, so that no arm always runs first. Prefill is timed in dense and
    hybrid runs; every timed arm is first shown bit-identical to the full forward, once a task.
    """
    verified: set[str] = set()

    def missing(sample: Sample | FailedSample, turn: int = 0) -> list[Arm]:
        ordered = [*arms[turn:], *arms[:turn]]
        return [arm for arm in ordered if (spec.name, sample.id, arm.name, arm.draw) not in folder.done]

    mine = folder.team.share([sample for sample in samples if missing(sample)], weight)
    numbers = {sample.id: number for number, sample in enumerate(samples)}
    unread = [sample for sample in mine if isinstance(sample, Sample)]
    with MediaAhead(unread, frames=config.frames, fps=config.fps) as media:
        for sample in track(mine, f"{spec.name}: {len(arms)} arms"):
            todo = missing(sample, numbers[sample.id] % len(arms))
            folder.append(*with_lap(_rows(wrapper, config, spec, sample, todo, verified, heads, media), media))
    folder.gather()


def _rows(
    wrapper: ModelWrapper,
    config: RunConfig,
    spec: TaskSpec,
    sample: Sample | FailedSample,
    arms: Sequence[Arm],
    verified: set[str],
    ranking_heads: Sequence[Head],
    media: MediaAhead,
) -> list[Row]:
    """Rows of one sample. They are appended together: times of its arms belong to one interleaved measurement.

    Running out of GPU memory is answered by reading the prompt in smaller chunks. If that does not help either, it is a
    failure of this sample and arm, like an unreadable file: others may be shorter.
    """
    import torch

    heads = [row_head(spec, sample, arm.name, arm.draw) for arm in arms]
    try:
        if isinstance(sample, FailedSample):
            raise SampleError(sample.reason)
        prepared = wrapper.prepare(sample, visuals=media.read(sample), max_pixels=config.max_pixels)
        # All arms in chunks of one size, so that their times can be compared.
        times, chunk = within_memory(
            lambda size: _prefill_times(wrapper, config, prepared, arms, verified, media, size),
            prepared.token_map.length,
            config.prefill_chunk,
        )
    except (SampleError, torch.OutOfMemoryError) as error:
        return [{**head, "failure": one_line(error)} for head in heads]
    rows: list[Row] = []
    for head, arm, timed in zip(heads, arms, times, strict=True):
        begin = time.perf_counter()
        prediction = None
        try:
            prediction, used = _predict(wrapper, config, spec, sample, prepared, arm, ranking_heads, chunk)
            generate_ms = (time.perf_counter() - begin) * 1000
            score = spec.score(sample, prediction, boxes=wrapper.BOXES)
        except (SampleError, torch.OutOfMemoryError) as error:
            rows.append({**head, "prediction": prediction, "failure": one_line(error)})
            continue
        rows.append(
            {
                **head,
                **scored_fields(sample, prepared, prediction, score),
                "times": {**timed, "generate_ms": generate_ms},
                **({} if used is None else {"chunk": used}),
            }
        )
    return rows


def row_head(spec: TaskSpec, sample: Sample | FailedSample, arm: str, draw: int | None = None) -> Row:
    """The fields that every row of a sample has, failed or not."""
    head: Row = {"task": spec.name, "id": sample.id, "cluster": sample.cluster, "arm": arm, "draw": draw}
    return {**head, "defects": list(sample.defects)} if sample.defects else head


def _predict(
    wrapper: ModelWrapper,
    config: RunConfig,
    spec: TaskSpec,
    sample: Sample,
    prepared: Prepared,
    arm: Arm,
    ranking_heads: Sequence[Head],
    chunk: int | None,
) -> tuple[str, int | None]:
    """What is scored, and the chunk that the prompt was read in (None: at once)."""
    if not spec.ranks:
        return generate(wrapper, config, spec, prepared, arm, chunk)
    candidates = spec.candidates(sample)
    ranked, used = within_memory(
        lambda size: rank(wrapper, prepared, candidates, ranking_heads, size), prepared.token_map.length, chunk
    )
    return write_ranking(ranked), used


def generate(
    wrapper: ModelWrapper, config: RunConfig, spec: TaskSpec, prepared: Prepared, arm: Arm, chunk: int | None
) -> tuple[str, int | None]:
    """The answer under one arm, and the chunk that the prompt was read in (None: at once)."""
    return within_memory(
        lambda size: _answer(wrapper, config, spec, prepared, arm, size), prepared.token_map.length, chunk
    )


def _answer(
    wrapper: ModelWrapper, config: RunConfig, spec: TaskSpec, prepared: Prepared, arm: Arm, chunk: int | None
) -> str:
    from core_bench.attention import apply

    with apply(wrapper.model, arm.plan, impl=config.attention, chunk=chunk):
        return wrapper.generate(prepared, config.max_new_tokens or spec.max_new_tokens)


def scored_fields(sample: Sample, prepared: Prepared, prediction: str, score: Score) -> dict[str, Any]:
    """The fields of a row that say what came out."""
    return {
        "prediction": prediction,
        "target": sample.target,
        "scores": dict(score.scores),
        **({"groups": dict(score.groups)} if score.groups else {}),
        "failure": None,
        "unparsed": score.unparsed,
        **prepared.to_row(),
    }


def _prefill_times(
    wrapper: ModelWrapper,
    config: RunConfig,
    prepared: Prepared,
    arms: Sequence[Arm],
    verified: set[str],
    media: MediaAhead,
    chunk: int | None,
) -> list[dict[str, float]]:
    """For every arm {language_ms, vision_ms}; empty where the mode times nothing."""
    if config.mode not in TIMED_MODES or this_team().shares_device(wrapper.model.device.type):
        return [{} for _ in arms]
    from core_bench.prefill import LanguagePrefill

    prefill = LanguagePrefill(wrapper.model, wrapper.device_inputs(prepared), impl=config.attention, chunk=chunk)
    for arm in arms:
        if arm.name not in verified:
            prefill.verify(arm.plan)  # also the warm-up
            verified.add(arm.name)
    with media.paused():
        return [{"language_ms": prefill.time_ms(arm.plan), "vision_ms": prefill.vision_ms} for arm in arms]
