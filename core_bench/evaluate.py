"""One run: load, prepare, generate, score, append; then the record and its tables.

A sample that fails is a recorded failure with its reason, never a wrong answer and never a lost run. Interrupted at any
moment, the same command goes on where it stopped: what is done is read from samples.jsonl.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core_bench import headtables
from core_bench.arms import BASELINES, Arm, make_arms, plan_records
from core_bench.checkpoints import checkpoint_label, load_wrapper, window_and_sink
from core_bench.config import RunConfig
from core_bench.controls import image_blind, shuffled_media
from core_bench.detect import detect, sidecar, tables, write_tables
from core_bench.errors import UserError
from core_bench.heads import Head, HeadScores, k_for, pool_scores
from core_bench.headtables import HeadMeta
from core_bench.provenance import command_of, data_digest, device_name, environment, media_marks, sources, versions
from core_bench.ranking import SHARE as RANKING_SHARE
from core_bench.registry import load_tasks
from core_bench.results import build_record, ram_record, run_id, short_digest
from core_bench.runfolder import RunFolder, check_out
from core_bench.running import TIMED_MODES, run_arms
from core_bench.schema import Sample
from core_bench.stats import spearman
from core_bench.tables import render_tables
from core_bench.taskspec import FailedSample, TaskSpec
from core_bench.team import this_team

if TYPE_CHECKING:
    from core_bench.model_wrappers.base import ModelWrapper

EXIT_NOTHING_SCORED = 1
LONG_WAIT = 0.2  # share of the time that is worth a note
Tasks = list[tuple[TaskSpec, list[Sample | FailedSample]]]


@dataclass(frozen=True, kw_only=True)
class Session:
    """What stays the same for the whole of one run. `settings` binds the OUT folder, `run_id` is made from them.

    `controls`: whether those of generated tasks are measured too.
    """

    config: RunConfig
    wrapper: ModelWrapper
    tasks: Tasks
    settings: dict[str, Any]
    heads: tuple[HeadScores, HeadMeta] | None
    arms: list[Arm]
    controls: bool = True

    @property
    def ranking_heads(self) -> list[Head]:
        """The heads that rank, for tasks that are scored so."""
        return [] if self.heads is None else self.heads[0].top(k_for(RANKING_SHARE, self.heads[0].ram.size))

    @property
    def run_id(self) -> str:
        return run_id(self.config.model, self.config.mode, self.settings)


def run(config: RunConfig) -> int:
    """Carry out `config` and print its tables; returns the exit code (0, or 1 where a task has no scored sample)."""
    team = this_team()
    team.lead(lambda: check_out(config.out_dir()))
    tasks = read_tasks(config, config.mode)
    wrapper = load_wrapper(config)
    say(_first_line(config, wrapper))
    session = make_session(config, wrapper, tasks)
    record, rows = carry_out(session)
    if not team.leads:
        return exit_code(record, config.strict)
    print(render_tables(record))
    if config.mode == "detect" and (config.out_dir() / headtables.TABLE).is_file():
        _compare_with_known(config, wrapper)
    _say_failures(rows, config.out_dir())
    _say_waits(record)
    say(f"record: {config.out_dir() / 'record.json'}")
    return exit_code(record, config.strict)


def carry_out(session: Session) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure what the session's OUT lacks; returns its record and rows. The record is written after an interruption
    too, and says then that it is not complete."""
    out = session.config.out_dir()
    team = this_team()
    with RunFolder.open(out, session.settings, team) as folder:
        if not folder.finished:
            complete, controls = False, None
            try:
                controls = _work(session, folder)
                complete = True
            finally:
                if team.leads:
                    _write_record(session, folder, controls, complete)
            team.wait()
        record, rows = folder.record, folder.rows
    if record is None:
        raise RuntimeError(f"{out}: no record was written")
    return record, rows


def read_tasks(config: RunConfig, mode: str) -> Tasks:
    """The samples of every task that `mode` runs, in file order. Raises UserError where a task has no rows.

    Detection that runs before another mode has the default tasks, and its generated data in its own place: the
    generated tasks where the run has no others, else the real ones.
    """
    own = mode == config.mode
    specs = load_tasks(config.tasks, config.mode, config.bundled)
    if not own:
        specs = load_tasks(None, mode, config.bundled or all(spec.generated for spec in specs))
    limit = config.limit if own else None
    roots = [config.data_dir if own or not spec.generated else None for spec in specs]

    def read() -> Tasks:
        return [
            (spec, spec.samples(spec.split_for(mode), data_dir=root, limit=limit, report=say))
            for spec, root in zip(specs, roots, strict=True)
        ]

    return this_team().leader_first(read)  # generated data is written where it is not there yet


def exit_code(record: dict[str, Any], strict: bool) -> int:
    """0 if every task has a scored (or, in detection, measured) sample and, under strict, no failure; else 1."""
    for name, task in record["tasks"].items():
        scored = [arm["n_scored"] for arm in task["arms"].values()]
        measured = name in record.get("ram", {}).get("per_task", {})
        if not (measured or (scored and min(scored) > 0)) or (strict and task["n_failed"]):
            return EXIT_NOTHING_SCORED
    return 0


def say(line: str) -> None:
    """A line for the person at the terminal; on stderr, so that stdout holds the tables alone. Of a team, the leader
    speaks."""
    if this_team().leads:
        print(f"core_bench: {line}", file=sys.stderr, flush=True)


def _say_failures(rows: Sequence[dict[str, Any]], out: Path) -> None:
    """The commonest reason for a failure; all of them are in samples.jsonl."""
    reasons = {(row["task"], row["id"]): row["failure"] for row in rows if row["failure"] is not None}
    if reasons:
        reason, times = Counter(reasons.values()).most_common(1)[0]
        say(f"{len(reasons)} samples failed, {times} of them so: {reason} (all reasons: {out / 'samples.jsonl'})")


def _say_waits(record: dict[str, Any]) -> None:
    """The tasks that waited long for their media: a faster disk, fewer frames or more CPU cores would help them."""
    for name, task in record["tasks"].items():
        wait = task.get("media_wait")
        if wait is not None and wait["share"] > LONG_WAIT:
            say(f"note: {name}: {wait['share']:.0%} of the time was spent waiting for media ({wait['seconds']:.0f} s)")


def _first_line(config: RunConfig, wrapper: ModelWrapper) -> str:
    if config.checkpoint is None:
        return (
            f"{config.model}: the small bundled checkpoint {wrapper.checkpoint_hash} "
            "(--checkpoint HUB_ID_OR_FOLDER for a real one)"
        )
    return f"{config.model}: {config.checkpoint}, content {wrapper.checkpoint_hash}"


def make_session(config: RunConfig, wrapper: ModelWrapper, tasks: Tasks) -> Session:
    settings: dict[str, Any] = {
        **config.settings(),
        "checkpoint": checkpoint_label(config),
        "checkpoint_hash": wrapper.checkpoint_hash,
        # Resolved: "auto" may mean another device tomorrow, and rounding and times of two must not be mixed.
        "device": device_name(wrapper),
        "dtype": str(wrapper.model.dtype).removeprefix("torch."),
        "data": {spec.name: data_digest(samples) for spec, samples in tasks},
    }
    settings |= sources(tasks)
    heads, arms = None, []
    window, sink = window_and_sink(config, wrapper.checkpoint_hash)
    ranking = [spec.name for spec, _ in tasks if spec.ranks and config.mode != "detect"]
    if ranking and config.mode != "dense":
        raise UserError(f"--tasks: {ranking[0]} is scored by where the unchanged model looks: expected --mode dense")
    if ranking or config.mode in ("ablate", "hybrid"):
        heads = find_table(config, wrapper)
        scores, meta = heads
        say(f"heads: {meta.where}{'' if meta.note is None else f' (note: {meta.note})'}")
        refuse_overlap(config, meta, tasks)
        settings["heads_digest"] = hashlib.sha256(scores.ram.tobytes()).hexdigest()[:16]
        if ranking:
            settings["ranking"] = {"heads": RANKING_SHARE, "score": "sum of their RAM"}
        if config.mode == "hybrid":
            settings |= {"window": window, "sink": sink}
    if config.mode != "detect":
        settings["scoring"] = {
            spec.name: {
                "metrics": list(spec.metrics),
                "code": spec.code_digest(),
                **spec.generation_kwargs,
                **({"notes": spec.notes, "boxes": wrapper.BOXES} if spec.notes else {}),
            }
            for spec, _ in tasks
        }
        arms = make_arms(config, heads[0] if heads else None, wrapper.shape, window, sink)
        # The plans themselves: a head list named by file:PATH may change under its name.
        settings["plans"] = short_digest(plan_records(arms))
    return Session(config=config, wrapper=wrapper, tasks=tasks, settings=settings, heads=heads, arms=arms)


def _compare_with_known(config: RunConfig, wrapper: ModelWrapper) -> None:
    """Say how far the table just found agrees with the one that --heads auto takes for this checkpoint, if any."""
    known = _look_up("auto", config, wrapper)
    own = config.out_dir() / headtables.TABLE
    if known is not None and Path(known[1].where).resolve() != own.resolve():
        scores = HeadScores.read_tsv(own, wrapper.shape)
        say(f"beside {known[1].where}: {agreement(scores, known[0])}")


def agreement(one: HeadScores, other: HeadScores) -> str:
    """Spearman's rank correlation of two head tables of one shape, and how much of the top 10% they share."""
    k = k_for("10%", one.ram.size)
    shared = len(set(one.top(k)) & set(other.top(k)))
    correlation = spearman(one.ram.ravel().tolist(), other.ram.ravel().tolist())
    ranks = "rank correlation unknown" if correlation is None else f"rank correlation {correlation:.2f}"
    return f"{ranks}, {shared} of the top {k} heads shared"


def find_table(config: RunConfig, wrapper: ModelWrapper) -> tuple[HeadScores, HeadMeta]:
    """The head table of --heads; with "auto" and none that fits, detection runs first and its table is cached."""
    earlier = [path.parent for path in sorted(config.out_dir().parent.glob(f"*/{headtables.SIDECAR}"))]
    if (found := _look_up(config.heads, config, wrapper, earlier)) is not None:
        return found
    cache = headtables.cache_folder(wrapper.checkpoint_hash, config.query, config.overlap)
    say(f"heads: no table fits this checkpoint, so they are detected first and kept in {cache}")
    tasks = read_tasks(config, "detect")
    settings = {
        "mode": "detect",
        "frames": [config.frames, config.fps, config.max_pixels],
        "seed": config.seed,
        "dtype": str(wrapper.model.dtype),
        "data": {spec.name: data_digest(samples) for spec, samples in tasks},
    }
    # One folder for each set of settings: an interrupted detection must not block one with others.
    team = this_team()
    with RunFolder.open(cache / f"run-{short_digest(settings)}", settings, team) as folder:
        detect(wrapper, config, tasks, folder)
        per_task = tables(folder.rows, tasks)
        if not per_task:
            raise UserError("--heads auto: detection measured no sample; name a head table")
        whole = replace(config, limit=None)  # --limit is about the evaluation, not about this detection
        side = sidecar(wrapper, whole, folder.rows, tasks, _provenance(config))
        team.lead(lambda: write_tables(cache, per_task, side))
    if (found := _look_up(config.heads, config, wrapper, earlier)) is None:
        raise RuntimeError(f"{cache}: the head table just written was not found")
    return found


def _look_up(
    spec: str, config: RunConfig, wrapper: ModelWrapper, earlier: Sequence[Path] = ()
) -> tuple[HeadScores, HeadMeta] | None:
    """The table that `spec` means for this model and the config's detection rules, see `headtables.resolve`."""
    return headtables.resolve(
        spec,
        checkpoint_hash=wrapper.checkpoint_hash,
        shape=wrapper.shape,
        query=config.query,
        overlap=config.overlap,
        search=earlier,
    )


def refuse_overlap(config: RunConfig, meta: HeadMeta, tasks: Tasks) -> None:
    """UserError where a sample shows what the heads were found on, unless `config.allow_overlap`."""
    shared = []
    for spec, samples in tasks:
        marks = media_marks(samples)
        shared += meta.overlap((spec.name, sample.id, sample.cluster, marks[sample.id]) for sample in samples)
    if shared and not config.allow_overlap:
        task, name = shared[0]
        raise UserError(
            f"{len(shared)} samples, first {name} of {task}, show what the heads of {meta.where} were found on: "
            "evaluate on others, or say --allow-overlap, which is recorded"
        )


def _work(session: Session, folder: RunFolder) -> dict[str, dict[str, Any]] | None:
    """Everything that is measured; returns the controls of the generated tasks."""
    if session.config.mode == "detect":
        detect(session.wrapper, session.config, session.tasks, folder)
    else:
        _say_untimed(session)
        for spec, samples in session.tasks:
            run_arms(session.wrapper, session.config, spec, samples, session.arms, folder, session.ranking_heads)
    places = {
        (spec.name, sample.id): (task, number)
        for task, (spec, samples) in enumerate(session.tasks)
        for number, sample in enumerate(samples)
    }
    if folder.team.leads:
        folder.arrange(lambda row: places[row["task"], row["id"]])
    if session.config.mode == "detect" or not session.controls:
        return None
    return folder.team.lead(lambda: _controls(session))


def _say_untimed(session: Session) -> None:
    team = this_team()
    if session.config.mode in TIMED_MODES and team.shares_device(session.wrapper.model.device.type):
        say(f"note: {team.local_size} processes share one device, so prefill is not timed")


def _write_record(
    session: Session, folder: RunFolder, controls: dict[str, dict[str, Any]] | None, complete: bool
) -> None:
    """Sum up what `folder` holds."""
    config, wrapper = session.config, session.wrapper
    ram = None
    if config.mode == "detect":
        per_task = tables(folder.rows, session.tasks)
        if per_task and complete:
            side = sidecar(wrapper, config, folder.rows, session.tasks, _provenance(config))
            pooled = write_tables(folder.out, per_task, side)
            if config.limit is None and config.tasks is None:
                write_tables(
                    headtables.cache_folder(wrapper.checkpoint_hash, config.query, config.overlap), per_task, side
                )
            ram = ram_record(per_task, pooled, folder.rows)
        elif per_task:
            ram = ram_record(per_task, pool_scores(list(per_task.values())), folder.rows)
    plans = plan_records(session.arms)
    record = build_record(
        run={
            "id": session.run_id,
            "model": config.model,
            "checkpoint": checkpoint_label(config),
            "checkpoint_hash": wrapper.checkpoint_hash,
            "revision": wrapper.revision,
            "mode": config.mode,
            "seed": config.seed,
            "command": command_of(config),
            "settings": session.settings,
            "heads": session.heads[1].to_record() if session.heads else None,
        },
        environment={**environment(wrapper, config), "processing": wrapper.processing},
        rows=folder.rows,
        plans={spec.name: plans for spec, _ in session.tasks},
        headline={spec.name: spec.headline for spec, _ in session.tasks},
        baseline=BASELINES.get(config.mode, "dense"),
        ram=ram,
        controls=controls,
        complete=complete,
    )
    folder.write_record(record)


def _controls(session: Session) -> dict[str, dict[str, Any]] | None:
    """What the generated tasks give without the right media to look at, and their chance level."""
    found = {}
    for spec, samples in session.tasks:
        if spec.generated:
            blind = image_blind(session.wrapper, session.config, spec, samples)
            shuffled = shuffled_media(session.wrapper, session.config, spec, samples)
            found[spec.name] = {"chance": spec.chance, "image_blind": blind, "shuffled_media": shuffled}
    return found or None


def _provenance(config: RunConfig) -> dict[str, Any]:
    return {"checkpoint": checkpoint_label(config), "versions": versions(), "command": command_of(config)}
