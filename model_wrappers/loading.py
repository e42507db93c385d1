"""Loading a checkpoint through transformers, with every way it can go wrong told as one line."""

from __future__ import annotations

import fnmatch
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import HFValidationError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor
from transformers.utils import cached_file

from core_bench.errors import UserError

DTYPES = ("float32", "bfloat16", "float16")
# The files that make a model what it is; notes, tables and caches in the same folder don't change its content hash.
_CONTENT = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model.bin.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "vocab.*",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "*preprocessor_config.json",
    "processor_config.json",
    "chat_template*",
)
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_LOAD_ERRORS = (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError)


def load_config(checkpoint: str, revision: str | None) -> Any:
    """The checkpoint's config; UserError when there is none, or no weights beside it in a local folder."""
    if os.path.isdir(checkpoint):
        folder = Path(checkpoint)
        if not (folder / "config.json").is_file():
            raise UserError(f"--checkpoint {checkpoint}: expected a model folder, it has no config.json")
        if not any(_matches(path.name, _WEIGHTS) for path in folder.iterdir()):
            raise UserError(f"--checkpoint {checkpoint}: expected weights (*.safetensors), the folder has none")
        return _told(
            lambda: AutoConfig.from_pretrained(checkpoint), f"--checkpoint {checkpoint}: its config cannot be read"
        )
    if os.path.isfile(checkpoint):
        raise UserError(f"--checkpoint {checkpoint}: expected a folder or a hub id, this is a file")
    if checkpoint.startswith(("/", ".", "~")) or checkpoint.count("/") > 1 or os.sep + os.sep in checkpoint:
        raise UserError(f"--checkpoint {checkpoint}: no such folder")
    tried = f"no local folder, and the Hugging Face Hub did not give it (revision {revision or 'main'})"
    return _told(
        lambda: AutoConfig.from_pretrained(checkpoint, revision=revision), f"--checkpoint {checkpoint}: {tried}"
    )


def load_model(checkpoint: str, revision: str | None, *, dtype: str, device: str, device_map: str | None) -> Any:
    """The model with all its weights, in evaluation mode, on `device` or spread by `device_map`."""
    if dtype not in DTYPES:
        raise UserError(f"--dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    if device_map is None:
        check_device(device)
    options: dict[str, Any] = {} if device_map is None else {"device_map": device_map}

    def load() -> tuple[Any, dict[str, Any]]:
        loaded: tuple[Any, dict[str, Any]] = AutoModelForImageTextToText.from_pretrained(
            checkpoint,
            revision=revision,
            dtype=getattr(torch, dtype),
            attn_implementation="sdpa",
            output_loading_info=True,
            trust_remote_code=False,
            **options,
        )
        return loaded

    model, report = _told(load, f"--checkpoint {checkpoint}: its weights cannot be loaded")
    missing = sorted(report["missing_keys"])
    if missing:  # transformers only warns, and runs on with random numbers in their place
        raise UserError(f"--checkpoint {checkpoint}: {len(missing)} weights are missing from it, first {missing[0]}")
    return model.eval() if device_map is not None else model.eval().to(device)


def load_processor(checkpoint: str, revision: str | None) -> Any:
    """The checkpoint's own processor, with a tokenizer that knows character offsets and a chat template."""

    def load() -> Any:
        return AutoProcessor.from_pretrained(checkpoint, revision=revision, trust_remote_code=False)

    processor = _told(load, f"--checkpoint {checkpoint}: its processor cannot be loaded")
    tokenizer = getattr(processor, "tokenizer", None)
    if tokenizer is None or not tokenizer.is_fast:
        raise UserError(
            f"--checkpoint {checkpoint}: expected a processor with a fast tokenizer, got {type(processor).__name__}"
        )
    if not processor.chat_template:
        raise UserError(f"--checkpoint {checkpoint}: expected a processor with a chat template, it has none")
    return processor


def content_hash(checkpoint: str, revision: str | None) -> str:
    """16 hex digits of a SHA-256 over names, sizes and bytes of config, weights, tokenizer and processor files."""
    digest = hashlib.sha256()
    for path in content_files(checkpoint, revision):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()[:16]


def content_files(checkpoint: str, revision: str | None) -> list[Path]:
    """The checkpoint's config, weight, tokenizer and processor files, by name; a hub id's in the local cache."""
    folder = Path(checkpoint)
    if not folder.is_dir():
        config = cached_file(checkpoint, "config.json", revision=revision)
        folder = Path(str(config)).parent
    return sorted(path for path in folder.iterdir() if path.is_file() and _matches(path.name, _CONTENT))


def check_device(device: str) -> None:
    """UserError unless torch can use `device` here."""
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise UserError(f"--device: expected cpu, cuda or cuda:N, got {device!r}") from error
    present: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
        "xpu": torch.xpu.is_available,
    }
    if kind in present and not present[kind]():
        raise UserError(f"--device {device}: expected a {kind.upper()} device, torch sees none here")


def _told(load: Callable[[], Any], message: str) -> Any:
    try:
        return load()
    except (*_LOAD_ERRORS, HFValidationError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{message}: {reason}") from error


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
