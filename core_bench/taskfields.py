"""What a task's YAML says about one row, read from that row: texts, media, evidence, choices."""

from __future__ import annotations

import inspect
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from core_bench.errors import SampleError, UserError
from core_bench.schema import PAGE_DPI, Media, Region
from core_bench.taskfile import FunctionRef, Place
from core_bench.tasksource import ROW_ERRORS, Doc

MEDIA_KEYS = ("image", "images", "video", "pdf", "page")
_NAME = re.compile(r"[^\W\d]\w*")
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}|\{(\w+)\}")
_JINJA = re.compile(r"\{%|\{#|\{\{")


def check_template(value: object, what: str, place: Place) -> None:
    """UserError for a template that needs more than {column} or {{column}}."""
    if isinstance(value, str) and _JINJA.search(_PLACEHOLDER.sub("", value)):
        raise UserError(f"{place}: {what}: expected plain placeholders such as {{question}}, got {value!r}")


def call(ref: FunctionRef, doc: Doc, what: str, *more: Any, **keywords: Any) -> Any:
    """`function(doc, *more)`, with the keyword arguments that it takes; SampleError if it stumbles over the row."""
    function = ref.resolve()
    taken = inspect.signature(function).parameters
    try:
        return function(doc, *more, **{name: value for name, value in keywords.items() if name in taken})
    except (UserError, SampleError):
        raise
    except ROW_ERRORS as error:
        raise SampleError(f"{what}: {ref.name}: {type(error).__name__}: {error}") from error


def value_of(source: Any, doc: Doc, what: str, **keywords: Any) -> Any:
    """A column's cell, a filled template, a function's result, or the YAML's own value."""
    if isinstance(source, FunctionRef):
        return call(source, doc, what, **keywords)
    if not isinstance(source, str):
        return source
    if source in doc:
        return doc[source]
    if _NAME.fullmatch(source):
        raise SampleError(f"{what}: the row has no column {source!r}")
    return fill(source, doc, what)


def fill(template: str, doc: Doc, what: str) -> str:
    """`template` with each {column} or {{column}} replaced by the row's text."""

    def cell(match: re.Match[str]) -> str:
        column = match[1] or match[2]
        if column not in doc:
            raise SampleError(f"{what}: the row has no column {column!r}")
        return as_text(doc[column], f"{what}: column {column!r}")

    return _PLACEHOLDER.sub(cell, template)


def as_text(value: Any, what: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise SampleError(f"{what}: expected text, got {type(value).__name__}")
    text = str(value)
    if not text.strip():
        raise SampleError(f"{what}: expected text, got an empty one")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise SampleError(f"{what}: expected text, got half a surrogate pair, which no tokenizer can read")
    return text


def choices_of(source: Any, doc: Doc) -> tuple[str, ...]:
    found = value_of(source, doc, "choices") if source is not None else ()
    if not isinstance(found, list | tuple):
        raise SampleError(f"choices: expected a list, got {type(found).__name__}")
    if not all(isinstance(option, str | int | float) for option in found):
        raise SampleError(f"choices: expected texts, got {found!r}")
    return tuple(str(option).strip() for option in found)


def media_of(
    source: Any, doc: Doc, base: Path, frames: int | None = None, dpi: int = PAGE_DPI
) -> tuple[tuple[Media, ...], str]:
    """The media of a row with paths from `base`, and the first one's path as the row writes it.

    `frames`: how many a video gives unless its own Media says. `dpi`: of PDF pages.
    """
    found = call(source, doc, "media", base=base) if isinstance(source, FunctionRef) else _from_columns(source, doc)
    if not isinstance(found, list | tuple) or not all(isinstance(item, Media) for item in found):
        raise SampleError(f"media: expected a list of Media, got {found!r}")
    if not found:
        raise SampleError("media: the row names no image, images, video or pdf")
    for medium in found:
        if "://" in medium.path:
            raise SampleError(f"media: {medium.path}: expected a file on this machine (nothing is downloaded)")
    placed = [_placed(medium, base) for medium in found]
    return tuple(_as_task_says(medium, frames, dpi) for medium in placed), str(found[0].path)


def _placed(medium: Media, base: Path) -> Media:
    subtitles = None if medium.subtitles is None else str(base / medium.subtitles)
    return replace(medium, path=str(base / medium.path), subtitles=subtitles)


def _as_task_says(medium: Media, frames: int | None, dpi: int) -> Media:
    if medium.kind == "video":
        return replace(medium, frames=medium.frames or frames)
    return replace(medium, dpi=dpi) if medium.kind == "page" else medium


def _from_columns(columns: dict[str, str] | None, doc: Doc) -> list[Media]:
    """Media of the columns image, images, video and pdf, in this order; `columns` renames them."""
    cells = {key: doc.get((columns or {}).get(key, key)) for key in MEDIA_KEYS if columns is None or key in columns}
    found = [Media(kind="image", path=_path(cells["image"], "image"))] if cells.get("image") is not None else []
    images = cells.get("images") if cells.get("images") is not None else []
    if not isinstance(images, list):
        raise SampleError(f"images: expected a list of paths, got {type(images).__name__}")
    found += [Media(kind="image", path=_path(item, "images")) for item in images]
    if cells.get("video") is not None:
        found.append(Media(kind="video", path=_path(cells["video"], "video")))
    if cells.get("pdf") is not None:
        page = cells.get("page")
        pages = page if isinstance(page, list) else [0 if page is None else page]
        found += [Media(kind="page", path=_path(cells["pdf"], "pdf"), page=_page(number)) for number in pages]
    return found


def _path(cell: Any, what: str) -> str:
    if not isinstance(cell, str) or not cell:
        raise SampleError(f"{what}: expected a path, got {cell!r}")
    try:
        os.fsencode(cell)
    except UnicodeEncodeError:
        raise SampleError(f"{what}: expected a path, got {cell!a}") from None
    if "\0" in cell:
        raise SampleError(f"{what}: expected a path, got {cell!r}")
    return cell


def _page(cell: Any) -> int:
    if not isinstance(cell, int) or isinstance(cell, bool) or cell < 0:
        raise SampleError(f"page: expected a 0-based page number, got {cell!r}")
    return cell


def evidence_of(source: Any, doc: Doc, n_media: int, base: Path, dpi: int = PAGE_DPI) -> tuple[Region, ...]:
    """Regions by function, or of a column of `{"medium": 0, "box": [x0, y0, x1, y1], "frame": null}` objects."""
    if isinstance(source, FunctionRef):
        found = call(source, doc, "evidence", base=base, dpi=dpi)
    else:
        cells = doc.get("evidence") if source is None else value_of(source, doc, "evidence")
        if cells is not None and not isinstance(cells, list):
            raise SampleError(f"evidence: expected a list of regions, got {type(cells).__name__}")
        found = [_region(cell) for cell in cells or []]
    if not isinstance(found, list | tuple) or not all(isinstance(item, Region) for item in found):
        raise SampleError(f"evidence: expected a list of Region, got {found!r}")
    for region in found:
        if not 0 <= region.medium < n_media:
            raise SampleError(f"evidence: medium {region.medium} of a row with {n_media}")
    return tuple(found)


def _region(cell: Any) -> Region:
    if not isinstance(cell, dict) or not set(cell) <= {"medium", "box", "frame"}:
        raise SampleError(f"evidence: expected an object with medium, box and frame, got {cell!r}")
    medium, box, frame = cell.get("medium", 0), cell.get("box"), cell.get("frame")
    if not isinstance(medium, int) or not (frame is None or isinstance(frame, int)):
        raise SampleError(f"evidence: medium and frame: expected whole numbers, got {cell!r}")
    if box is None:
        return Region(medium=medium, frame=frame)
    is_box = isinstance(box, list) and len(box) == 4 and all(isinstance(edge, int | float) for edge in box)
    if not is_box or not all(map(math.isfinite, box)) or box[2] <= box[0] or box[3] <= box[1]:
        raise SampleError(f"evidence: box: expected [x0, y0, x1, y1] in pixels, got {box!r}")
    x0, y0, x1, y1 = map(float, box)
    return Region(medium=medium, box=(x0, y0, x1, y1), frame=frame)
