"""Checks the values of a task file once, so that a run does not find out at its last sample."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from core_bench.authorfiles import GET_KEYS
from core_bench.config import MODES, one_of
from core_bench.errors import UserError
from core_bench.metrics import METRICS
from core_bench.registry import suggestion
from core_bench.taskfields import MEDIA_KEYS, check_template
from core_bench.taskfile import FunctionRef, Place, YamlMap, check_keys

_FUNCTION_ONLY = ("process_docs", "doc_to_visual", "doc_to_messages", "process_results", "class")
_TEMPLATES = ("question", "phrase", "system", "prime")
_METRIC_KEYS = ("metric", "aggregation", "higher_is_better")
# Generation is greedy: keys that ask for it are accepted, keys that ask for anything else are refused.
_GREEDY = {"do_sample": (False,), "temperature": (0, None), "num_beams": (1,), "top_p": (1, None)}


def check_task(keys: YamlMap, core: YamlMap, path: Path) -> None:
    """UserError with file and line for the first value that cannot be meant."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.\-]*", keys["task"]):
        raise UserError(f"{keys.place('task')}: task: expected letters, digits and _ . -, got {keys['task']!r}")
    if "dataset_path" not in keys and not core.get("generator"):
        raise UserError(f"{Place(path, 1)}: dataset_path: expected a JSONL file or a data set, got none")
    text_or_function = str | FunctionRef
    expected: list[tuple[YamlMap, tuple[str, ...], Any, str]] = [
        (keys, _FUNCTION_ONLY, FunctionRef, "a !function"),
        (keys, ("dataset_path", "dataset_name", "test_split"), str, "text"),
        (core, ("generator", "headline"), str, "text"),
        (keys, ("dataset_kwargs", "generation_kwargs", "lmms_eval_specific_kwargs"), YamlMap, "a mapping"),
        (core, ("splits", "groups", "files", "get", "notes"), YamlMap, "a mapping"),
        (core, ("defects", "ranking"), FunctionRef, "a !function"),
        (core, ("table_has_media",), bool, "true or false"),
        (core, ("question", "phrase", "cluster", "system", "prime", "id"), text_or_function, "text or a !function"),
        (core, ("evidence",), text_or_function, "the name of a column or a !function"),
        (core, ("choices",), str | list | FunctionRef, "a column, a list or a !function"),
        (keys, ("doc_to_choice",), str | list | FunctionRef, "a column, a list or a !function"),
    ]
    tags = keys.get("tag") or []
    if not isinstance(tags, str) and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        raise UserError(f"{keys.place('tag')}: tag: expected a name or a list of names, got {tags!r}")
    for mapping, names, kind, what in expected:
        for name in names:
            _expect(mapping, name, kind, what)
    for mapping, name in [(keys, "doc_to_text"), (keys, "doc_to_target"), *((core, name) for name in _TEMPLATES)]:
        if name in mapping:
            check_template(mapping[name], name, mapping.place(name))
    _check_metrics(keys, core)
    _check_generation(keys)
    _check_core(keys, core)
    _check_files(core)


def _expect(mapping: YamlMap, key: str, kind: Any, what: str) -> None:
    if mapping.get(key) is not None and not isinstance(mapping[key], kind):
        raise UserError(f"{mapping.place(key)}: {key}: expected {what}, got {mapping[key]!r}")


def _check_metrics(keys: YamlMap, core: YamlMap) -> None:
    entries = keys.get("metric_list")
    if entries is not None and not isinstance(entries, list):
        raise UserError(f"{keys.place('metric_list')}: metric_list: expected a list, got {entries!r}")
    has_function = "process_results" in keys
    names = [_check_metric(entry, keys.place("metric_list"), has_function) for entry in entries or []]
    if has_function and not names:
        raise UserError(
            f"{keys.place('process_results')}: process_results: expected a metric_list that names its results"
        )
    if core.get("headline") and names and core["headline"] not in names:
        raise UserError(
            f"{core.place('headline')}: headline: expected one of {', '.join(names)}, got {core['headline']!r}"
        )


def _check_metric(entry: Any, place: Place, has_function: bool) -> str:
    """The name of one metric_list entry."""
    if not isinstance(entry, YamlMap) or not isinstance(entry.get("metric"), str):
        raise UserError(f"{place}: metric_list: expected entries with metric: NAME, got {entry!r}")
    check_keys(entry, _METRIC_KEYS, place, "metric_list.")
    if entry.get("aggregation", "mean") != "mean":
        raise UserError(f"{entry.place('aggregation')}: aggregation: expected mean, got {entry['aggregation']!r}")
    name: str = entry["metric"]
    if not has_function and name not in METRICS:
        expected = f"expected one of {', '.join(METRICS)} or a process_results function"
        raise UserError(f"{entry.place('metric')}: metric: {expected}, got {name!r}{suggestion(name, METRICS)}")
    return name


def _check_generation(keys: YamlMap) -> None:
    if keys.get("output_type", "generate_until") != "generate_until":
        place = keys.place("output_type")
        raise UserError(f"{place}: output_type: expected generate_until, got {keys['output_type']!r}")
    kwargs = keys.get("generation_kwargs") or YamlMap()
    for key, value in kwargs.items():
        place = kwargs.place(key)
        if key in _GREEDY:
            if value not in _GREEDY[key]:
                raise UserError(f"{place}: generation_kwargs.{key}: expected {_GREEDY[key][0]} (greedy), got {value!r}")
        elif key == "max_new_tokens":
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"{place}: generation_kwargs.max_new_tokens: expected at least 1, got {value!r}")
        elif key == "until":
            stops = [value] if isinstance(value, str) else value
            if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
                raise UserError(f"{place}: generation_kwargs.until: expected texts, got {value!r}")
        else:
            known = (*_GREEDY, "max_new_tokens", "until")
            raise UserError(f"{place}: unknown key generation_kwargs.{key}{suggestion(key, known)}")


def _check_core(keys: YamlMap, core: YamlMap) -> None:
    chance = core.get("chance")
    if chance is not None and (not isinstance(chance, int | float) or not 0 <= chance <= 1):
        raise UserError(f"{core.place('chance')}: chance: expected a number from 0 to 1, got {chance!r}")
    share = core.get("detect_share")
    if share is not None and (not isinstance(share, float) or not 0 < share < 1):
        raise UserError(f"{core.place('detect_share')}: detect_share: expected a number between 0 and 1, got {share!r}")
    frames = core.get("frames")
    if frames is not None and (not isinstance(frames, int) or isinstance(frames, bool) or frames < 1):
        raise UserError(f"{core.place('frames')}: frames: expected a whole number above 0, got {frames!r}")
    dpi = core.get("dpi")
    if dpi is not None and (not isinstance(dpi, int) or isinstance(dpi, bool) or not 36 <= dpi <= 600):
        raise UserError(f"{core.place('dpi')}: dpi: expected a whole number from 36 to 600, got {dpi!r}")
    splits = core.get("splits") or YamlMap()
    for key in splits:
        one_of(f"{splits.place(key)}: splits", key, MODES)
        _expect(splits, key, str, "the name of a split")
    default_for = core.get("default_for") or []
    if not isinstance(default_for, list):
        raise UserError(f"{core.place('default_for')}: default_for: expected a list of modes, got {default_for!r}")
    for mode in default_for:
        one_of(f"{core.place('default_for')}: default_for", str(mode), MODES)
    groups = core.get("groups") or YamlMap()
    for key in groups:
        names = [entry["metric"] for entry in keys.get("metric_list") or []]
        if key not in names:
            expected = f"expected one of {', '.join(names) or 'the metrics of metric_list'}"
            raise UserError(f"{groups.place(key)}: groups: {expected}, got {key!r}")
        _expect(groups, key, str | FunctionRef, "a column or a !function")
    media = core.get("media")
    if isinstance(media, YamlMap):
        for key in media:
            one_of(f"{media.place(key)}: media", key, MEDIA_KEYS)
            _expect(media, key, str, "the name of a column")
    else:
        _expect(core, "media", FunctionRef, "a mapping of columns or a !function")
    path = str(keys.get("dataset_path", ""))
    if splits and path.endswith((".jsonl", ".json")) and len(set(splits.values())) > 1:
        raise UserError(
            f"{core.place('splits')}: splits: the single file {path} has none: use dataset_path: json with "
            "dataset_kwargs: {data_files: {NAME: FILE}}"
        )


def _check_files(core: YamlMap) -> None:
    """`files`: {SPLIT: [NAME or [NAME, ...], ...]}, together with `get`, which has every one of its keys."""
    if ("files" in core) != ("get" in core):
        one, other = ("files", "get") if "files" in core else ("get", "files")
        raise UserError(f"{core.place(one)}: {one}: expected together with {other}")
    if "files" not in core:
        return
    files, get = core["files"], core["get"]
    for split, entries in files.items():
        names = [name for entry in entries or [] for name in (entry if isinstance(entry, list) else [entry])]
        if not isinstance(entries, list) or not names or not all(isinstance(name, str) and name for name in names):
            raise UserError(f"{files.place(split)}: files: expected a list of file names, got {entries!r}")
    check_keys(get, GET_KEYS, core.place("get"), "metadata.core_bench.get.")
    for key in GET_KEYS:
        if not isinstance(get.get(key), str):
            place = get.place(key) if key in get else core.place("get")
            raise UserError(f"{place}: get.{key}: expected text, got {get.get(key)!r}")
