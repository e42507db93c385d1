"""The Python path: load a model, find its heads, run it under a plan.

wrapper = load("qwen3vl", "Qwen/Qwen3-VL-4B-Instruct")
scores = find_heads(wrapper, tasks=["core_refcocog_tiny"], limit=32)
plan = HeadPlan.hybrid(wrapper.shape, scores.top(36), window=1024, sink=64)
with apply(wrapper.model, plan):
    wrapper.model.generate(**inputs)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core_bench.checkpoints import load_wrapper
from core_bench.config import RunConfig
from core_bench.detect import measure_sample
from core_bench.errors import SampleError
from core_bench.heads import HeadScores, pool_scores
from core_bench.progress import track
from core_bench.ram import accumulate
from core_bench.registry import load_tasks
from core_bench.schema import Sample

if TYPE_CHECKING:
    from core_bench.model_wrappers.base import ModelWrapper


def load(
    model: str = "qwen3vl",
    checkpoint: str | None = None,
    *,
    revision: str | None = None,
    device: str = "auto",
    dtype: str | None = None,
) -> ModelWrapper:
    """A loaded model of a family; `checkpoint` is a hub id or a local folder, None the small bundled one.

    `wrapper.model` and `wrapper.processor` are the Hugging Face objects. Raises UserError, in one line, for a
    checkpoint that is not there, lacks weights or belongs to another family.
    """
    config = RunConfig(model=model, mode="dense", checkpoint=checkpoint, revision=revision, device=device, dtype=dtype)
    return load_wrapper(config)


def find_heads(
    wrapper: ModelWrapper,
    tasks: Sequence[str] | None = None,
    *,
    samples: Sequence[Sample] | None = None,
    limit: int | None = None,
    frames: int | None = None,
    fps: float | None = None,
    max_pixels: int | None = None,
    query: str = "question",
    overlap: float = 0.0,
    seed: int = 0,
) -> HeadScores:
    """RAM of every head, averaged over samples, and over tasks with equal weight.

    `tasks`: names or YAML paths, default those of `--mode detect`; `samples`: your own, instead of tasks, each with
    evidence; `limit`: the first so many of each. The other arguments mean what the flags of their names do. Samples
    that cannot be measured are left out; UserError or SampleError where none is left. Nothing is written.
    """
    config = RunConfig(
        model=wrapper.FAMILY,
        mode="detect",
        query=query,
        overlap=overlap,
        seed=seed,
        limit=limit,
        frames=frames,
        fps=fps,
        max_pixels=max_pixels,
    )
    if samples is not None:
        groups: list[Sequence[object]] = [samples[:limit]]
    else:
        specs = load_tasks(tasks, "detect", generated=True)
        groups = [spec.samples(spec.split_for("detect"), limit=limit) for spec in specs]
    return pool_scores([_scores(wrapper, config, group) for group in groups])


def _scores(wrapper: ModelWrapper, config: RunConfig, samples: Sequence[object]) -> HeadScores:
    measured, clusters, reason = [], [], "no sample given"
    for sample in track(samples, "find_heads"):
        if not isinstance(sample, Sample):
            continue
        try:
            measured.append(measure_sample(wrapper, config, sample)[0])
            clusters.append(sample.cluster)
        except SampleError as error:
            reason = str(error)
    if not measured:
        raise SampleError(f"find_heads: no sample could be measured, last: {reason}")
    return accumulate(measured, clusters)
