"""What one run is asked to do: `RunConfig`, frozen, checked before anything heavy loads.

Nothing here imports torch, numpy or yaml at import time.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core_bench.errors import UserError
from core_bench.registry import MODELS, known_models, suggestion

if TYPE_CHECKING:
    from core_bench.heads import ArmSpec

MODES = ("dense", "detect", "ablate", "hybrid")
OFF_KINDS = ("zero", "blind")
HOLDS = ("prefill", "always")
QUERIES = ("question", "phrase", "last")
DTYPES = ("float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda", "mps", "xpu")
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")  # accelerate's
ATTENTIONS = ("auto", "sdpa", "flex", "triton", "reference")
DEFAULT_WINDOW, DEFAULT_SINK = 1024, 64  # tokens, for a checkpoint that records none

# Fields that say where to write and how to end, not what is measured.
_NOT_SETTINGS = {"out", "strict"}
# Detection counts in every mode that ranks heads: with `--heads auto` it may run first.
_DETECT = {"query", "overlap"}
_ONLY_IN = {
    "detect": _DETECT,
    "ablate": _DETECT | {"heads", "ablate", "off", "hold", "allow_overlap"},
    "hybrid": _DETECT | {"heads", "keep", "window", "sink", "hold", "allow_overlap"},
    "dense": {"heads"},  # by which tasks such as core_mmdocir rank
}
_MODE_BOUND = set[str]().union(*_ONLY_IN.values())


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The flags of `python -m core_bench`, one field each; UserError from the constructor for a bad value.

    None means: the bundled checkpoint (`checkpoint`), the mode's default tasks (`tasks`), the task's own limit
    (`max_new_tokens`), always for ablate and prefill for hybrid (`hold`), float32 on a CPU and bfloat16 on CUDA
    (`dtype`), the value recorded with the checkpoint, else 1024 and 64 tokens (`window`, `sink`). `device` "auto" is
    CUDA where there is one; `device_map` spreads the layers over all devices instead. `prefill_chunk` None reads a
    prompt at once. `overlap` is a share of a cell's area in [0, 1). `seed` draws random controls and placebos.
    """

    model: str
    mode: str
    checkpoint: str | None = None
    revision: str | None = None
    tasks: tuple[str, ...] | None = None
    data_dir: str | None = None
    heads: str = "auto"
    keep: str = "10%"
    ablate: str = "top:5%,bottom:5%,random:5%"
    window: int | None = None
    sink: int | None = None
    off: str = "zero"
    hold: str | None = None
    query: str = "question"
    overlap: float = 0.0
    frames: int | None = None
    fps: float | None = None
    max_pixels: int | None = None
    prefill_chunk: int | None = None
    max_new_tokens: int | None = None
    limit: int | None = None
    seed: int = 0
    device: str = "auto"
    device_map: str | None = None
    dtype: str | None = None
    attention: str = "auto"
    out: str | None = None
    strict: bool = False
    allow_overlap: bool = False

    def __post_init__(self) -> None:
        one_of("--model", self.model, MODELS if self.model in MODELS else known_models())
        one_of("--mode", self.mode, MODES)
        one_of("--off", self.off, OFF_KINDS)
        one_of("--hold", self.hold, HOLDS)
        one_of("--query", self.query, QUERIES)
        one_of("--dtype", self.dtype, DTYPES)
        one_of("--attention", self.attention, ATTENTIONS)
        one_of("--device-map", self.device_map, DEVICE_MAPS)
        if self.device_map is not None and self.device != "auto":
            raise UserError(f"--device and --device-map: expected one of them, got {self.device} and {self.device_map}")
        one_of("--device", re.sub(r":[0-9]+$", "", self.device), DEVICES)
        for flag in ("window", "frames", "max_pixels", "prefill_chunk", "max_new_tokens", "limit"):
            _whole(f"--{flag.replace('_', '-')}", getattr(self, flag), least=1)
        for flag in ("sink", "seed"):
            _whole(f"--{flag}", getattr(self, flag), least=0)
        if not (_is_number(self.overlap) and 0 <= self.overlap < 1):
            raise UserError(f"--overlap: expected a share of a cell in [0, 1), got {self.overlap!r}")
        if self.fps is not None and not (_is_number(self.fps) and self.fps > 0):
            raise UserError(f"--fps: expected frames per second above 0, got {self.fps!r}")
        if self.fps is not None and self.frames is not None:
            raise UserError(f"--frames and --fps: expected one of them, got {self.frames} and {self.fps}")
        if self.revision is not None and self.checkpoint is None:
            raise UserError(f"--revision: expected together with --checkpoint, got {self.revision!r} alone")
        self._check_names()
        self._check_files()

    def _check_names(self) -> None:
        for flag in ("checkpoint", "revision", "data_dir", "heads", "device", "out"):
            if getattr(self, flag) == "":
                raise UserError(f"--{flag.replace('_', '-')}: expected a value, got an empty one")
        if self.tasks is not None:
            if isinstance(self.tasks, str):
                raise UserError(f"tasks: expected a tuple of names, got the string {self.tasks!r}")
            if not self.tasks or not all(self.tasks):
                raise UserError(f"--tasks: expected names or files separated by commas, got {','.join(self.tasks)!r}")
            twice = sorted({name for name in self.tasks if self.tasks.count(name) > 1})
            if twice:
                raise UserError(f"--tasks: {twice[0]} is given more than once")

    def _check_files(self) -> None:
        if self.heads != "auto" and not Path(self.heads).exists():
            raise UserError(f"--heads: expected auto or a heads.tsv file, got {self.heads!r} (no such file)")
        if self.data_dir is not None and Path(self.data_dir).exists() and not Path(self.data_dir).is_dir():
            raise UserError(f"--data-dir: expected a folder, got the file {self.data_dir!r}")
        for flag, arms in (("--keep", self.hybrid_arms()), ("--ablate", self.ablate_arms())):
            for arm in arms.values():
                if arm.kind == "file" and not Path(arm.amount).is_file():
                    raise UserError(f"{flag}: expected a head list, got {arm.amount!r} (no such file)")

    def hybrid_arms(self) -> dict[str, ArmSpec]:
        """Arm name as recorded -> the heads it keeps full; `10%` (hybrid:10%) is the top 10%."""
        from core_bench.heads import parse_arms

        arms = parse_arms(self.keep, "--keep")
        return {f"hybrid:{arm.amount if arm.kind == 'top' else arm.name}": arm for arm in arms}

    def ablate_arms(self) -> dict[str, ArmSpec]:
        """Arm name as recorded -> the heads it silences; `5%` is the top 5%."""
        from core_bench.heads import parse_arms

        return {arm.name: arm for arm in parse_arms(self.ablate, "--ablate")}

    @property
    def bundled(self) -> bool:
        """Whether the run uses the family's bundled checkpoint."""
        return self.checkpoint is None

    @property
    def hold_or_default(self) -> str:
        return self.hold or ("always" if self.mode == "ablate" else "prefill")

    def settings(self) -> dict[str, Any]:
        """What decides the result, JSON-ready: one OUT holds one such set.

        Left out: `out`, `strict`, and flags that the mode does not read, so that they neither split nor block a
        resume. Device, dtype and attention stay in: they move rounding and times, which one record must not mix.
        """
        unread = _NOT_SETTINGS | (_MODE_BOUND - _ONLY_IN[self.mode])
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in unread}
        if "hold" in values:
            values["hold"] = self.hold_or_default
        if self.tasks is not None:
            values["tasks"] = list(self.tasks)
        return values

    def unread(self, given: set[str]) -> list[str]:
        """Those of the `given` fields that this mode does not read."""
        return sorted(given & (_MODE_BOUND - _ONLY_IN[self.mode]))

    def settings_hash(self) -> str:
        import hashlib  # here, not above: `--help` does without them
        import json

        text = json.dumps(self.settings(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def default_out(self) -> Path:
        """runs/<model>-<mode>-<short hash of the settings>"""
        return Path("runs") / f"{self.model}-{self.mode}-{self.settings_hash()}"

    def out_dir(self) -> Path:
        return Path(os.path.expanduser(self.out)) if self.out is not None else self.default_out()


def one_of(argument: str, value: str | None, known: Collection[str]) -> None:
    """UserError unless `value` is None or one of `known`."""
    if value is not None and value not in known:
        raise UserError(f"{argument}: expected one of {', '.join(known)}, got {value!r}{suggestion(value, known)}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(argument: str, value: object, least: int) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise UserError(f"{argument}: expected a whole number of at least {least}, got {value!r}")
