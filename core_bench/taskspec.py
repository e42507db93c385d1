"""A task: a checked YAML file that turns rows into samples and predictions into scores."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from core_bench.authorfiles import absent
from core_bench.errors import SampleError, UserError, one_line
from core_bench.instructions import lettered_dots
from core_bench.metrics import METRICS, Score, target_letter
from core_bench.schema import PAGE_DPI, Region, Sample
from core_bench.taskcheck import check_task
from core_bench.taskfields import as_text, call, choices_of, evidence_of, fill, media_of, value_of
from core_bench.taskfile import FunctionRef, YamlMap, read_task_file
from core_bench.tasksource import BadRow, Doc, Rows, read_rows, source_kind

DEFAULT_MAX_NEW_TOKENS = 64
DETECT, EVAL = "detect", "eval"  # splits that `detect_share` makes
# Besides the metrics, `process_results` may return this key: 1 where no answer could be read.
UNPARSED = "unparsed"


@dataclass(frozen=True, kw_only=True)
class FailedSample:
    """A row that could not become a sample: a recorded failure with its reason."""

    id: str
    cluster: str
    reason: str
    defects: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskSpec:
    """One task. `keys` are the YAML's, `core` those under metadata.core_bench; both are checked."""

    name: str
    path: Path
    keys: YamlMap
    core: YamlMap

    @classmethod
    def from_file(cls, path: Path) -> TaskSpec:
        """Read and check a task file; functions it names are not imported. UserError names file and line."""
        keys = read_task_file(path)
        core = (keys.get("metadata") or {}).get("core_bench") or YamlMap()
        check_task(keys, core, path)
        return cls(name=keys["task"], path=path, keys=keys, core=core)

    @property
    def kind(self) -> str:
        """generated, local or hub"""
        return source_kind(self.keys, self.core)

    @property
    def generated(self) -> bool:
        return bool(self.core.get("generator"))

    @property
    def dataset(self) -> str:
        return str(self.core.get("generator") or self.keys["dataset_path"])

    @property
    def default_for(self) -> tuple[str, ...]:
        return tuple(self.core.get("default_for") or ())

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that `score` gives."""
        listed = [entry["metric"] for entry in self.keys.get("metric_list") or []]
        fallback = "accuracy" if self._choices is not None else "exact_match"
        return tuple(name for name in listed if name != UNPARSED) or (fallback,)

    @property
    def headline(self) -> str:
        return str(self.core.get("headline") or self.metrics[0])

    @property
    def chance(self) -> float | None:
        """What guessing scores on the headline metric, where the task says."""
        return None if self.core.get("chance") is None else float(self.core["chance"])

    @property
    def tags(self) -> tuple[str, ...]:
        """Names that several tasks share; `--tasks` takes them for all of these."""
        found = self.keys.get("tag") or []
        return (found,) if isinstance(found, str) else tuple(found)

    @property
    def ranks(self) -> bool:
        """Whether heads rank parts of the prompt and nothing is generated."""
        return "ranking" in self.core

    @property
    def dpi(self) -> int:
        """Dots per inch at which PDF pages are rendered."""
        return int(self.core.get("dpi") or PAGE_DPI)

    @property
    def notes(self) -> dict[str, Any]:
        """What a reader of the record must know about how it scores."""
        return dict(self.core.get("notes") or {})

    @property
    def generation_kwargs(self) -> dict[str, Any]:
        return {"max_new_tokens": DEFAULT_MAX_NEW_TOKENS, **(self.keys.get("generation_kwargs") or {})}

    @property
    def max_new_tokens(self) -> int:
        return int(self.generation_kwargs["max_new_tokens"])

    @property
    def _choices(self) -> Any:
        return self.core.get("choices", self.keys.get("doc_to_choice"))

    def code_digest(self) -> str:
        """Short hash of the Python files that the YAML's functions come from: what it scores with.

        `class` is left out: it is how lmms-eval loads the task, and scores nothing.
        """
        named = [*self.keys.items(), *self.core.items()]
        refs = [value for key, value in named if isinstance(value, FunctionRef) and key != "class"]
        digest = hashlib.sha256()
        for path in sorted({ref.source() for ref in refs}):
            digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()[:16]

    def split_for(self, mode: str) -> str:
        """metadata.core_bench.splits of the mode, else test_split, else "test"."""
        splits = self.core.get("splits") or {}
        return str(splits.get(mode, self.keys.get("test_split", "test")))

    def samples(
        self,
        split: str,
        *,
        data_dir: str | None = None,
        limit: int | None = None,
        report: Callable[[str], None] | None = None,
    ) -> list[Sample | FailedSample]:
        """The first `limit` samples of a split, in file order; rows that are not as they should be are failures.

        `report` gets one line with the records that the task knows to be defective, by kind and number. UserError for
        an unknown or empty split, for an id that is given twice, and where not one row of a data set that is read as
        its authors ship it can be used.
        """
        rows = self._rows(split, data_dir, limit)
        if not rows.docs:
            raise UserError(f"{self.path}: task {self.name}: no rows in {rows.where}")
        found = [
            replace(self._sample(doc, number, rows), defects=self._defects(doc, rows))
            for number, doc in enumerate(rows.docs, start=1)
        ]
        for name, times in Counter(sample.id for sample in found).items():
            if times > 1:
                raise UserError(f"{rows.where}: id {name!r} is given {times} times: expected one row for each id")
        if "files" in self.core:
            self._refuse_unusable(found, rows, whole=limit is None)
        defects = Counter(kind for sample in found for kind in sample.defects)
        if report is not None and defects:
            kinds = "; ".join(f"{times} {kind}" for kind, times in defects.items())
            report(f"{self.name}: defective records among the first {len(rows.docs)} rows: {kinds}")
        return found

    def _rows(self, split: str, data_dir: str | None, limit: int | None) -> Rows:
        """The rows of a split. With `detect_share`, split `detect` is that share of the documents, by a hash of their
        names (without suffix, so that data sets over the same documents agree), and `eval` the others."""
        share = self.core.get("detect_share")
        if share is None or split not in (DETECT, EVAL):
            return read_rows(self.keys, self.core, split, data_dir, limit)
        rows = read_rows(self.keys, self.core, split, data_dir)
        wanted = [doc for doc in rows.docs if self._for_detection(doc, float(share)) == (split == DETECT)]
        return replace(rows, docs=wanted[:limit])

    def _for_detection(self, doc: Doc | BadRow, share: float) -> bool:
        name = None if isinstance(doc, BadRow) else doc.get(str(self.core.get("cluster")))
        digest = hashlib.sha256(str(name).removesuffix(".pdf").encode()).digest()
        return int.from_bytes(digest[:4]) < share * 2**32

    def candidates(self, sample: Sample) -> dict[str, list[tuple[Any, Region]]]:
        """What a task that is scored by ranking has ranked: kind -> (label, region) pairs. SampleError by the row."""
        found = call(self.core["ranking"], dict(sample.doc), "ranking", media=sample.media)
        assert isinstance(found, dict)
        return found

    def _refuse_unusable(self, found: list[Sample | FailedSample], rows: Rows, *, whole: bool) -> None:
        """UserError where every row fails (in the `whole` data set: every row of one file), or none of the media files
        is there: one reason for all, not a run."""
        parts = {rows.where: found}
        for sample, doc in zip(found, rows.docs, strict=True) if whole else ():
            if not isinstance(doc, BadRow) and "source_file" in doc:
                parts.setdefault(doc["source_file"], []).append(sample)
        for where, samples in parts.items():
            reasons = Counter(sample.reason for sample in samples if isinstance(sample, FailedSample))
            if reasons.total() == len(samples):
                [(reason, times)] = reasons.most_common(1)
                raise UserError(
                    f"{self.name}: {where}: none of {len(samples)} rows can be used, {times} of them so: {reason}"
                )
        good = [sample for sample in found if isinstance(sample, Sample)]
        paths = {medium.path for sample in good for medium in sample.media}
        if not any(map(os.path.exists, paths)):
            raise absent(self.name, self.core, f"none of {len(paths)} media files is there, among them {min(paths)}")

    def _defects(self, doc: Doc | BadRow, rows: Rows) -> tuple[str, ...]:
        """Kinds, as the task's `defects` function names them. A row that it stumbles over is one that fails, and is
        told there."""
        if "defects" in self.core and not isinstance(doc, BadRow):
            with contextlib.suppress(SampleError):
                return tuple(call(self.core["defects"], doc, "defects", base=rows.base))
        return ()

    def score(self, sample: Sample, prediction: str, *, boxes: str | None = None) -> Score:
        """Score what the model said, cut at the task's `until` strings.

        `boxes`: the coordinates in which the model's family writes boxes, see `core_bench.scoring_boxes`.
        """
        for stop in self._stops():
            prediction = prediction.partition(stop)[0]
        function = self.keys.get("process_results")
        if function is not None:
            scores, unparsed = self._checked(
                call(
                    function,
                    dict(sample.doc),
                    "process_results",
                    [prediction],
                    boxes=boxes,
                    media=sample.media,
                    evidence=sample.evidence,
                ),
                function,
            )
        else:
            values = {name: METRICS[name](prediction, sample.target, sample.choices) for name in self.metrics}
            scores = {name: value for name, (value, _) in values.items()}
            unparsed = any(flag for _, flag in values.values())
        sources = {name: source for name, source in (self.core.get("groups") or {}).items() if name in scores}
        groups = {
            name: as_text(value_of(source, dict(sample.doc), "groups"), "groups") for name, source in sources.items()
        }
        return Score(scores=scores, unparsed=unparsed, groups=groups)

    def _stops(self) -> list[str]:
        until = self.generation_kwargs.get("until") or []
        return [until] if isinstance(until, str) else list(until)

    def _checked(self, result: Any, function: FunctionRef) -> tuple[dict[str, float], bool]:
        """The numbers of `process_results`; a metric of None does not apply to the sample and is left out."""
        expected = f"{function.place}: process_results: expected a dict with {', '.join(self.metrics)}"
        if not isinstance(result, dict):
            raise UserError(f"{expected}, got {type(result).__name__}")
        missing = [name for name in self.metrics if name not in result]
        if missing:
            raise UserError(f"{expected}, got {', '.join(map(str, result)) or 'an empty one'}")
        given = {name: result[name] for name in self.metrics if result[name] is not None or name == self.headline}
        for name, value in given.items():
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise UserError(f"{function.place}: process_results: {name}: expected a number, got {value!r}")
        return {name: float(value) for name, value in given.items()}, bool(result.get(UNPARSED, False))

    def _sample(self, doc: Doc | BadRow, number: int, rows: Rows) -> Sample | FailedSample:
        name, cluster = f"row {number}", ""
        if isinstance(doc, BadRow):
            return FailedSample(id=name, cluster=cluster, reason=doc.reason)
        try:
            name = self._id(doc, name)
            media, first = media_of(self.core.get("media"), doc, rows.base, self.core.get("frames"), self.dpi)
            cluster = rows.name_of(first)
            if self.core.get("cluster") is not None:
                cluster = as_text(value_of(self.core["cluster"], doc, "cluster"), "cluster")
            choices = choices_of(self._choices, doc)
            target = value_of(self.keys.get("doc_to_target", "answer"), doc, "doc_to_target")
            if choices and "process_results" not in self.keys:
                target_letter(target, choices)  # an answer that is no option could never be right
            return Sample(
                task=self.name,
                id=name,
                cluster=cluster,
                media=media,
                **self._texts(doc, choices),
                target=target,
                choices=choices,
                evidence=evidence_of(self.core.get("evidence"), doc, len(media), rows.base, self.dpi),
                doc=doc,
            )
        except SampleError as error:
            return FailedSample(id=name, cluster=cluster, reason=one_line(error))

    def _id(self, doc: Doc, fallback: str) -> str:
        """The id of a row; rows without an `id` column are named by their number."""
        if "id" not in self.core and doc.get("id") is None:
            return fallback
        return as_text(value_of(self.core.get("id", "id"), doc, "id"), "id").strip()

    def _texts(self, doc: Doc, choices: tuple[str, ...]) -> dict[str, Any]:
        specific = (self.keys.get("lmms_eval_specific_kwargs") or {}).get("default") or {}
        source = self.keys.get("doc_to_text", "question")
        # A function gets the row as it is: `options` may be a column of it.
        row = {**doc, "options": lettered_dots(choices)} if choices and not isinstance(source, FunctionRef) else doc
        prompt = as_text(value_of(source, row, "doc_to_text", lmms_eval_specific_kwargs=specific), "doc_to_text")
        texts: dict[str, Any] = {"prompt": prompt, "question": prompt}
        for key, whole in (("question", "prompt"), ("phrase", "question")):
            if self.core.get(key) is not None:
                texts[key] = as_text(value_of(self.core[key], doc, key), key)
                if texts[key] not in texts[whole]:
                    raise SampleError(f"{key}: expected a part of the {whole}, got {texts[key]!r}")
        for key in ("system", "prime"):
            if self.core.get(key) is not None:
                texts[key] = _literal(self.core[key], doc, key)
        return texts


def _literal(source: Any, doc: Doc, what: str) -> str:
    """Text of the YAML with {column} filled in, or a function's; a bare word is text here, no column."""
    if isinstance(source, FunctionRef):
        return str(call(source, doc, what))
    return fill(source, doc, what)
