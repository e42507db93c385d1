"""Task YAML files, in lmms-eval's schema: parsed, merged with their `include`s, and checked key by key.

What lmms-eval does not know stands under `metadata: {core_bench: {...}}`; `docs/tasks.md` lists every key.
`!function module.name` is only recorded while parsing; the module is imported when the function is first called.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from core_bench.errors import UserError
from core_bench.registry import suggestion

TASK_KEYS = (
    "task", "task_alias", "tag", "group", "include", "dataset_path", "dataset_name", "dataset_kwargs", "test_split",
    "process_docs", "doc_to_visual", "doc_to_text", "doc_to_target", "doc_to_choice", "doc_to_messages",
    "process_results", "metric_list", "generation_kwargs", "output_type", "lmms_eval_specific_kwargs", "class",
    "metadata",
)  # fmt: skip
CORE_KEYS = (
    "id", "media", "question", "phrase", "choices", "evidence", "cluster", "system", "prime", "generator", "splits",
    "chance", "headline", "default_for", "groups", "frames", "files", "get", "table_has_media", "defects", "notes",
    "ranking", "detect_share", "dpi",
)  # fmt: skip
_DOTTED = re.compile(r"\w+(\.\w+)+")
_PACKAGED = Path(__file__).parent / "tasks"
_PACKAGED_PREFIX = "core_bench.tasks."


@dataclass(frozen=True)
class Place:
    """Where a key stands, for messages."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class YamlMap(dict[str, Any]):
    """A YAML mapping that remembers where each of its keys stands."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, Place] = {}

    def place(self, key: str) -> Place:
        return self.places[key]


@dataclass(frozen=True)
class FunctionRef:
    """A `!function module.name` of a YAML file: the .py file beside it, or an importable dotted module."""

    name: str
    place: Place

    def resolve(self) -> Callable[..., Any]:
        """Import and return the function; UserError with file and line where there is none."""
        module_name, _, attribute = self.name.rpartition(".")
        try:
            module = self._module(module_name)
        except ImportError as error:
            raise UserError(f"{self.place}: !function {self.name}: cannot import {module_name!r}: {error}") from error
        found = getattr(module, attribute, None)
        if not callable(found):
            functions = [name for name in vars(module) if not name.startswith("_")]
            hint = suggestion(attribute, functions)
            raise UserError(f"{self.place}: !function {self.name}: no function {attribute!r} in {module_name}{hint}")
        return found

    def source(self) -> Path:
        """The Python file that defines the function's module."""
        module_name = self.name.rpartition(".")[0]
        beside = self.place.path.parent / f"{module_name}.py"
        return beside if beside.is_file() else Path(str(self._module(module_name).__file__))

    def _module(self, module_name: str) -> ModuleType:
        file = self.place.path.parent / f"{module_name}.py"
        if not file.is_file():
            return importlib.import_module(module_name)
        name = _import_name(file.absolute())
        if name.startswith(_PACKAGED_PREFIX):
            return importlib.import_module(name)
        if name not in sys.modules:
            _load(file, name, self)
        return sys.modules[name]


@lru_cache(maxsize=256)  # asked for every row, and following links takes longer than all else that a row costs
def _import_name(file: Path) -> str:
    """The name under which the functions beside a task file are imported. Two folders may both hold a utils.py: the
    name of one that does not ship carries its path."""
    if file.parent.resolve() == _PACKAGED.resolve():
        return f"{_PACKAGED_PREFIX}{file.stem}"
    digest = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]
    return f"core_bench_task_{digest}_{file.stem}"


def _load(file: Path, unique: str, ref: FunctionRef) -> None:
    spec = importlib.util.spec_from_file_location(unique, file)
    assert spec is not None  # a .py suffix always has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[unique]
        raise UserError(f"{ref.place}: !function {ref.name}: {file}:{error.lineno}: {error.msg}") from None
    except BaseException:
        del sys.modules[unique]
        raise


class _Loader(yaml.SafeLoader):
    """SafeLoader that keeps line numbers, refuses duplicate keys and records `!function`."""

    path: Path

    def construct_mapping_with_places(self, node: yaml.MappingNode) -> YamlMap:
        self._refuse_duplicates(node)
        self.flatten_mapping(node)  # merge keys (<<) become ordinary ones, which later ones may override
        mapping = YamlMap()
        for key_node, value_node in node.value:
            place = Place(self.path, key_node.start_mark.line + 1)
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise UserError(f"{place}: expected a text key, got {key!r}")
            mapping[key] = self.construct_object(value_node, deep=True)
            mapping.places[key] = place
        return mapping

    def _refuse_duplicates(self, node: yaml.MappingNode) -> None:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.value in seen and key_node.value != "<<":
                raise UserError(f"{self.path}:{key_node.start_mark.line + 1}: {key_node.value} is given twice")
            if isinstance(key_node, yaml.ScalarNode):
                seen.add(key_node.value)

    def construct_function(self, node: yaml.Node) -> FunctionRef:
        place = Place(self.path, node.start_mark.line + 1)
        if not isinstance(node, yaml.ScalarNode) or not _DOTTED.fullmatch(node.value):
            raise UserError(f"{place}: !function: expected module.name, got {node.value!r}")
        return FunctionRef(node.value, place)


_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.construct_mapping_with_places)
_Loader.add_constructor("!function", _Loader.construct_function)


def read_task_file(path: Path) -> YamlMap:
    """The checked keys of a task file, its includes merged beneath (whole keys, the including file's win)."""
    merged = _merge(path, ())
    place = Place(path, 1)
    if not isinstance(merged.get("task"), str):
        where = merged.place("task") if "task" in merged else place
        raise UserError(f"{where}: task: expected the task's name, got {merged.get('task')!r}")
    check_keys(merged, TASK_KEYS, place)
    metadata = merged.get("metadata") or YamlMap()
    if not isinstance(metadata, YamlMap):
        raise UserError(f"{merged.place('metadata')}: metadata: expected a mapping, got {metadata!r}")
    core = metadata.get("core_bench") or YamlMap()
    if not isinstance(core, YamlMap):
        raise UserError(f"{metadata.place('core_bench')}: metadata.core_bench: expected a mapping, got {core!r}")
    check_keys(core, CORE_KEYS, place, "metadata.core_bench.")
    return merged


def check_keys(mapping: YamlMap, known: Collection[str], place: Place, prefix: str = "") -> None:
    """UserError with file and line for a key that is not known."""
    for key in mapping:
        if key not in known:
            hint = suggestion(key, known) or f" (known: {', '.join(known)})"
            raise UserError(f"{mapping.places.get(key, place)}: unknown key {prefix}{key}{hint}")


def _merge(path: Path, above: tuple[Path, ...]) -> YamlMap:
    if path.resolve() in above:
        raise UserError(f"{path}: include: the file includes itself through {above[-1].name}")
    own = _parse(path)
    merged = YamlMap()
    bases = own.get("include") or []
    for base in bases if isinstance(bases, list) else [bases]:
        if not isinstance(base, str):
            raise UserError(f"{own.place('include')}: include: expected a file name, got {base!r}")
        file = path.parent / base
        if not file.is_file():
            raise UserError(f"{own.place('include')}: include: no such file {file}")
        _update(merged, _merge(file, (*above, path.resolve())))
    _update(merged, own)
    return merged


def _update(target: YamlMap, source: YamlMap) -> None:
    target.update(source)
    target.places.update(source.places)


def _parse(path: Path) -> YamlMap:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"--tasks: expected a readable YAML file, got {path}: {reason}") from None
    try:
        loader = _Loader(text)
        loader.path = path
        try:
            found = loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{path}:{line}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise UserError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(found, YamlMap):
        raise UserError(f"{path}:1: expected a mapping of task keys, got {type(found).__name__}")
    return found
