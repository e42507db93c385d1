"""Controls of the generated tasks: the unchanged model where there is nothing to see (every picture is noise), and
where what it sees is another sample's. Neither should score above chance."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

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

AnySample = Sample | FailedSample


def image_blind(
    wrapper: ModelWrapper, config: RunConfig, spec: TaskSpec, samples: Sequence[AnySample]
) -> dict[str, Any] | None:
    """Headline metric with all media replaced by seeded noise; measured once per checkpoint and data, then cached."""
    return _Control(wrapper, config, spec, samples, "image-blind", config.seed).metric()


def shuffled_media(
    wrapper: ModelWrapper, config: RunConfig, spec: TaskSpec, samples: Sequence[AnySample]
) -> dict[str, Any] | None:
    """Headline metric with the media of each sample replaced by those of another one, see `derangement`; cached in the
    same way. None where no such exchange exists."""
    usable = [sample for sample in samples if isinstance(sample, Sample)]
    givers = derangement({sample.id: sample.cluster for sample in usable}, config.seed)
    if givers is None:
        return None
    media = {sample.id: sample.media for sample in usable}
    shown = [replace(sample, media=media[givers[sample.id]], evidence=()) for sample in usable]
    return _Control(wrapper, config, spec, shown, "shuffled media", None).metric()


def derangement(clusters: Mapping[str, str], seed: int) -> dict[str, str] | None:
    """Id -> the id whose media it gets: a seeded permutation of the ids that never stays within a cluster.

    The ids are lined up cluster by cluster, in random order, and moved on by the size of the largest cluster: the
    place that is left so far behind belongs to another cluster, and so does the one reached around the end as long as
    no cluster holds more than half of the ids. Where one does there is no such permutation: None.
    """
    if not clusters:
        return None
    largest = max(Counter(clusters.values()).values())
    if 2 * largest > len(clusters):
        return None
    rng = np.random.default_rng(seed)
    names = sorted(set(clusters.values()))
    place = dict(zip(names, rng.permutation(len(names)).tolist(), strict=True))
    ids = sorted(clusters)
    order = [ids[i] for i in rng.permutation(len(ids))]
    order.sort(key=lambda name: place[clusters[name]])  # stable: random within a cluster
    return dict(zip(order, order[largest:] + order[:largest], strict=True))


@dataclass(frozen=True)
class _Control:
    """The unchanged model on `samples` as they are here, their media noise if there is a `noise_seed`."""

    wrapper: ModelWrapper
    config: RunConfig
    spec: TaskSpec
    samples: Sequence[AnySample]
    kind: str
    noise_seed: int | None

    def metric(self) -> dict[str, Any] | None:
        """The headline metric, from the cache if it is there."""
        path = cache_dir() / "controls" / f"{self.spec.name}-{self._key()}.json"
        if path.is_file():
            cached: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8"))
            return cached
        result = self._measured()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, result)
        except (OSError, UserError) as error:  # the run is measured by now: its record must not be lost to a full disk
            print(f"core_bench: note: the {self.kind} score is not cached: {error}", file=sys.stderr)
        return result

    def _key(self) -> str:
        """A hash of what the metric depends on."""
        wrapper, config, spec = self.wrapper, self.config, self.spec
        key: list[Any] = [self.kind, wrapper.checkpoint_hash, spec.name, data_digest(self.samples)]
        key += [str(wrapper.model.dtype), config.max_pixels, config.frames, config.fps, self.noise_seed]
        key += [config.max_new_tokens or spec.max_new_tokens, spec.headline]
        return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]

    def _measured(self) -> dict[str, Any] | None:
        wrapper, config, spec = self.wrapper, self.config, self.spec
        arm = Arm(name="dense", plan=HeadPlan.empty(wrapper.shape))
        values: list[float] = []
        clusters: list[str] = []
        groups: list[str] = []
        for sample in track(self.samples, f"{spec.name}: {self.kind}"):
            if isinstance(sample, FailedSample):
                continue
            try:
                prepared = wrapper.prepare(
                    sample,
                    frames=config.frames,
                    fps=config.fps,
                    max_pixels=config.max_pixels,
                    noise_seed=self.noise_seed,
                )
                score = spec.score(sample, generate(wrapper, config, spec, prepared, arm, config.prefill_chunk)[0])
            except SampleError:
                continue  # counted as failed in the arms already
            values.append(score.scores[spec.headline])
            clusters.append(sample.cluster)
            groups += [score.groups[spec.headline]] if spec.headline in score.groups else []
        return metric_of(values, clusters, groups or None) if values else None
