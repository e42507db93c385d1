"""`python -m core_bench speed`: hybrid beside dense, for one layer's attention, for prefill, and for measuring RAM."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from core_bench.arms import make_arms
from core_bench.checkpoints import checkpoint_label, load_wrapper, resolve_device, window_and_sink
from core_bench.config import ATTENTIONS, DEFAULT_SINK, DEFAULT_WINDOW, RunConfig, one_of
from core_bench.errors import UserError
from core_bench.heads import HeadScores, HeadShape
from core_bench.headtables import resolve
from core_bench.kernels.hybrid_attention import available, check_impl
from core_bench.model_wrappers.base import ModelWrapper
from core_bench.provenance import environment, versions
from core_bench.randomweights import RandomModel, build_random, is_random, sizes_of
from core_bench.speed_attention import AttentionShape, mixes_of, parse_shape, sweep_attention
from core_bench.speed_prefill import READING, sweep
from core_bench.speed_prefill import columns as prefill_columns
from core_bench.speed_ram import columns as ram_columns
from core_bench.speed_ram import sweep_ram
from core_bench.speedrows import (
    Column,
    Row,
    break_even,
    check_writable,
    compile_cell,
    ideal_cell,
    render,
    share_cell,
    speedup_cell,
    write_rows,
)

TOKENS = {"attention": (256, 512, 1024, 2048, 4096, 8192, 16384), "prefill": (4096, 16384), "ram": (8192,)}


def run_speed(
    *,
    what: str,
    model: str,
    checkpoint: str | None,
    tokens: tuple[int, ...] | None,
    keep: str,
    heads: str,
    window: int | None,
    sink: int | None,
    device: str,
    dtype: str | None,
    attention: str,
    shape: str | None,
    budget_s: float,
    json_path: str | None,
    seed: int,
) -> int:
    """Measures, prints a table, writes `json_path` if given; returns the exit code 0.

    `tokens`: lengths; default by kind. `attention`: implementations, separated by commas, or "all" that can run here.
    `shape`: heads of the layer that "attention" times. `heads`: a head table, or "auto"; where none is found, seeded
    random heads stand in, and the output says so. `budget_s`: seconds that one dense pass may take; longer prompts are
    left out. UserError otherwise.
    """
    check_writable(json_path)
    device = resolve_device(device)
    impls = implementations(attention, device)
    config = RunConfig(
        model=model,
        mode="hybrid",
        checkpoint=checkpoint,
        keep=keep,
        heads=heads,
        window=window,
        sink=sink,
        device=device,
        dtype=dtype or ("bfloat16" if device.startswith("cuda") else "float32"),
        attention=impls[0],
        seed=seed,
    )
    tokens = tokens or TOKENS[what]
    if what == "attention":
        return _attention(config, shape, impls, tokens, budget_s, json_path)
    if shape is not None:
        raise UserError(f"--shape {shape}: expected with --what attention only; --checkpoint random:NAME names sizes")
    print(f"checkpoint {checkpoint_label(config)}" + (" (--checkpoint names a real one)" if config.bundled else ""))
    wrapper = _load(config)
    about = environment(wrapper, config) | {"attention": ",".join(impls)}
    run = {"checkpoint": checkpoint_label(config), "checkpoint_hash": wrapper.checkpoint_hash, "seed": seed}
    if what == "ram":
        rows, notes = sweep_ram(wrapper, tokens, budget_s=budget_s)
        print(render(_title("attention mass beside a prefill", about), rows, ram_columns(), notes))
    else:
        scores, where = _scores(heads, wrapper, seed)
        run["heads"] = where
        arms = make_arms(config, scores, wrapper.shape, *window_and_sink(config, wrapper.checkpoint_hash))
        print(f"heads {where}")
        rows, notes = sweep(wrapper, arms, tokens, budget_s=budget_s, attention=impls)
        reading = [READING] if rows else []
        print(render(_title("prefill of the language model", about), rows, prefill_columns(), reading + notes))
    write_rows(json_path, environment=about, run=run, rows=rows, note="; ".join(notes) or None)
    return 0


def implementations(attention: str, device: str) -> list[str]:
    """The implementations that --attention names; "all" are auto and those that can run here, without the oracle."""
    if attention == "all":
        return ["auto", *(name for name in available(device) if name != "reference")]
    names = [name.strip() for name in attention.split(",")]
    for name in names:
        one_of("--attention", name, (*ATTENTIONS, "all"))
        try:
            check_impl(name, device)
        except RuntimeError as error:
            raise UserError(f"--attention {name}: {error}") from error
    return list(dict.fromkeys(names))


def _attention(
    config: RunConfig,
    shape_text: str | None,
    impls: Sequence[str],
    tokens: tuple[int, ...],
    budget_s: float,
    json_path: str | None,
) -> int:
    shape = _layer_shape(config, shape_text)
    rows, notes = sweep_attention(
        shape,
        mixes_of(config.hybrid_arms(), shape.heads, config.seed),
        impls,
        tokens,
        window=config.window or DEFAULT_WINDOW,
        sink=DEFAULT_SINK if config.sink is None else config.sink,
        device=config.device,
        dtype=str(config.dtype),
        budget_s=budget_s,
        seed=config.seed,
    )
    device = torch.device(config.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    about = {
        "versions": versions(),
        "device": f"{device.type} ({name})",
        "threads": torch.get_num_threads(),
        "dtype": config.dtype,
        "attention": ",".join(impls),
    }
    even = break_even(rows)
    notes = [f"break-even, {heads}, {impl}: {_length(even[heads, impl])}" for heads, impl in even] + notes
    reading = "medians of interleaved calls; ideal: dense over visible (query, key) pairs; best dense attention named"
    title = _title(
        f"attention of one layer, {shape.heads} query / {shape.kv_heads} KV heads of {shape.head_size}", about
    )
    print(render(title, rows, _attention_columns(), [reading, *notes] if rows else notes))
    run = {"shape": str(shape), "seed": config.seed}
    write_rows(json_path, environment=about, run=run, rows=rows, note="; ".join(notes) or None)
    return 0


def _layer_shape(config: RunConfig, text: str | None) -> AttentionShape:
    """--shape, else the sizes of a random checkpoint, else 32/8x128 on CUDA and 8/2x64 elsewhere."""
    if text is not None:
        return parse_shape(text)
    if config.checkpoint is not None and is_random(config.checkpoint):
        sizes, _ = sizes_of(config.checkpoint)
        return AttentionShape(sizes.heads, sizes.kv_heads, sizes.head_size)
    if config.checkpoint is not None:
        raise UserError("--checkpoint: expected random:NAME, or --shape instead, with --what attention")
    return parse_shape("32/8x128" if config.device.startswith("cuda") else "8/2x64")


def _load(config: RunConfig) -> ModelWrapper | RandomModel:
    if config.checkpoint is not None and is_random(config.checkpoint):
        return build_random(config.checkpoint, device=config.device, dtype=str(config.dtype), seed=config.seed)
    return load_wrapper(config)


def _attention_columns() -> list[Column]:
    return [
        ("tokens", lambda r: r["tokens"]),
        ("heads full", lambda r: r["heads"]),
        ("window+sink", lambda r: f"{r['window']}+{r['sink']}"),
        ("impl", lambda r: r["impl"] if r["impl"] == r["chosen"] else f"{r['impl']}: {r['chosen']}"),
        ("best dense", lambda r: r["dense_impl"]),
        ("dense ms", lambda r: f"{r['dense_ms']:.2f}"),
        ("hybrid ms", lambda r: f"{r['ms']:.2f}"),
        ("speed-up", speedup_cell),
        ("IQR", lambda r: f"{r['spread']:.2f}"),
        ("ideal", ideal_cell),
        ("of ideal", share_cell),
        ("compile", compile_cell),
    ]


def _title(what: str, about: dict[str, Any]) -> str:
    return f"{what} on {about['device']}, {about['threads']} threads, {about['dtype']}"


def _length(tokens: int | None) -> str:
    return "not reached" if tokens is None else f"{tokens} tokens"


def _scores(heads: str, wrapper: ModelWrapper | RandomModel, seed: int) -> tuple[HeadScores, str]:
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


__all__ = ["Row", "implementations", "run_speed"]
