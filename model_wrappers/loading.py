"""Loading a checkpoint through transformers, with every way it can go wrong told as one line."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import HFValidationError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, PreTrainedConfig
from transformers.utils import cached_file

from core_bench.errors import UserError
from core_bench.registry import model_types

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
_INDEX = "*.safetensors.index.json"
_INTERNVL_OWN = "internvl_chat"
_LOAD_ERRORS = (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, SafetensorError)


def pin_revision(checkpoint: str, revision: str | None, family: str, types: tuple[str, ...]) -> str | None:
    """The commit that a hub id's `revision` means now; for a local folder `revision` as it is.

    UserError where there is no config that can be read, where it is not of one of the model types `types` of `family`,
    or where a local folder has no weights beside it.
    """
    if os.path.isdir(checkpoint):
        folder = Path(checkpoint)
        if not (folder / "config.json").is_file():
            raise UserError(f"--checkpoint {checkpoint}: expected a model folder, it has no config.json")
        if not any(_matches(path.name, _WEIGHTS) for path in folder.iterdir()):
            raise UserError(f"--checkpoint {checkpoint}: expected weights (*.safetensors), the folder has none")
        problem = "its config cannot be read"
    elif os.path.isfile(checkpoint):
        raise UserError(f"--checkpoint {checkpoint}: expected a folder or a hub id, this is a file")
    elif checkpoint.startswith(("/", ".", "~")) or checkpoint.count("/") > 1 or os.sep + os.sep in checkpoint:
        raise UserError(f"--checkpoint {checkpoint}: no such folder")
    else:
        problem = f"no local folder, and the Hugging Face Hub did not give it (revision {revision or 'main'})"
    message = f"--checkpoint {checkpoint}: {problem}"
    written, _ = _told(lambda: PreTrainedConfig.get_config_dict(checkpoint, revision=revision), message)
    if written.get("model_type") not in types:
        raise UserError(f"--checkpoint {checkpoint}: {_why_not(checkpoint, written, family, types)}")
    _told(lambda: AutoConfig.from_pretrained(checkpoint, revision=revision), message)
    if os.path.isdir(checkpoint):
        return revision
    found = Path(str(cached_file(checkpoint, "config.json", revision=revision))).parent  # .../snapshots/<commit>
    return found.name if found.parent.name == "snapshots" else revision


def _why_not(checkpoint: str, written: Mapping[str, Any], family: str, types: tuple[str, ...]) -> str:
    """Why `family` cannot read a checkpoint with this config.json, and what can."""
    found = written.get("model_type")
    if found == _INTERNVL_OWN:
        twin = f"{checkpoint}-HF" if checkpoint.startswith("OpenGVLab/") else "such as OpenGVLab/InternVL3_5-8B-HF"
        return (
            "this is InternVL's own format, which needs code from the checkpoint, and that is never run: take the same "
            f"model in Hugging Face format, {twin} (--model internvl)"
        )
    known = {**model_types(), family: types}
    for other in known:
        if found in known[other]:
            return f"expected a model of the family {family}, this one is of another: say --model {other}"
    families = "; ".join(f"{name} ({', '.join(known[name])})" for name in known)
    code = " and which needs code from the checkpoint, never run here" if "auto_map" in written else ""
    return f"its config.json says model_type {found!r}, which no model family reads{code}; those known: {families}"


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

    try:
        model, report = _told(load, f"--checkpoint {checkpoint}: its weights cannot be loaded")
    except UserError as error:
        if broken := _broken_weights(checkpoint, revision):
            raise UserError(f"--checkpoint {checkpoint}: its weights cannot be loaded: {broken}") from error
        raise
    missing = sorted(report["missing_keys"])
    if missing:  # transformers only warns, and runs on with random numbers in their place
        raise UserError(f"--checkpoint {checkpoint}: {len(missing)} weights are missing from it, first {missing[0]}")
    return model.eval() if device_map is not None else model.eval().to(device)


def empty_model(checkpoint: str, revision: str | None) -> Any:
    """The model of the checkpoint's config on torch's `meta` device: every shape, no weights, no memory."""

    def build() -> Any:
        config = AutoConfig.from_pretrained(checkpoint, revision=revision)
        with torch.device("meta"):
            return AutoModelForImageTextToText.from_config(config, attn_implementation="sdpa")

    return _told(build, f"--checkpoint {checkpoint}: its model cannot be built")


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


def check_agreement(checkpoint: str, model: Any, processor: Any, pairs: Iterable[tuple[str, str]]) -> None:
    """UserError where the processor was not made for the model: it would hand it other tokens than it expects.

    `pairs`: dotted names of settings that must be equal, of the processor and of the model's config; a part that one
    of them does not have is passed over. The tokenizer's ids must have embeddings.
    """
    for ours, theirs in pairs:
        got, expected = _setting(processor, ours), _setting(model.config, theirs)
        if got is not None and expected is not None and got != expected:
            raise UserError(
                f"--checkpoint {checkpoint}: its processor does not fit its model: {ours} is {got}, "
                f"the model's config says {theirs} is {expected}"
            )
    largest, rows = max(processor.tokenizer.get_vocab().values()), model.get_input_embeddings().weight.shape[0]
    if largest >= rows:
        raise UserError(
            f"--checkpoint {checkpoint}: its processor does not fit its model: the tokenizer has ids up to {largest}, "
            f"the model has embeddings for ids up to {rows - 1}"
        )


def _setting(owner: Any, name: str) -> Any:
    """A setting by its dotted name, None where there is none; one number for a square, lists for all sequences."""
    for part in name.split("."):
        owner = getattr(owner, part, None)
    if isinstance(owner, Mapping) or hasattr(owner, "height"):
        owner = [owner["height"], owner["width"]]
    if isinstance(owner, Iterable) and not isinstance(owner, str):
        values = [list(each) if isinstance(each, Iterable) else each for each in owner]
        return values[0] if len(values) == 2 and values[0] == values[1] else values
    return owner


def _broken_weights(checkpoint: str, revision: str | None) -> str | None:
    """Which file of the weights is missing or cut short, if one is, as far as the files tell without being read."""
    files = {path.name: path for path in content_files(checkpoint, revision)}
    for name in fnmatch.filter(files, _INDEX):
        try:
            named = set(json.loads(files[name].read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"{name} is not a list of weights by file"
        if absent := sorted(named - files.keys()):
            return f"{name} names {len(named)} files, {len(absent)} of them are not there, first {absent[0]}"
    for name in fnmatch.filter(files, "*.safetensors"):
        try:
            with safe_open(files[name], framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            return f"{name} is broken or cut short at {files[name].stat().st_size} bytes ({error})"
    return None


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
