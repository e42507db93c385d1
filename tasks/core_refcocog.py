"""RefCOCOg: rows of the hub table (xywh boxes in pixels, the expressions under `answer`) as samples.

The `vqa_*` columns hold a question about the referred object; the generated data has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from core_bench.bundled.words import COLORS
from core_bench.instructions import ONE_WORD
from core_bench.metrics import known_answer
from core_bench.schema import Media, Region

_COCO_NAME = re.compile(r"(COCO_\w+?_\d{12})_\d+(\.\w+)")


def media(doc: Mapping[str, Any]) -> list[Media]:
    return [Media(kind="image", path=doc["image"])]


def evidence(doc: Mapping[str, Any]) -> list[Region]:
    """The referred object's box: xywh in pixels becomes half-open (x0, y0, x1, y1)."""
    x, y, width, height = map(float, doc["bbox"])
    if width <= 0 or height <= 0:
        raise ValueError(f"bbox: expected a box of positive area, got {list(doc['bbox'])}")
    return [Region(medium=0, box=(x, y, x + width, y + height))]


def cluster(doc: Mapping[str, Any]) -> str:
    """The picture. `file_name` ends with the annotation's number, which is not part of the COCO picture's name."""
    return _COCO_NAME.sub(r"\1\2", str(doc["file_name"]))


def prompt(doc: Mapping[str, Any]) -> str:
    return f"{doc['vqa_question']}\n{ONE_WORD}"


def color_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Whether the color that the answer names is the object's; an answer that names none is unparsed."""
    value, unparsed = known_answer(results[0], doc["vqa_answer"], tuple(COLORS))
    return {"accuracy": value, "unparsed": float(unparsed)}
