"""What a result was made with: command, versions, device, commit, and fingerprints of the data."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core_bench.config import RunConfig
from core_bench.schema import Media, Sample
from core_bench.taskspec import FailedSample

if TYPE_CHECKING:
    from core_bench.model_wrappers.base import ModelWrapper
    from core_bench.randomweights import RandomModel

_PACKAGES = ("core-bench", "torch", "transformers", "triton", "av", "pillow", "numpy")
_HEAD_BYTES = 65536


def command_of(config: RunConfig) -> str:
    """The command line that gives this config's results; where to write and how to end are left out."""
    words = ["python", "-m", "core_bench"]
    for field in fields(config):
        value = getattr(config, field.name)
        default = None if field.default is MISSING else field.default
        if field.name in ("out", "strict") or value == default:
            continue
        words.append(f"--{field.name.replace('_', '-')}")
        if value is not True:
            words.append(",".join(value) if isinstance(value, tuple) else str(value))
    return shlex.join(words)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that move results; packages that are not installed are left out."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def environment(wrapper: ModelWrapper | RandomModel, config: RunConfig) -> dict[str, Any]:
    """As `environment` of a record."""
    import torch

    from core_bench.kernels.hybrid_attention import describe

    device = wrapper.model.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else (platform.machine() or "unknown")
    return {
        "versions": versions(),
        "commit": _commit(),
        "device": f"{device.type} ({name})",
        "threads": torch.get_num_threads(),
        "dtype": str(wrapper.model.dtype).removeprefix("torch."),
        "attention": describe(config.attention, device),
    }


def data_digest(samples: Sequence[Sample | FailedSample]) -> str:
    """Short hash of a task's data: ids, texts, targets, evidence, and size and first 64 KiB of every media file."""
    digest = hashlib.sha256()
    seen: dict[str, str] = {}
    for sample in samples:
        digest.update(repr((sample.id, sample.cluster)).encode())
        if isinstance(sample, FailedSample):
            continue
        texts = (sample.prompt, sample.question, sample.phrase, sample.system, sample.prime)
        digest.update(repr((sample.target, sample.choices, sample.evidence)).encode())
        digest.update(repr(texts).encode())
        digest.update(repr(_columns(sample.doc)).encode())
        for medium in sample.media:
            if medium.path not in seen:
                seen[medium.path] = _file_mark(medium)
            digest.update(repr((seen[medium.path], medium.kind, medium.page, medium.span)).encode())
    return digest.hexdigest()[:16]


def _columns(doc: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a task's own scoring may read of a row, without paths of this machine."""
    cells = ((name, json.dumps(value, sort_keys=True, default=str)) for name, value in doc.items())
    return sorted((name, cell) for name, cell in cells if not cell.startswith('"/'))


def _file_mark(medium: Media) -> str:
    path = Path(medium.path)
    try:
        with path.open("rb") as file:
            head = hashlib.sha256(file.read(_HEAD_BYTES)).hexdigest()
        return f"{path.stat().st_size} {head}"
    except OSError:
        return "missing"


def _commit() -> str | None:
    """The commit of the source tree this package is run from; None for an installed wheel or without git."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
