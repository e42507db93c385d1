"""Names that the command line takes: model families and tasks.

Importing this module reads no file and loads nothing heavy; YAML, torch and transformers come in when they are needed.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from core_bench.errors import UserError

if TYPE_CHECKING:
    from core_bench.model_wrappers.base import ModelWrapper
    from core_bench.taskspec import TaskSpec

MODELS = {
    "qwen3vl": "core_bench.model_wrappers.qwen3vl:Qwen3VL",
    "llava_onevision": "core_bench.model_wrappers.llava_onevision:LlavaOneVision",
    "internvl": "core_bench.model_wrappers.internvl:InternVL",
}
MODEL_PLUGINS = "core_bench.models"
_PACKAGE = Path(__file__).parent
_YAML = (".yaml", ".yml")


def suggestion(value: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing where no name is close."""
    close = difflib.get_close_matches(str(value), list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def register_model(name: str, target: str) -> None:
    """Add a model family for this process: `target` is "module:Class", a ModelWrapper whose FAMILY is `name`.

    An installed package does the same for good by an entry point of that name and value in the group
    `core_bench.models`. ValueError where the name is taken by another class.
    """
    if MODELS.setdefault(name, target) != target:
        raise ValueError(f"name: {name!r} is taken by {MODELS[name]}, got {target}")


def known_models() -> dict[str, str]:
    """Name -> "module:Class" of every family: those that ship or were registered, then those of installed packages."""
    from importlib.metadata import entry_points

    return {**{point.name: point.value for point in entry_points(group=MODEL_PLUGINS)}, **MODELS}


def model_class(name: str) -> type[ModelWrapper]:
    """The wrapper class of a family; imports torch and transformers."""
    known = MODELS if name in MODELS else known_models()
    if name not in known:
        raise UserError(f"model: expected one of {', '.join(known)}, got {name!r}{suggestion(name, known)}")
    module, _, attribute = known[name].partition(":")
    try:
        found: type[ModelWrapper] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"model {name}: {known[name]} cannot be imported: {error}") from error
    if name != found.FAMILY:
        raise UserError(f"model {name}: expected a class of that family, {known[name]} says it is {found.FAMILY!r}")
    return found


def model_types() -> dict[str, tuple[str, ...]]:
    """Family -> the `model_type`s, as in config.json, that it reads; imports torch and transformers."""
    return {name: model_class(name).MODEL_TYPES for name in known_models()}


def bundled_checkpoint(name: str) -> Path:
    """Folder of the small checkpoint that ships for a family."""
    folder = _PACKAGE / "bundled" / name
    if not (folder / "config.json").is_file():
        raise UserError(f"--checkpoint: no checkpoint is bundled for {name}: name a hub id or a local folder")
    return folder


def task_files(folder: Path | None = None) -> list[Path]:
    """Task YAMLs of a folder (default: those that ship), sorted; names that start with `_` are bases to include."""
    found = (folder or _PACKAGE / "tasks").rglob("*")
    return sorted(path for path in found if path.suffix in _YAML and not path.name.startswith("_"))


def known_tasks() -> dict[str, TaskSpec]:
    """Every task that ships, by name."""
    return {spec.name: spec for spec in _read_all(task_files())}


def load_tasks(names: Sequence[str] | None, mode: str, generated: bool) -> list[TaskSpec]:
    """The tasks of a run: by name, by tag, by YAML path, by folder of YAMLs; None is the mode's defaults.

    A tag, such as core_all, stands for every shipped task that has it and is not named besides.

    With `generated` the defaults are the generated tasks, else the others; where a mode has none of these, all.
    UserError for an unknown name, a bad file, or two tasks of one name.
    """
    if names is None:
        return _defaults(mode, generated)
    known: dict[str, TaskSpec] | None = None
    specs: list[TaskSpec] = []
    for name in names:
        if _is_path(name):
            specs += _from_path(Path(name).expanduser())
            continue
        known = known_tasks() if known is None else known
        if name in known:
            specs.append(known[name])
            continue
        tagged = [spec for spec in known.values() if name in spec.tags]
        if not tagged:
            words = [*known, *sorted({tag for spec in known.values() for tag in spec.tags})]
            hint = suggestion(name, words) or f" (known: {', '.join(words)})"
            raise UserError(f"--tasks: expected a known task or the path of a YAML file, got {name!r}{hint}")
        specs += [spec for spec in tagged if spec.name not in names and spec not in specs]
    return _distinct(specs)


def one_task(name: str, argument: str) -> TaskSpec:
    """The task of this name or YAML path. UserError, which calls it `argument`, where there are several or none."""
    specs = load_tasks((name,), "detect", generated=False)
    if len(specs) != 1:
        raise UserError(f"{argument}: expected one task, got {name!r}, which holds {len(specs)}")
    return specs[0]


def _defaults(mode: str, generated: bool) -> list[TaskSpec]:
    specs = [spec for spec in known_tasks().values() if mode in spec.default_for]
    wanted = [spec for spec in specs if spec.generated == generated] or specs
    if not wanted:
        raise UserError(f"--tasks: no task is a default of --mode {mode}: name one")
    return wanted


def _is_path(name: str) -> bool:
    return "/" in name or "\\" in name or name.startswith(".") or name.endswith(_YAML) or Path(name).is_file()


def _from_path(path: Path) -> list[TaskSpec]:
    if path.is_dir():
        files = task_files(path)
        if not files:
            raise UserError(f"--tasks: expected YAML files in the folder {path}, found none")
        return _read_all(files)
    return _read_all([path])


def _read_all(files: Iterable[Path]) -> list[TaskSpec]:
    from core_bench.taskspec import TaskSpec

    return _distinct([TaskSpec.from_file(path) for path in files])


def _distinct(specs: list[TaskSpec]) -> list[TaskSpec]:
    seen: dict[str, TaskSpec] = {}
    for spec in specs:
        if spec.name in seen:
            raise UserError(f"--tasks: {spec.name} is defined twice: {seen[spec.name].path} and {spec.path}")
        seen[spec.name] = spec
    return specs
