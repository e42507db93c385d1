"""`python -m core_bench speed`: dense and hybrid prefill side by side on one prompt, over prompt lengths.

Every arm is first shown bit-identical to the model's full forward under the same plan, which warms it up too; then
the arms take turns. The report puts the ideal beside the measured: the speed-up of attention if only visible (query,
key) pairs cost time, and the Amdahl bound of prefill with the share of time that attention takes in the dense arm.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tabulate import tabulate

from core_bench.arms import Arm, make_arms
from core_bench.checkpoints import checkpoint_label, load_wrapper, window_and_sink
from core_bench.config import RunConfig
from core_bench.errors import UserError
from core_bench.heads import HeadScores, HeadShape
from core_bench.headtables import resolve
from core_bench.model_wrappers.base import ModelWrapper
from core_bench.prefill import LanguagePrefill, amdahl_bound, ideal_speedup, time_interleaved
from core_bench.progress import track
from core_bench.provenance import environment
from core_bench.schema import Media, Prepared, Sample
from core_bench.stats import median_iqr

AVAILABLE = ("prefill",)
ROUNDS = 5  # at least 3 where one dense pass takes long
SIDE = 512  # pixels: pictures small enough that the vision tower, which is not what is timed, stays cheap
_QUESTION = "What do you see?"

Row = dict[str, Any]


def run_speed(
    *,
    what: str,
    model: str,
    checkpoint: str | None,
    tokens: tuple[int, ...],
    keep: str,
    heads: str,
    window: int | None,
    sink: int | None,
    device: str,
    dtype: str | None,
    attention: str,
    budget_s: float,
    json_path: str | None,
    seed: int,
) -> int:
    """Measures, prints a table, writes `json_path` if given; returns the exit code 0.

    `tokens`: prompt lengths. `heads`: a head table, or "auto"; where none is found, seeded random heads stand in, and
    the output says so. `budget_s`: seconds that one dense pass may take; longer prompts are left out. UserError
    otherwise.
    """
    if what not in AVAILABLE:
        raise UserError(f"--what {what}: not available yet (available: {', '.join(AVAILABLE)})")
    _check_writable(json_path)
    config = RunConfig(
        model=model,
        mode="hybrid",
        checkpoint=checkpoint,
        keep=keep,
        heads=heads,
        window=window,
        sink=sink,
        device=device,
        dtype=dtype,
        attention=attention,
        seed=seed,
    )
    print(f"checkpoint {checkpoint_label(config)}" + (" (--checkpoint names a real one)" if config.bundled else ""))
    wrapper = load_wrapper(config)
    scores, where = _scores(heads, wrapper, seed)
    arms = make_arms(config, scores, wrapper.shape, *window_and_sink(config, wrapper.checkpoint_hash))
    print(f"heads {where}")
    rows, note = sweep(wrapper, arms, tokens, budget_s=budget_s, attention=attention)
    about = environment(wrapper, config)
    print(render(rows, about, note))
    if json_path is not None:
        run = {"checkpoint": checkpoint_label(config), "checkpoint_hash": wrapper.checkpoint_hash, "heads": where}
        record = {"environment": about, "run": run | {"seed": seed}, "rows": rows, "note": note}
        Path(json_path).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0


def sweep(
    wrapper: ModelWrapper, arms: Sequence[Arm], tokens: Sequence[int], *, budget_s: float, attention: str = "auto"
) -> tuple[list[Row], str | None]:
    """Rows for each length in turn, shortest first, and a note on where and why the sweep stopped early.

    `arms`: the dense baseline first. It stops at the length where one dense pass takes, or by linear growth alone
    would take, more than `budget_s` seconds.
    """
    rows: list[Row] = []
    dense_s, at = 0.0, 1
    with tempfile.TemporaryDirectory() as folder:
        for length in track(sorted(set(tokens)), "speed"):
            expected_s = dense_s * length / at
            if expected_s <= budget_s:
                prepared = prompt_of(wrapper, length, Path(folder))
                prefill = LanguagePrefill(wrapper.model, wrapper.device_inputs(prepared), impl=attention)
                expected_s = dense_s = prefill.time_ms(arms[0].plan) / 1e3
                at = prepared.token_map.length
            if expected_s > budget_s:
                return rows, f"stopped at {length} tokens: one dense pass takes more than {budget_s:g} s (--budget)"
            rounds = max(3, min(ROUNDS, int(budget_s / dense_s)))
            rows += measure(wrapper, prefill, arms, prepared, rounds)
    return rows, None


def measure(
    wrapper: ModelWrapper, prefill: LanguagePrefill, arms: Sequence[Arm], prepared: Prepared, rounds: int
) -> list[Row]:
    """One row for each arm after the first, which is dense: verified, warmed up, then timed in turns."""
    for arm in arms:
        prefill.verify(arm.plan)
    names = [arm.name if arm.draw is None else f"{arm.name}#{arm.draw}" for arm in arms]
    times = time_interleaved(prefill, {name: arm.plan for name, arm in zip(names, arms, strict=True)}, rounds)
    dense = times[names[0]]
    share = prefill.attention_share(arms[0].plan)
    n = prepared.token_map.length
    rows = []
    for name, arm in zip(names[1:], arms[1:], strict=True):
        ideal = ideal_speedup(arm.plan, n)
        bound = amdahl_bound(share, ideal)
        dense_ms, ms = median_iqr(dense)[0], median_iqr(times[name])[0]
        speedup = dense_ms / ms
        rows.append(
            {
                "what": "prefill",
                "device": str(wrapper.model.device),
                "dtype": str(wrapper.model.dtype).removeprefix("torch."),
                "impl": prefill.impl,
                "heads": f"{name.removeprefix('hybrid:')} ({len(arm.plan.full)} of {arm.plan.shape.size})",
                "window": arm.plan.window,
                "sink": arm.plan.sink,
                "tokens": n,
                "dense_ms": dense_ms,
                "ms": ms,
                "speedup": speedup,
                "ideal": _finite(ideal),
                "amdahl": _finite(bound),
                "share_of_ideal": _finite(speedup / bound),
                "spread": median_iqr([d / m for d, m in zip(dense, times[name], strict=True)])[1],
                "compile_ms": 0.0,
                "attention_share": share,
                "vision_ms": prefill.vision_ms,
                "rounds": rounds,
            }
        )
    return rows


def render(rows: Sequence[Row], about: dict[str, Any], note: str | None) -> str:
    """The table, with what it was measured on above and how to read it below."""
    columns: list[tuple[str, Callable[[Row], object]]] = [
        ("tokens", lambda r: r["tokens"]),
        ("heads full", lambda r: r["heads"]),
        ("window+sink", lambda r: f"{r['window']}+{r['sink']}"),
        ("dense ms", lambda r: f"{r['dense_ms']:.1f}"),
        ("hybrid ms", lambda r: f"{r['ms']:.1f}"),
        ("speed-up", lambda r: f"{r['speedup']:.2f}x" + (" NOT FASTER" if r["speedup"] <= 1 else "")),
        ("IQR", lambda r: f"{r['spread']:.2f}"),
        ("ideal attention", lambda r: _times(r["ideal"])),
        ("Amdahl bound", lambda r: _times(r["amdahl"])),
        ("of bound", lambda r: "-" if r["share_of_ideal"] is None else f"{r['share_of_ideal']:.0%}"),
        ("attention share", lambda r: f"{r['attention_share']:.0%}"),
        ("vision ms", lambda r: f"{r['vision_ms']:.1f}"),
    ]
    lines = [f"prefill of the language model on {about['device']}, {about['threads']} threads, {about['dtype']}"]
    if rows:
        cells = [[cell(row) for _, cell in columns] for row in rows]
        lines.append(tabulate(cells, headers=[name for name, _ in columns], disable_numparse=True))
        lines.append(
            "medians of interleaved passes; IQR of the paired speed-ups. Ideal: dense over visible pairs. "
            "Amdahl bound: prefill with attention at its ideal, from attention's share of the dense pass."
        )
    if note:
        lines.append(note)
    return "\n".join(lines)


def prompt_of(wrapper: ModelWrapper, tokens: int, folder: Path) -> Prepared:
    """A prompt of about `tokens` tokens, by the model's real processor: noise pictures and a short question.

    How many tokens a picture takes is measured on the processor, not assumed. Pictures are written to `folder`.
    """
    one, two = (_prepared(wrapper, [SIDE] * count, folder).token_map.length for count in (1, 2))
    per_picture = two - one
    rest = tokens - (one - per_picture)
    whole, left = divmod(max(rest, 0), per_picture)
    rows = round(SIDE * left / per_picture / 32) * 32  # the last picture is cut to what is missing
    heights = [SIDE] * whole + ([rows] if rows else [])
    return _prepared(wrapper, heights or [64], folder)


def _prepared(wrapper: ModelWrapper, heights: Sequence[int], folder: Path) -> Prepared:
    media = []
    for height in heights:
        path = folder / f"noise{height}.png"
        if not path.exists():
            noise = np.random.default_rng(height).integers(0, 255, (height, SIDE, 3), dtype=np.uint8)
            Image.fromarray(noise).save(path)
        media.append(Media(kind="image", path=str(path)))
    sample = Sample(
        task="speed",
        id=f"{len(heights)} pictures",
        cluster="noise",
        media=tuple(media),
        prompt=_QUESTION,
        question=_QUESTION,
        target=None,
    )
    return wrapper.prepare(sample)


def _scores(heads: str, wrapper: ModelWrapper, seed: int) -> tuple[HeadScores, str]:
    """The head table and where it came from. Speed hardly depends on which heads are full, so random ones may do."""
    found = resolve(heads, checkpoint_hash=wrapper.checkpoint_hash, shape=wrapper.shape)
    if found is not None:
        scores, meta = found
        return scores, meta.where + (f" ({meta.note})" if meta.note else "")
    return _random_scores(wrapper.shape, seed), f"random (seed {seed}): no head table of this checkpoint was found"


def _random_scores(shape: HeadShape, seed: int) -> HeadScores:
    grid = np.random.default_rng(seed).random((shape.n_layers, shape.n_heads))
    blank = np.full_like(grid, np.nan)
    return HeadScores(ram=grid, stderr=blank, chance=np.zeros_like(grid), sink_corrected=blank, n=1)


def _check_writable(json_path: str | None) -> None:
    """A long sweep must not end on a path that cannot be written."""
    if json_path is None:
        return
    path = Path(json_path)
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"--json {json_path}: expected a file in a writable folder")


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def _times(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:.2f}x"
