"""RefCOCOg: rows of the hub table (xywh boxes in pixels, the expressions under `answer`) as samples.

The real task asks for the box of each expression; the `question` column, a captioning prompt, is not used. The `vqa_*`
columns hold a question about the referred object; the generated data has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from core_bench.bundled.words import COLORS
from core_bench.instructions import ONE_WORD, REFCOCOG
from core_bench.media import load_image
from core_bench.metrics import known_answer
from core_bench.schema import Media, Region
from core_bench.scoring_boxes import rec

_COCO_NAME = re.compile(r"(COCO_\w+?_\d{12})_\d+(\.\w+)")


def expressions(docs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row an expression: the object's fields, `expression`, and an `item` of the question's id and a number.

    An object without any stays, as a row without `expression`, so that it is counted.
    """
    found = []
    for number, doc in enumerate(docs, start=1):
        name, texts = doc.get("question_id", f"row {number}"), doc.get("answer")
        several: list[dict[str, Any]] = [{"expression": text} for text in texts] if isinstance(texts, list) else []
        found += [{**doc, **one, "item": f"{name}-{which}"} for which, one in enumerate(several or [{}])]
    return found


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


def box_prompt(doc: Mapping[str, Any]) -> str:
    return REFCOCOG.format(expression=doc["expression"])


def box_results(doc: Mapping[str, Any], results: Sequence[str], boxes: str, media: Sequence[Media]) -> dict[str, float]:
    """Acc@0.5 of the box in the answer, read in the coordinates of the model's family."""
    [target] = evidence(doc)
    if target.box is None:
        raise ValueError("bbox: expected a box")
    value, unparsed = rec(results[0], boxes, load_image(media[0].path).size, target.box)
    return {"acc_0.5": value, "unparsed": float(unparsed)}


def prompt(doc: Mapping[str, Any]) -> str:
    return f"{doc['vqa_question']}\n{ONE_WORD}"


def color_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Whether the color that the answer names is the object's; an answer that names none is unparsed."""
    value, unparsed = known_answer(results[0], doc["vqa_answer"], tuple(COLORS))
    return {"accuracy": value, "unparsed": float(unparsed)}
