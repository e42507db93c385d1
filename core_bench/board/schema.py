"""What `record.json` and a line of `samples.jsonl` may hold. Unknown keys, NaN and wrong types are refused.

Keys are in the order in which they are written. `ci95` is null where an interval cannot be estimated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

RUN_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"  # it becomes a folder name

Pair = Annotated[list[float], Field(min_length=2, max_length=2)]
Head = Annotated[list[int], Field(min_length=2, max_length=2)]
Count = Annotated[int, Field(ge=0)]
Grid = list[list[float]]
GridWithGaps = list[list[float | None]]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class Metric(Strict):
    """A mean over `n` samples."""

    value: float
    stderr: float | None
    ci95: Pair | None
    n: Count


class Delta(Metric):
    """Arm minus baseline in `metric`, over the `n` samples that both scored."""

    metric: str


class Plan(Strict):
    """{} is the model's own attention. `displaced`: heads of a random draw taken from another layer."""

    full: list[Head] = []
    off: list[Head] = []
    off_kind: Literal["zero", "blind"] | None = None
    hold: Literal["prefill", "always"] | None = None
    window: int | None = None
    sink: int | None = None
    query_head_density: float | None = None
    kv_head_density: float | None = None
    displaced: int | None = None


class Spread(Strict):
    median: float
    iqr: float


class Speedup(Strict):
    """Median dense time over median time, on the same `n` samples."""

    value: float
    ci95: Pair | None
    n: Count


class Prefill(Strict):
    """Times in ms. `vision_ms` is the median time of the vision tower, which no head plan changes."""

    language_ms: Spread
    vision_ms: float | None
    n: Count
    speedup: Speedup | None = None


class Draw(Strict):
    """One random control set."""

    draw: Count
    plan: Plan
    metrics: dict[str, Metric]
    n_scored: Count
    n_unparsed: Count
    n_failed: Count


class Arm(Strict):
    """The three counts count rows: samples, times draws for a random arm. Failed rows are never scored as wrong;
    unparsed ones are scored, and wrong. `draw_sd`: standard deviation of the headline metric between draws."""

    plan: Plan
    metrics: dict[str, Metric]
    n_scored: Count
    n_unparsed: Count
    n_failed: Count
    delta: Delta | None = None
    prefill: Prefill | None = None
    draws: list[Draw] | None = None
    draw_sd: float | None = None


class Controls(Strict):
    """What can be had without looking: the chance level, and the baseline with every medium replaced by noise
    (`image_blind`) or by that of another sample (`shuffled_media`)."""

    chance: float | None = None
    image_blind: Metric | None = None
    shuffled_media: Metric | None = None


class Tokens(Strict):
    prompt_median: float
    visual_median: float


class MediaWait(Strict):
    """Time that the samples waited for their pixels, and its share of all the time spent on them."""

    seconds: float
    share: float


class Task(Strict):
    n: Count
    n_failed: Count
    tokens: Tokens | None
    media_wait: MediaWait | None = None
    defects: dict[str, Count] | None = None  # kind -> number of samples whose records are known to have it
    controls: Controls | None = None
    arms: dict[str, Arm]


class RamTable(Strict):
    """[layers][heads], as in the head table; null where a value cannot be estimated."""

    ram: Grid
    stderr: GridWithGaps
    chance: Grid
    sink_corrected: GridWithGaps
    n: Count

    @model_validator(mode="after")
    def _one_shape(self) -> RamTable:
        grids: list[Sequence[Sequence[float | None]]] = [self.ram, self.stderr, self.chance, self.sink_corrected]
        sizes = {tuple(len(layer) for layer in grid) for grid in grids}
        if len(sizes) != 1 or not self.ram or len(set(map(len, self.ram))) != 1 or not self.ram[0]:
            raise ValueError("ram, stderr, chance and sink_corrected must be grids of one shape")
        return self


class PairCorrelation(Strict):
    """Spearman's correlation of two tasks' RAM over heads; null where either task's RAM is the same for all heads."""

    tasks: Annotated[list[str], Field(min_length=2, max_length=2)]
    value: float | None
    ci95: Pair | None


class SharedTop(Strict):
    """`heads` are among the `k` leading ones of `n_heads` in every task; `p_by_chance`: of at least so many."""

    share: str
    k: Count
    n_heads: Count
    heads: list[Head]
    expected_by_chance: float
    p_by_chance: float


class Halves(Strict):
    """Spearman's correlation of the tables of two halves of a task's samples: mean and central 95% over `splits`
    random partings; `spearman_brown`: the mean corrected to the whole number of samples."""

    value: float
    central95: Pair
    spearman_brown: float | None
    splits: Count


class Stability(Strict):
    """How far the rankings of two or more tasks agree, see core_bench/stability.py."""

    pairs: list[PairCorrelation]
    shared: SharedTop
    halves: dict[str, Halves | None]


class Ram(Strict):
    per_task: dict[str, RamTable]
    pooled: RamTable
    stability: Stability | None = None


class Heads(Strict):
    """Where the head table of this run came from. `note` is a warning that readers must see."""

    where: str
    checkpoint_hash: str | None = None
    note: str | None = None


class Run(Strict):
    id: Annotated[str, Field(pattern=RUN_ID)]
    model: str
    checkpoint: str
    checkpoint_hash: str
    revision: str | None = None
    mode: Literal["dense", "detect", "ablate", "hybrid"]
    seed: int
    command: str
    settings: dict[str, Any]
    heads: Heads | None = None
    complete: bool


class Environment(Strict):
    versions: dict[str, str]
    commit: str | None
    device: str
    threads: int
    dtype: str
    attention: str
    # Settings of the checkpoint's picture and video processors that decide how many tokens a medium becomes.
    processing: dict[str, Any] | None = None


class Record(Strict):
    schema_version: Literal[1]
    run: Run
    environment: Environment
    ram: Ram | None = None
    tasks: dict[str, Task]


class RowTokens(Strict):
    prompt: Count
    visual: Count


class RowTimes(Strict):
    """`media_ms` and `sample_ms` are of the sample, in all its rows: waiting for its pixels, and everything."""

    language_ms: float | None = None
    vision_ms: float | None = None
    generate_ms: float | None = None
    media_ms: float | None = None
    sample_ms: float | None = None


class SampleRow(Strict):
    """One sample under one arm. `ram`, `placebo` ([layers][heads]) and `chance` belong to arm "detect" alone.
    `frames`, `fps` and `seconds` have an entry a medium: native frame indices, the file's average frame rate and, where
    it varies, when each frame is shown. `defects`: what the task knows to be wrong with the record.
    `groups`: the sample's group for each metric that is the unweighted mean of its groups' means (MLVU's M-Avg).
    `chunk`: the prompt was read so many tokens at a time."""

    task: str
    id: str
    cluster: str
    arm: str
    draw: int | None
    prediction: str | None = None
    target: Any = None
    scores: dict[str, float] = {}
    groups: dict[str, str] = {}
    failure: str | None
    unparsed: bool = False
    tokens: RowTokens | None = None
    frames: list[list[int]] = []
    fps: list[float | None] = []
    seconds: list[list[float]] = []
    defects: list[str] = []
    times: RowTimes | None = None
    chunk: int | None = None
    ram: Grid | None = None
    placebo: Grid | None = None
    chance: float | None = None

    @model_validator(mode="after")
    def _failed_rows_have_no_score(self) -> SampleRow:
        if self.failure is not None and self.scores:
            raise ValueError("a failed sample has no scores")
        if extra := self.groups.keys() - self.scores.keys():
            raise ValueError(f"a group for {min(extra)!r}, which is not scored")
        return self


def check_record(record: dict[str, Any]) -> None:
    """Raise ValueError with one line that names the first wrong field."""
    _check(Record, record)


def check_row(row: dict[str, Any]) -> None:
    """Raise ValueError with one line that names the first wrong field."""
    _check(SampleRow, row)


def _check(model: type[Strict], value: dict[str, Any]) -> None:
    try:
        model.model_validate_json(json.dumps(value, allow_nan=False))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "whole"
        got = repr(first["input"])
        raise ValueError(f"{field}: {first['msg']}, got {got if len(got) <= 60 else got[:57] + '...'}") from None
    except TypeError as error:
        raise ValueError(f"not JSON: {error}") from None
