"""Our tasks in lmms-eval: `class: !function core_bench.lmms_plugin.task.CoreTask` in a task file that ships.

Rows, prompts, media and scores are those of our own runs: lmms-eval's own reading of a task file would know nothing of
generated data, of evidence, or of metrics that do not apply to every row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import datasets
from lmms_eval.api.task import ConfigurableMessagesTask
from lmms_eval.utils import eval_logger

from core_bench.errors import SampleError, UserError
from core_bench.lmms_plugin.messages import messages_of
from core_bench.registry import known_tasks
from core_bench.schema import Sample
from core_bench.taskspec import UNPARSED, TaskSpec

# lmms-eval has no failed samples: such an answer starts so, and `process_results` gives no score for it.
FAILED = "core_bench: not answered: "


class CoreTask(ConfigurableMessagesTask):
    """One task that ships, with the samples of its split for dense runs; rows that cannot be samples are left out.

    Our models set `data_dir`, where data sets lie (lmms-eval makes the model first, then the tasks), and `boxes`, how
    their family writes boxes.
    """

    data_dir: str | None = None

    def __init__(
        self,
        data_dir: str | None = None,
        cache_dir: str | None = None,
        download_mode: str | None = None,
        config: dict[str, Any] | None = None,
        model_name: str | None = None,
    ) -> None:
        name = str((config or {}).get("task"))
        shipped = known_tasks()
        if name not in shipped:
            raise UserError(f"{name}: no task of that name ships with core_bench, so `class` cannot load it")
        self.spec: TaskSpec = shipped[name]
        if self.spec.ranks:
            raise UserError(f"{name}: scored by where heads look, not by an answer: python -m core_bench --mode dense")
        self.split = self.spec.split_for("dense")
        self.boxes: str | None = None
        super().__init__(config=self._lmms_config(), model_name=model_name)

    def _lmms_config(self) -> dict[str, Any]:
        keys = self.spec.keys
        entries = keys.get("metric_list") or [{"metric": name} for name in self.spec.metrics]
        return {
            "task": self.spec.name,
            "task_alias": keys.get("task_alias"),
            "test_split": self.split,
            "doc_to_text": "prompt",
            "doc_to_target": "target",
            # Named, so that lmms-eval looks for no metric of its own; not bound, since it copies what it is given.
            "process_results": CoreTask.process_results,
            "metric_list": [{"aggregation": "mean", "higher_is_better": True, **entry} for entry in entries],
            "generation_kwargs": {"do_sample": False, "until": [], **self.spec.generation_kwargs},
            "metadata": {"version": (keys.get("metadata") or {}).get("version", 1)},
        }

    def download(self, dataset_kwargs: dict[str, Any] | None = None) -> None:
        """The samples, and a table of them for lmms-eval's log."""
        found = self.spec.samples(self.split, data_dir=self.data_dir, report=eval_logger.warning)
        self.samples: dict[str, Sample] = {sample.id: sample for sample in found if isinstance(sample, Sample)}
        reasons = [row.reason for row in found if not isinstance(row, Sample)]
        if reasons:
            eval_logger.warning(f"{self.spec.name}: {len(reasons)} rows are left out, the first: {reasons[0]}")
        if not self.samples:
            raise UserError(f"{self.spec.name}: no row can be used, the first: {reasons[0]}")
        rows = [_row(sample) for sample in self.samples.values()]
        self.dataset = self.dataset_no_image = datasets.DatasetDict({self.split: datasets.Dataset.from_list(rows)})

    def sample(self, doc: dict[str, Any]) -> Sample:
        """The sample of a row of the table."""
        return self.samples[doc["id"]]

    def doc_to_messages(self, doc: dict[str, Any], **_: Any) -> list[dict[str, Any]]:
        """For models that are not ours."""
        return messages_of(self.sample(doc))

    def process_results(self, doc: dict[str, Any], results: Sequence[str], **_: Any) -> dict[str, Any]:
        """The metrics that apply to the row; none for one that failed. A value that is averaged by group comes with
        its group. `sample` is its id, for the log."""
        name = {"sample": doc["id"]}
        if results[0].startswith(FAILED):
            return name
        try:
            score = self.spec.score(self.sample(doc), results[0], boxes=self.boxes)
        except SampleError as error:
            eval_logger.warning(f"{self.spec.name}, {doc['id']}: not scored: {error}")
            return name
        values = {
            name: (score.groups[name], value) if name in score.groups else value for name, value in score.scores.items()
        }
        return {**name, **values, UNPARSED: float(score.unparsed)}

    def aggregation(self) -> dict[str, Callable[..., float]]:
        grouped = self.spec.core.get("groups") or {}
        return {**super().aggregation(), **dict.fromkeys(grouped, mean_of_groups)}


def mean_of_groups(items: Sequence[tuple[str, float]]) -> float:
    """The unweighted mean of the groups' means, of (group, value) pairs."""
    groups = {group for group, _ in items}
    return fmean(fmean(value for other, value in items if other == group) for group in sorted(groups))


def _row(sample: Sample) -> dict[str, str]:
    return {
        "id": sample.id,
        "prompt": sample.prompt,
        "target": sample.target if isinstance(sample.target, str) else json.dumps(sample.target),
        "doc": json.dumps(dict(sample.doc), default=str),
    }
