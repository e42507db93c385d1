"""Writes the generated data sets as real files in the datasets' own schemas, seeded and cached.

`ensure("refcocog", "eval")` returns the folder of one split. What is in it, each data set's module says:
`core_bench.bundled.pictures` and its siblings.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from core_bench.bundled import documents, pictures, tubes, videos
from core_bench.bundled.dataset import Dataset
from core_bench.errors import UserError
from core_bench.headtables import cache_dir

GENERATOR_VERSION = 2  # of all content: another one gives other folders
DATASETS: dict[str, Dataset] = {
    **pictures.DATASETS,
    **tubes.DATASETS,
    **documents.DATASETS,
    **videos.DATASETS,
}
SIZES = range(64, 65_537)  # tokens of a prompt that can be asked for
_SEED_STEP = 1_000_000  # above every size and every seed of a split: no two sizes share a seed


def ensure(dataset: str, split: str, root: Path | None = None) -> Path:
    """The folder of one split, written on first use.

    `split`: a name, or "eval@4096" for that split's content anew with media such that a prompt of the bundled model
    has about 4,096 tokens; no picture, clip or document is in both. "eval@4096:8" is the first 8 items of that: long
    media take time to write. `root`: where generated data lives; default is the
    user's cache folder. A folder is complete or absent: it is written beside its place and moved there. Raises
    UserError for an unknown data set or split, a size that cannot be made, and for a root that cannot be written.
    """
    if dataset not in DATASETS:
        raise UserError(f"generated data set {dataset!r}: expected one of {', '.join(DATASETS)}")
    spec = _spec(dataset, split)
    settings = json.dumps([GENERATOR_VERSION, dataset, split, asdict(spec)])
    whole = split.partition(":")[0]  # the first items of a split are called what they are called in it
    name = f"{whole}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"
    folder = (root or cache_dir() / "data") / f"core_{dataset}_tiny" / name
    if not folder.exists():
        try:
            _write(folder, dataset, whole, spec)
        except OSError as error:
            raise UserError(f"{folder}: generated data cannot be written: {error.strerror or error}") from error
    return folder


def _spec(dataset: str, split: str) -> Any:
    """What the content of a split depends on."""
    name, at, size = split.partition("@")
    splits = DATASETS[dataset].splits
    if name not in splits:
        raise UserError(f"split {split!r} of generated {dataset}: expected one of {', '.join(splits)}")
    if not at:
        return splits[name]
    found = re.fullmatch("([1-9][0-9]{0,6})(?::([1-9][0-9]{0,6}))?", size)
    if found is None or int(found[1]) not in SIZES:
        expected = f"{name}@TOKENS with {SIZES.start} to {SIZES.stop - 1} tokens, or {name}@TOKENS:ITEMS"
        raise UserError(f"split {split!r} of generated {dataset}: expected {expected}")
    tokens, n = int(found[1]), int(found[2] or splits[name].n)
    spec = DATASETS[dataset].sized(splits[name], tokens)
    return replace(spec, n=n, seed=splits[name].seed * _SEED_STEP + tokens)


def _write(folder: Path, dataset: str, split: str, spec: Any) -> None:
    draft = folder.with_name(f"{folder.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    shutil.rmtree(draft, ignore_errors=True)  # what a killed process of the same number left
    draft.mkdir(parents=True)
    try:
        DATASETS[dataset].write(draft, split, spec)
        draft.rename(folder)
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        if not (isinstance(error, OSError) and folder.exists()):  # else another finished first: its bytes are the same
            raise
