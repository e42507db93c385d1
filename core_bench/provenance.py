"""What a result was made with: command, versions, device, commit, and fingerprints of the data."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core_bench.config import RunConfig
from core_bench.schema import PAGE_DPI, Sample
from core_bench.tasksource import REVISION
from core_bench.taskspec import FailedSample, TaskSpec

if TYPE_CHECKING:
    from core_bench.model_wrappers.base import ModelWrapper
    from core_bench.randomweights import RandomModel

_PACKAGES = ("core-bench", "torch", "transformers", "triton", "av", "pillow", "numpy")
_HEAD_BYTES = 65536
_MISSING = "missing"


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


def device_name(wrapper: ModelWrapper | RandomModel) -> str:
    """Kind of the model's device, and which one of that kind."""
    import torch

    device = wrapper.model.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else (platform.machine() or "unknown")
    return f"{device.type} ({name})"


def environment(wrapper: ModelWrapper | RandomModel, config: RunConfig) -> dict[str, Any]:
    """As `environment` of a record."""
    import torch

    from core_bench.kernels.hybrid_attention import describe

    return {
        "versions": versions(),
        "commit": _commit(),
        "device": device_name(wrapper),
        "threads": torch.get_num_threads(),
        "dtype": str(wrapper.model.dtype).removeprefix("torch."),
        "attention": describe(config.attention, wrapper.model.device),
    }


def data_digest(samples: Sequence[Sample | FailedSample]) -> str:
    """Short hash of a task's data: ids, texts, targets, evidence, and size and first 64 KiB of every media file and of
    the subtitles."""
    digest = hashlib.sha256()
    marks = _Marks()
    for sample in samples:
        digest.update(repr((sample.id, sample.cluster)).encode())
        if isinstance(sample, FailedSample):
            continue
        texts = (sample.prompt, sample.question, sample.phrase, sample.system, sample.prime)
        digest.update(repr((sample.target, sample.choices, sample.evidence)).encode())
        digest.update(repr(texts).encode())
        digest.update(repr(_columns(sample.doc)).encode())
        for medium in sample.media:
            digest.update(repr((marks[medium.path], medium.kind, medium.page, medium.span, medium.frames)).encode())
            if medium.dpi != PAGE_DPI:
                digest.update(repr(medium.dpi).encode())
            if medium.subtitles is not None:
                digest.update(marks[medium.subtitles].encode())
    return digest.hexdigest()[:16]


def sources(tasks: Sequence[tuple[TaskSpec, Sequence[Sample | FailedSample]]]) -> dict[str, dict[str, Any]]:
    """Settings: the hub's commit of each task that was read from there, and the dots per inch of each that shows pages
    of PDF files; absent where there is none."""
    good = [(spec, sample) for spec, samples in tasks for sample in samples if isinstance(sample, Sample)]
    found = {
        "revisions": {spec.name: sample.doc[REVISION] for spec, sample in good if REVISION in sample.doc},
        "dpi": {spec.name: spec.dpi for spec, sample in good if any(m.kind == "page" for m in sample.media)},
    }
    return {name: values for name, values in found.items() if values}


def media_marks(samples: Iterable[Sample | FailedSample]) -> dict[str, tuple[str, ...]]:
    """Sample id -> content marks of its picture, video and document files, whatever they are called.

    Two files with one mark have the same size and the same first 64 KiB. A file that cannot be read has none.
    """
    marks = _Marks()
    found = {}
    for sample in samples:
        paths = [medium.path for medium in sample.media] if isinstance(sample, Sample) else []
        found[sample.id] = tuple(sorted({marks[path] for path in paths} - {_MISSING}))
    return found


def _columns(doc: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a task's own scoring may read of a row, without paths of this machine."""
    cells = ((name, json.dumps(value, sort_keys=True, default=str)) for name, value in doc.items())
    return sorted((name, cell) for name, cell in cells if not cell.startswith('"/'))


class _Marks(dict[str, str]):
    """Path -> mark of the file's content, each file read once."""

    def __missing__(self, name: str) -> str:
        path = Path(name)
        try:
            with path.open("rb") as file:
                head = hashlib.sha256(f"{path.stat().st_size} ".encode() + file.read(_HEAD_BYTES))
            self[name] = head.hexdigest()[:16]
        except (OSError, ValueError):  # ValueError: a name that no file can have
            self[name] = _MISSING
        return self[name]


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
