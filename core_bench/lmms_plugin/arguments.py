"""`--model_args` of lmms-eval as the configuration of a run: names and values are those of our command line's flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core_bench.config import RunConfig, one_of
from core_bench.errors import UserError
from core_bench.registry import suggestion

MODES = ("dense", "ablate", "hybrid")
# lmms-eval turns a value such as `5` into a number; these are texts all the same.
_TEXTS = ("checkpoint", "revision", "heads", "keep", "ablate", "off", "hold", "query", "device", "dtype", "attention")
ARGUMENTS = (
    "mode", *_TEXTS, "window", "sink", "overlap", "frames", "fps", "max_pixels", "seed", "allow_overlap", "data_dir",
)  # fmt: skip


def run_config(family: str, arguments: Mapping[str, Any]) -> RunConfig:
    """The configuration that model arguments mean, with one head plan.

    Raises UserError for an argument that is unknown, wrong, or not read in the mode, and for several arms: lmms-eval
    scores one model a run.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    for name in given:
        if name not in ARGUMENTS:
            hint = suggestion(name, ARGUMENTS) or f" (known: {', '.join(ARGUMENTS)})"
            raise UserError(f"model_args: unknown argument {name!r}{hint}")
    given |= {name: str(given[name]) for name in _TEXTS if name in given}
    mode = given.pop("mode", "dense")
    one_of("model_args: mode", mode, MODES)
    if mode == "ablate" and "ablate" not in given:
        raise UserError("model_args: mode=ablate: expected ablate=top:5% or another set of heads, got none")
    config = RunConfig(model=family, mode=mode, **given)
    if unread := config.unread(set(given)):
        raise UserError(f"model_args: {', '.join(unread)}: not read in mode={mode}")
    _one_plan(config)
    return config


def _one_plan(config: RunConfig) -> None:
    if config.mode == "dense":
        return
    argument, arms = ("keep", config.hybrid_arms()) if config.mode == "hybrid" else ("ablate", config.ablate_arms())
    if len(arms) != 1 or any(arm.kind == "random" for arm in arms.values()):
        raise UserError(
            f"model_args: {argument}: expected one set of heads, got {', '.join(arms)} (python -m core_bench runs "
            "several side by side, and the draws of random ones)"
        )
