"""The image-blind control: the unchanged model on a task whose every picture is noise. It should score at chance."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from core_bench.arms import Arm
from core_bench.config import RunConfig
from core_bench.errors import SampleError, UserError
from core_bench.heads import HeadPlan
from core_bench.headtables import cache_dir
from core_bench.progress import track
from core_bench.provenance import data_digest
from core_bench.results import metric_of
from core_bench.runfolder import write_json
from core_bench.running import generate
from core_bench.schema import Sample
from core_bench.taskspec import FailedSample, TaskSpec

if TYPE_CHECKING:
    from core_bench.model_wrappers.base import ModelWrapper


def image_blind(
    wrapper: ModelWrapper, config: RunConfig, spec: TaskSpec, samples: Sequence[Sample | FailedSample]
) -> dict[str, Any] | None:
    """Headline metric with all media replaced by seeded noise; measured once per checkpoint and data, then cached."""
    key: list[Any] = [wrapper.checkpoint_hash, spec.name, data_digest(samples), str(wrapper.model.dtype)]
    key += [config.max_pixels, config.frames, config.fps, config.seed]
    key += [config.max_new_tokens or spec.max_new_tokens, spec.headline]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    path = cache_dir() / "controls" / f"{spec.name}-{name}.json"
    if path.is_file():
        cached: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8"))
        return cached
    arm = Arm(name="dense", plan=HeadPlan.empty(wrapper.shape))
    values: list[float] = []
    clusters: list[str] = []
    for sample in track(samples, f"{spec.name}: image-blind"):
        if isinstance(sample, FailedSample):
            continue
        try:
            prepared = wrapper.prepare(
                sample, frames=config.frames, fps=config.fps, max_pixels=config.max_pixels, noise_seed=config.seed
            )
            score = spec.score(sample, generate(wrapper, config, spec, prepared, arm))
        except SampleError:
            continue  # counted as failed in the arms already
        values.append(score.scores[spec.headline])
        clusters.append(sample.cluster)
    result = metric_of(values, clusters) if values else None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, result)
    except (OSError, UserError) as error:  # the run is measured by now: its record must not be lost to a full disk
        print(f"core_bench: note: the image-blind score is not cached: {error}", file=sys.stderr)
    return result
