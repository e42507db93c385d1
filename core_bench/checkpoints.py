"""Which checkpoint a run uses, and what is recorded with the bundled ones (core_bench/bundled/MANIFEST.json)."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core_bench.config import DEFAULT_SINK, DEFAULT_WINDOW, RunConfig
from core_bench.errors import UserError
from core_bench.registry import bundled_checkpoint, model_class
from core_bench.team import this_team

if TYPE_CHECKING:
    from core_bench.model_wrappers.base import ModelWrapper

MANIFEST = Path(__file__).resolve().parent / "bundled" / "MANIFEST.json"


def manifest() -> dict[str, Any]:
    """Family -> what is known of its bundled checkpoint; {} where none is bundled."""
    if not MANIFEST.is_file():
        return {}
    entries: dict[str, Any] = json.loads(MANIFEST.read_text(encoding="utf-8"))
    return entries


def resolve_device(device: str) -> str:
    """ "auto" is CUDA where there is one, else the CPU; each process of a team has a GPU of its own while there are."""
    if device != "auto":
        return device
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    team = this_team()
    return "cuda" if team.size == 1 else f"cuda:{team.local_rank % torch.cuda.device_count()}"


def load_wrapper(config: RunConfig) -> ModelWrapper:
    """The config's model, loaded. Raises UserError, in one line, for a checkpoint that cannot be."""
    device = resolve_device(config.device)
    from core_bench.kernels.hybrid_attention import check_impl

    try:
        check_impl(config.attention, device)
    except RuntimeError as error:
        raise UserError(f"--attention {config.attention}: {error}") from error
    dtype = config.dtype or ("bfloat16" if device.startswith("cuda") else "float32")
    with _quiet_unless_terminal():
        return model_class(config.model).load(
            _place(config), revision=config.revision, device=device, dtype=dtype, device_map=config.device_map
        )


def load_without_weights(config: RunConfig) -> ModelWrapper:
    """The config's model as far as preparing prompts needs it. Raises UserError as `load_wrapper` does."""
    with _quiet_unless_terminal():
        return model_class(config.model).without_weights(_place(config), revision=config.revision)


def _place(config: RunConfig) -> str:
    return config.checkpoint or str(bundled_checkpoint(config.model))


@contextlib.contextmanager
def _quiet_unless_terminal() -> Iterator[None]:
    """Without transformers' progress bars where stderr is no terminal."""
    from transformers.utils import logging

    hide = not sys.stderr.isatty() and logging.is_progress_bar_enabled()
    if hide:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if hide:
            logging.enable_progress_bar()


def checkpoint_label(config: RunConfig) -> str:
    """The checkpoint as records name it: no path of this machine for a bundled one."""
    return f"bundled:{config.model}" if config.checkpoint is None else config.checkpoint


def window_and_sink(config: RunConfig, checkpoint_hash: str) -> tuple[int, int]:
    """Tokens: the flags, else what is recorded with this checkpoint content, else 1024 and 64."""
    recorded: dict[str, Any] = next((e for e in manifest().values() if e["checkpoint_hash"] == checkpoint_hash), {})
    window = config.window if config.window is not None else recorded.get("window", DEFAULT_WINDOW)
    sink = config.sink if config.sink is not None else recorded.get("sink", DEFAULT_SINK)
    return int(window), int(sink)
