"""Puts a trained checkpoint into the package and writes down what is known of it in MANIFEST.json.

`python -m core_bench.bundled.release --family qwen3vl --training OUT` copies what `core_bench.bundled.train` left in
OUT; after the runs of `make run` on it, `--runs runs/demo` adds their head table and figures.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from core_bench.bundled.architectures import FAMILIES
from core_bench.bundled.claims import claims
from core_bench.checkpoints import MANIFEST, manifest
from core_bench.errors import UserError
from core_bench.headtables import SIDECAR, TABLE
from core_bench.model_wrappers.loading import content_hash
from core_bench.provenance import versions
from core_bench.runfolder import load_record, write_json

WINDOW, SINK = 64, 4  # tokens; a tenth of the shortest prompt of the long split is 104
MAX_BYTES = 8 * 2**20
_TRAINING = "training.json"


def install(family: str, training: Path) -> dict[str, Any]:
    """Copy the checkpoint and return its manifest entry, still without figures. UserError if something is missing."""
    source, folder = training / "checkpoint", MANIFEST.parent / family
    if not (source / _TRAINING).is_file():
        raise UserError(f"--training {training}: expected a finished training with checkpoint/{_TRAINING}")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(_TRAINING))
    for path in folder.iterdir():
        path.chmod(0o644)
    record = json.loads((source / _TRAINING).read_text(encoding="utf-8"))
    recipe = record["recipe"]
    return {
        "checkpoint_hash": content_hash(str(folder), None),
        "window": WINDOW,
        "sink": SINK,
        "command": f"python -m core_bench.bundled.train --family {family} --seed {recipe['seed']} --out OUT",
        "seed": recipe["seed"],
        "recipe": recipe,
        "versions": versions(),
        "log": record["log"],
        "files": file_hashes(folder),
        "figures": {},
    }


def add_runs(family: str, entry: dict[str, Any], runs: Path) -> dict[str, Any]:
    """The entry with the head table and the figures of the runs in `runs`, which must be of this very checkpoint."""
    records = {mode: load_record(runs / mode / "record.json") for mode in ("detect", "ablate", "hybrid")}
    for mode, record in records.items():
        if record["run"]["checkpoint_hash"] != entry["checkpoint_hash"] or not record["run"]["complete"]:
            raise UserError(f"{runs / mode}: expected a finished run of checkpoint {entry['checkpoint_hash']}")
    folder = MANIFEST.parent / family
    for path in [*(runs / "detect").glob("heads.*.tsv"), runs / "detect" / TABLE, runs / "detect" / SIDECAR]:
        shutil.copyfile(path, folder / path.name)
    figures: dict[str, dict[str, str]] = {}
    for claim in claims(records["ablate"], records["hybrid"]):
        figures.setdefault(claim.task, {})[claim.text] = claim.measured
    return {**entry, "files": file_hashes(folder), "figures": figures}


def file_hashes(folder: Path) -> dict[str, str]:
    """Name -> sha256 of every file; UserError if they are larger than the package may carry."""
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    size = sum(path.stat().st_size for path in paths)
    if size > MAX_BYTES:
        raise UserError(f"{folder.name}: a bundled checkpoint may have {MAX_BYTES} bytes, this one has {size}")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m core_bench.bundled.release", description=__doc__)
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--training", type=Path, help="OUT of core_bench.bundled.train")
    parser.add_argument("--runs", type=Path, help="folder with detect/, ablate/ and hybrid/")
    args = parser.parse_args()
    entries = manifest()
    try:
        if args.training is not None:
            entries[args.family] = install(args.family, args.training)
        if args.runs is not None:
            if args.family not in entries:
                raise UserError(f"--family {args.family}: no checkpoint is bundled: expected --training first")
            entries[args.family] = add_runs(args.family, entries[args.family], args.runs)
    except UserError as error:
        print(f"release: error: {error}", file=sys.stderr)
        return 2
    write_json(MANIFEST, entries)
    return 0


if __name__ == "__main__":
    sys.exit(main())
